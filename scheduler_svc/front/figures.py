"""What a front counts that the scheduler cannot see: requests refused before it heard of them, and stalled writes.

Totals since the front's start; the link tells them now and then. Reasons are those of ErrorInfo, a fixed list.
"""

from typing import Any

from pagewire.internal.v1 import front_pb2

from scheduler_svc.columns import longs
from scheduler_svc.front.errors import FrontError
from scheduler_svc.histogram import STALL_SECONDS, Histogram

LEAST_STALL_SECONDS = 0.01
"""A write that took less did not wait for its reader."""
CANCELLED = (1, "CANCELLED")
"""Code and reason of a request whose caller left before it was submitted."""


class Figures:
    """Counts of one front."""

    def __init__(self) -> None:
        self._refused: dict[tuple[int, str], int] = {}
        self._stalls = Histogram(STALL_SECONDS)
        self._has_changed = False

    def refuse(self, error: FrontError) -> None:
        """A request ends before the scheduler heard of it."""
        code: tuple[int, str] = error.code.value
        self._count(code[0], error.reason)

    def leave(self) -> None:
        """So it does because its caller went away."""
        self._count(*CANCELLED)

    def stalled(self, seconds: float) -> None:
        """A write waited for its reader."""
        self._stalls.observe(seconds)
        self._has_changed = True

    def take(self) -> Any:
        """A FrontFigures message if anything changed since the last call, else None."""
        if not self._has_changed:
            return None
        self._has_changed = False
        return front_pb2.FrontFigures(
            refused=[
                front_pb2.RefusedRequests(code=code, reason=reason, count=count)
                for (code, reason), count in self._refused.items()
            ],
            stall_counts=longs(self._stalls.counts),
            stall_seconds=self._stalls.total,
        )

    def _count(self, code: int, reason: str) -> None:
        self._refused[code, reason] = self._refused.get((code, reason), 0) + 1
        self._has_changed = True
