"""Whether a loop without work looks again at once or sleeps.

To wake a process takes the machine tens of microseconds, and what it does then, its caches cold, two to three times as
long as what it does hot. So a loop that has just had work looks for more for a while, where there are processors enough
that nobody needs this one (machine.py).
"""

POLLING_SECONDS = 0.02


class Polling:
    """Of one loop. ``seconds``: how long it looks after it had work; 0: never."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = 0.0

    def had_work(self, now: float) -> None:
        self._until = now + self._seconds

    def looks_again(self, now: float) -> bool:
        """Whether to look again at once."""
        return now < self._until
