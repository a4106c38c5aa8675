"""Which device, dtype, kernel set and number of threads a worker uses."""

import os
import time
from pathlib import Path

import torch

from gpu_worker.errors import ConfigError
from gpu_worker.layers.linear import Linear

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_FAST_BF16_FLAGS = ("avx512_bf16", "amx_bf16")
_MIN_GAIN = 0.9
"""More threads must need at most this share of the time, else the smaller number leaves a core to others."""
_NUM_ROUNDS = 9
_NUM_LOOKS = 3
_SECONDS_BETWEEN_LOOKS = 0.4


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
    own = str(dtype).removeprefix("torch.")
    if name in ("auto", own):
        return dtype
    if name == "fp8" and device.type == "cuda":
        return torch.float8_e4m3fn
    where = f"with --dtype {own} on a {'GPU' if device.type == 'cuda' else 'CPU'}"
    allowed = f"auto, {own}{', fp8' if device.type == 'cuda' else ''}"
    raise ConfigError(f"--kv-cache-dtype {name}: not allowed {where}; allowed: {allowed}")


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


def describe_device(device: torch.device) -> str:
    """For people, for example ``cuda:0 NVIDIA H200``."""
    return f"{device} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else "cpu"


def set_cpu_threads(requested: int, hidden_size: int, inner_size: int, dtype: torch.dtype) -> int:
    """Set torch's threads to the number asked for, or for 0 to the fastest measured; returns it."""
    threads = requested or _measure_threads(hidden_size, inner_size, dtype)
    torch.set_num_threads(threads)
    return threads


def threads_of_rank(num_ranks: int) -> int:
    """Ranks share the CPUs; measured all at once, each would take them for slow."""
    return max(1, len(os.sched_getaffinity(0)) // num_ranks)


def _measure_threads(hidden_size: int, inner_size: int, dtype: torch.dtype) -> int:
    """Time a projection of 16 rows with 1, 2, 4, ... threads up to the CPUs this process may use.

    A neighbour on a core can make two threads slower than one many times over, which no rule foresees. One that just
    starts, as the front and the scheduler do beside a worker, is soon idle: if not all CPUs are worth using, look again
    a little later, and take the most threads that were best at any time.
    """
    limit = len(os.sched_getaffinity(0))
    candidates = sorted({limit, *(1 << power for power in range(limit.bit_length()) if 1 << power <= limit)})
    if limit == 1:
        return 1
    layers = [Linear(torch.zeros(2 * inner_size, hidden_size, dtype=dtype)) for _ in range(8)]
    for layer in layers:
        layer.pack()
    x = torch.zeros(16, hidden_size, dtype=dtype)
    best = _best_threads(candidates, x, layers)
    for _ in range(_NUM_LOOKS - 1):
        if best == limit:
            break
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        best = max(best, _best_threads(candidates, x, layers))
    return best


def _best_threads(candidates: list[int], x: torch.Tensor, layers: list[Linear]) -> int:
    """By the median of a few rounds. The candidates take turns, so that a disturbance meets all of them alike."""
    seconds: dict[int, list[float]] = {threads: [] for threads in candidates}
    for _ in range(_NUM_ROUNDS):
        for threads in candidates:
            torch.set_num_threads(threads)
            seconds[threads].append(_time_projections(x, layers))
    best, best_seconds = 1, float("inf")
    for threads in candidates:
        median = sorted(seconds[threads])[_NUM_ROUNDS // 2]
        if median < best_seconds * _MIN_GAIN:
            best, best_seconds = threads, median
    return best


@torch.inference_mode()
def _time_projections(x: torch.Tensor, layers: list[Linear]) -> float:
    """Seconds of one pass; the product before it wakes the threads."""
    layers[0](x)
    began = time.perf_counter()
    for layer in layers:
        layer(x)
    return time.perf_counter() - began
