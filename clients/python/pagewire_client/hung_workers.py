"""Which worker processes live and do nothing: the scheduler has lost them and they do not come back.

A worker that is only slow, or was stopped for a while, joins again within a second or so. One whose device never
answers, or that stays stopped, does not, and nobody else would end it. A process that the scheduler never named is left
alone: it still loads its model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .admin import AdminClient
from .errors import ServerError

_ANSWER_SECONDS = 1.0


class HungWorkers:
    """``ask`` gives the process ids of the workers that have joined, None if the scheduler does not answer."""

    def __init__(
        self, ask: Callable[[], set[int] | None], patience_seconds: float = 15.0, ask_seconds: float = 5.0
    ) -> None:
        self._ask = ask
        self._patience_seconds = patience_seconds
        self._ask_seconds = ask_seconds
        self.joined: set[int] = set()
        """All that ever did."""
        self._missing_since: dict[int, float] = {}
        self._next_at = 0.0

    def find(self, pids: Iterable[int], now: float) -> list[int]:
        """Of these living workers those that hang. Asks at most every ``ask_seconds``."""
        if now < self._next_at:
            return []
        self._next_at = now + self._ask_seconds
        known = self._ask()
        if known is None:
            self._missing_since.clear()
            return []
        self.joined |= known
        missing = [pid for pid in pids if pid in self.joined and pid not in known]
        self._missing_since = {pid: self._missing_since.get(pid, now) for pid in missing}
        return [pid for pid, since in self._missing_since.items() if now - since >= self._patience_seconds]


def joined_pids(internal_target: str) -> set[int] | None:
    """Process ids of the workers that have joined; None if nobody answers."""
    try:
        with AdminClient(internal_target) as client:
            return {worker.pid for worker in client.workers(timeout=_ANSWER_SECONDS)}
    except ServerError:
        return None
