"""Submissions whose id a live request has. They wait a moment before they are refused: who hangs up and asks again at
once, maybe by another connection, may be heard before the hanging up is.

Invariant: each is handed out once, by ``take`` or by ``due``, or its front was lost.
"""

from scheduler_svc.messages import Submission
from scheduler_svc.requests import Requests

HOLD_SECONDS = 0.25
MAX_HELD = 256
"""Each of them is looked at in every round."""


class Duplicates:
    """``hold`` keeps one; ``due`` hands out those that wait no longer."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._held: dict[tuple[int, int], tuple[float, Submission]] = {}
        """By front and the front's key; the oldest first."""

    def hold(self, front_id: int, submission: Submission, now: float) -> bool:
        """Keeps a submission for a while; False if there are too many."""
        if len(self._held) >= MAX_HELD:
            return False
        self._held[front_id, submission.key] = (now + HOLD_SECONDS, submission)
        return True

    def take(self, front_id: int, front_key: int) -> Submission | None:
        """A submission that is to wait no longer; None if it does not wait."""
        held = self._held.pop((front_id, front_key), None)
        return None if held is None else held[1]

    def lose_front(self, front_id: int) -> None:
        """Nobody hears any more what becomes of its submissions."""
        for name in [name for name in self._held if name[0] == front_id]:
            del self._held[name]

    def due(self, now: float) -> list[tuple[int, Submission]]:
        """Submissions, each with its front, whose ids are free by now, and those that have waited long enough."""
        found = [
            (name, submission)
            for name, (until, submission) in self._held.items()
            if until <= now or self._requests.by_id(submission.tenant, submission.request_id) is None
        ]
        for name, _ in found:
            del self._held[name]
        return [(front_id, submission) for (front_id, _), submission in found]

    def next_expiry(self) -> float | None:
        """When the first of them will have waited long enough."""
        return next(iter(self._held.values()))[0] if self._held else None
