"""How soon a refused caller should try again, from how fast requests leave what is full.

A full queue is left by the outputs that begin for the first time and by those that end before; a tenant's share of
requests by those that end. What is preempted comes back by itself and is not counted. Only what left since somebody
was in the way counts: a quiet hour says nothing of how fast a queue is left.
"""

from collections import deque

_LEAST_MS, _USUAL_MS, _MOST_MS = 100, 1000, 30_000
_NUM_LEFT = 64


class DrainRate:
    """Of one thing that can be full."""

    def __init__(self) -> None:
        self._left: deque[float] = deque(maxlen=_NUM_LEFT)

    def count(self, now: float) -> None:
        self._left.append(now)

    def forget(self) -> None:
        """Nobody is in the way of the next one."""
        self._left.clear()

    def retry_ms(self, num_waiting: int, now: float) -> int:
        """Time in which half of the waiting requests are served, by the measured rate."""
        if len(self._left) < 2 or now <= self._left[0]:
            return _USUAL_MS
        seconds_each = (now - self._left[0]) / len(self._left)
        return int(min(_MOST_MS, max(_LEAST_MS, seconds_each * num_waiting / 2 * 1000)))
