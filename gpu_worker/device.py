"""Which device, dtypes and kernel set a worker uses."""

from pathlib import Path

import torch
from pagewire_kernels import KernelSet, load_kernels

from gpu_worker.errors import ConfigError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_FAST_BF16_FLAGS = ("avx512_bf16", "amx_bf16")


def pick_device(name: str, rank: int = 0, num_ranks: int = 1) -> torch.device:
    """``auto`` takes the first GPU if there is one; of several ranks each takes its own, from then on the current one.

    Raises ConfigError if a GPU is asked for and there is none, or fewer than ranks.
    """
    if name == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        if num_ranks > torch.cuda.device_count():
            raise ConfigError(
                f"--tensor-parallel-size {num_ranks}: not allowed: {torch.cuda.device_count()} CUDA devices are "
                "visible; allowed here: at most that, or --device cpu"
            )
        if num_ranks > 1:
            torch.cuda.set_device(rank)
        return torch.device("cuda", torch.cuda.current_device())
    if name == "cuda":
        raise ConfigError("--device cuda: no CUDA device is visible to torch; allowed here: cpu, auto")
    return torch.device("cpu")


def pick_dtype(name: str, checkpoint_dtype: str, device: torch.device) -> torch.dtype:
    """``auto``: on a CPU bfloat16 if it computes in it, else float32; on a GPU the checkpoint's 16-bit type."""
    if name != "auto":
        return DTYPES[name]
    if device.type == "cpu":
        return torch.bfloat16 if has_fast_bf16(Path("/proc/cpuinfo")) else torch.float32
    return torch.float16 if checkpoint_dtype == "float16" else torch.bfloat16


def pick_kv_dtype(name: str, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """What pages hold: ``auto`` is the model's dtype. Raises ConfigError for what the kernels do not read."""
    own = dtype_name(dtype)
    if name in ("auto", own):
        return dtype
    if name == "fp8" and device.type == "cuda":
        return torch.float8_e4m3fn
    where = f"with --dtype {own} on a {'GPU' if device.type == 'cuda' else 'CPU'}"
    allowed = f"auto, {own}{', fp8' if device.type == 'cuda' else ''}"
    raise ConfigError(f"--kv-cache-dtype {name}: not allowed {where}; allowed: {allowed}")


def dtype_name(dtype: torch.dtype) -> str:
    """As flags and model cards have it, for example ``bfloat16``."""
    return str(dtype).removeprefix("torch.")


def has_fast_bf16(cpuinfo: Path) -> bool:
    """Whether every listed CPU has bfloat16 instructions."""
    try:
        lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")]
    except OSError:
        return False
    return bool(lines) and all(any(flag in line.split() for flag in _FAST_BF16_FLAGS) for line in lines)


def pick_kernels(name: str, device: torch.device) -> str:
    """``auto``: triton on a GPU, cpu elsewhere."""
    if name != "auto":
        return name
    return "triton" if device.type == "cuda" else "cpu"


def load_kernel_set(name: str) -> KernelSet:
    """Raises ConfigError if the set needs a package that is not there."""
    try:
        return load_kernels(name)
    except ImportError as error:
        raise ConfigError(f"--kernels {name}: needs {error.name}, which is not installed; allowed: cpu, auto") from None


def describe_device(device: torch.device) -> str:
    """For people, for example ``cuda:0 NVIDIA H200``."""
    return f"{device} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else "cpu"
