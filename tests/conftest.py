"""Turns on Triton's interpreter where there is no GPU, before anything imports Triton: it decides at import.

Chooses how hard hypothesis looks: HYPOTHESIS_PROFILE is `pagewire` in `make test` and `soak` in `make soak`.

Chooses the scheduler's source for the tests' own process, whatever has been compiled: coverage and monkeypatches need
it. PAGEWIRE_TEST_CODE=compiled leaves the choice to the package, as for the processes that tests start.
"""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Device files instead of torch.cuda: importing torch here would slow down every run of tests that never need it.
_GPU_DEVICE_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")

if not any(Path(path).exists() for path in _GPU_DEVICE_FILES):
    os.environ.setdefault("TRITON_INTERPRET", "1")

with pytest.MonkeyPatch.context() as patch:
    if os.environ.get("PAGEWIRE_TEST_CODE") != "compiled":
        patch.setenv("PAGEWIRE_PURE_PYTHON", "1")
    import scheduler_svc  # noqa: F401 - it chooses now

# No deadline for an example: on a busy machine it would judge the neighbours.
settings.register_profile(
    "pagewire", deadline=None, derandomize=False, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("soak", settings.get_profile("pagewire"), max_examples=2000, stateful_step_count=100)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "pagewire"))
