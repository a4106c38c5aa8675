"""How many bytes the page pool may take."""

from pathlib import Path

import torch

CPU_SHARE = 0.25
"""Share of the memory available to the process that the pool may take on a CPU."""
CPU_MAX_BYTES = 8 << 30
GPU_RESERVE_BYTES = 256 << 20
"""Left free on a GPU beside the pool: allocator fragmentation and library workspaces."""
_CGROUP_V2, _CGROUP_V1 = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")
_UNLIMITED = 1 << 60


def cpu_pool_bytes() -> int:
    """A quarter of what is available, at most 8 GiB."""
    return min(int(available_memory() * CPU_SHARE), CPU_MAX_BYTES)


def available_memory() -> int:
    """Bytes this process may still take: the machine's, or less where a control group limits it."""
    available = _UNLIMITED
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    for limit, used in (
        (_CGROUP_V2 / "memory.max", _CGROUP_V2 / "memory.current"),
        (_CGROUP_V1 / "memory.limit_in_bytes", _CGROUP_V1 / "memory.usage_in_bytes"),
    ):
        bound = _read_int(limit)
        if bound is not None and bound < _UNLIMITED:
            available = min(available, bound - (_read_int(used) or 0))
    return max(0, available)


def _read_int(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such control group, or "max"
        return None


def gpu_pool_bytes(device: torch.device, utilization: float, free_before_bytes: int) -> int:
    """What is left of ``utilization`` x total for this process once weights and activations are counted.

    ``free_before_bytes`` is the free memory when the process began; what others took or gave back since then does not
    count as ours, but the pool never exceeds what is free now. Call after a run of the largest step.
    """
    free, total = torch.cuda.mem_get_info(device)
    torch_peak = torch.cuda.max_memory_allocated(device)
    reserved = torch.cuda.memory_reserved(device)
    outside_torch = max(0, min(free_before_bytes - free - reserved, 2 << 30))
    budget = int(total * utilization) - torch_peak - outside_torch
    free_for_pool = free + reserved - torch_peak
    return min(budget, free_for_pool) - GPU_RESERVE_BYTES
