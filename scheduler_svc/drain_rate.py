"""How soon a refused caller should try again, from how fast requests end."""

from collections import deque

_LEAST_MS, _USUAL_MS, _MOST_MS = 100, 1000, 30_000
_NUM_ENDS = 64


class DrainRate:
    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=_NUM_ENDS)

    def count_end(self, now: float) -> None:
        self._ends.append(now)

    def retry_ms(self, num_waiting: int, now: float) -> int:
        """Time in which half of the waiting requests are served, by the measured rate."""
        if len(self._ends) < 2 or now <= self._ends[0]:
            return _USUAL_MS
        seconds_each = (now - self._ends[0]) / len(self._ends)
        return int(min(_MOST_MS, max(_LEAST_MS, seconds_each * num_waiting / 2 * 1000)))
