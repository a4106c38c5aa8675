"""When a crashed worker is started again.

A crash is quick if the worker lived less than ``quick_seconds``. The first restart is immediate (requests wait only
a few seconds for a worker); each further quick crash doubles the wait; the ``max_quick_crashes``-th in a row ends
it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Restarts:
    """The crashes of one worker so far."""

    max_quick_crashes: int = 5
    quick_seconds: float = 30.0
    first_backoff_seconds: float = 0.5
    num_quick_crashes: int = 0

    def delay_after(self, lived_seconds: float) -> float | None:
        """Seconds to wait before the next start after one more crash; None: give it up."""
        if lived_seconds >= self.quick_seconds:
            self.num_quick_crashes = 0
            return 0.0
        self.num_quick_crashes += 1
        if self.num_quick_crashes >= self.max_quick_crashes:
            return None
        if self.num_quick_crashes == 1:
            return 0.0
        return self.first_backoff_seconds * 2.0 ** (self.num_quick_crashes - 2)
