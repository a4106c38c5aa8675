"""How many threads a worker on a CPU uses: as many as were asked for, or as were measured to be worth it."""

import os
import time

import torch

from gpu_worker.layers.linear import Linear

_MIN_GAIN = 0.9
"""More threads must need at most this share of the time, else the smaller number leaves a core to others."""
_NUM_ROUNDS = 9
_NUM_LOOKS = 3
_SECONDS_BETWEEN_LOOKS = 0.4


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
