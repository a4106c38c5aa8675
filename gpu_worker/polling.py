"""Whether a loop without work looks again at once or sleeps.

To wake a thread takes the machine tens of microseconds, and what it does then, its caches cold, twice its time. So a
loop that has just had work looks for more for a while, where there are processors enough that nobody needs this one.
"""

import os
from pathlib import Path

POLLING_SECONDS = 0.02
_MANY_CORES = 8


def usable_cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Processors that this process may use, and its control group (``quota``, of version 2) has time for."""
    cores = len(os.sched_getaffinity(0))
    try:
        allowed, period = quota.read_text().split()
        return cores if allowed == "max" else min(cores, int(allowed) // int(period))
    except (OSError, ValueError):
        return cores


class Polling:
    """Of one loop. ``seconds``: how long it looks after it had work; 0: never."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = 0.0

    @classmethod
    def of_machine(cls) -> "Polling":
        """As long as this machine's processors allow."""
        return cls(POLLING_SECONDS if usable_cores() >= _MANY_CORES else 0.0)

    def had_work(self, now: float) -> None:
        self._until = now + self._seconds

    def looks_again(self, now: float) -> bool:
        """Whether to look again at once."""
        return now < self._until
