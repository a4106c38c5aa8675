"""Every Triton kernel compiles ahead of time for sm_90 and gfx942 and fits their shared memory; no GPU is needed.

In its own process, because Triton decides at import whether it interprets.
"""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_kernels_compile(target: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    finished = subprocess.run(
        [sys.executable, "-m", "pagewire_kernels.aot", target],
        env=environment, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr
    for kernel in (
        "shared_prefix", "paged_decode", "paged_chunk", "rotary_kv_write", "rms_norm", "add_rms_norm", "silu_mul",
        "skinny_linear", "tiled_linear", "vector_linear", "packed_linear", "unpack_weight", "tile_argmax", "row_argmax",
        "group_peaks", "bracket", "list", "truncated_choice", "forbid", "settle",
    ):  # fmt: skip
        assert f"{target} {kernel}" in finished.stdout
    for kernel in ("fragment_linear", "round_rows", "block_scaled"):
        assert (kernel in finished.stdout) == (target == "sm_90")
