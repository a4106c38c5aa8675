"""Whether anything moves: a worker has requests and for a long time nothing was given to it. Pure: time is an argument.

That never happens unless the scheduler is at fault; then somebody should start it again (health `liveness`). A worker
that does not finish its steps is another matter: it is given up (liveness.py).
"""

_LOOK_SECONDS = 1.0
STALL_SECONDS = 20.0


class Stall:
    """Looked at now and then; says when the answer changes."""

    def __init__(self, now: float) -> None:
        self.is_stalled = False
        self._moved_at = self._looked_at = now

    def is_due(self, now: float) -> bool:
        return now - self._looked_at >= _LOOK_SECONDS

    def changes(self, now: float, *, is_stuck: bool) -> bool:
        """Notes what was seen; whether the verdict is another one than before. Looks far apart prove nothing."""
        if not is_stuck or now - self._looked_at > 3 * _LOOK_SECONDS:
            self._moved_at = now
        self._looked_at = now
        before, self.is_stalled = self.is_stalled, now - self._moved_at >= STALL_SECONDS
        return self.is_stalled != before
