"""Turns on Triton's interpreter where there is no GPU, before anything imports Triton: it decides at import."""

import os
from pathlib import Path

# Device files instead of torch.cuda: importing torch here would slow down every run of tests that never need it.
_GPU_DEVICE_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")

if not any(Path(path).exists() for path in _GPU_DEVICE_FILES):
    os.environ.setdefault("TRITON_INTERPRET", "1")
