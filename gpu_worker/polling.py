"""Whether a loop without work looks again at once or sleeps.

To wake a thread takes the machine tens of microseconds, and what it does then, its caches cold, twice its time. So a
loop that has just had work looks for more for a while, where there are processors enough that nobody needs this one.
"""

import os

POLLING_SECONDS = 0.02
_MANY_CORES = 8


class Polling:
    """Of one loop. ``seconds``: how long it looks after it had work; 0: never."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = 0.0

    @classmethod
    def of_machine(cls) -> "Polling":
        """As long as this machine's processors allow."""
        return cls(POLLING_SECONDS if len(os.sched_getaffinity(0)) >= _MANY_CORES else 0.0)

    def had_work(self, now: float) -> None:
        self._until = now + self._seconds

    def looks_again(self, now: float) -> bool:
        """Whether to look again at once."""
        return now < self._until
