"""What the machine offers that defaults depend on: processors, and whether there is a GPU. Neither asks a driver."""

import os
from pathlib import Path

_MANY_CORES = 8
_FRONTS_OF_A_GPU = 4


def usable_cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Processors that this process may use, and its control group (``quota``, of version 2) has time for."""
    cores = len(os.sched_getaffinity(0))
    try:
        allowed, period = quota.read_text().split()
        return cores if allowed == "max" else min(cores, int(allowed) // int(period))
    except (OSError, ValueError):
        return cores


def has_gpu(devices: Path = Path("/dev")) -> bool:
    """Whether the kernel shows a GPU that workers can compute on."""
    return any(devices.glob("nvidia[0-9]*")) or (devices / "kfd").exists()


def has_cores_to_spare() -> bool:
    """Whether this is a machine whose GPU should wait for nothing, with more processors than it needs."""
    return usable_cores() >= _MANY_CORES and has_gpu()


def default_fronts() -> int:
    """Front processes: as many as a fast worker beside them needs."""
    return _FRONTS_OF_A_GPU if has_cores_to_spare() else 1
