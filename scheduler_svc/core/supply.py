"""Pages for rows that cannot go on without one, and who has to give way for it.

First what is free or cached, then what steps in flight will free (the row waits for it), and only then a victim: the
request of the lowest priority that came last, which may be the asking one itself. It keeps its tokens and waits again
at its old place.

Rows ask in their order, so a victim is never older than who asks; the oldest request always goes on.
"""

from scheduler_svc.core.plan import PlanDraft
from scheduler_svc.core.request import Order, Residence, State
from scheduler_svc.core.tally import Tally
from scheduler_svc.core.types import Event, Preempted
from scheduler_svc.core.worker import Worker


class PageSupply:
    """Gives pages to rows while one plan is made."""

    __slots__ = ("_coming", "_draft", "_events", "_tally", "_worker", "num_short")

    def __init__(self, worker: Worker, draft: PlanDraft, events: list[Event], tally: Tally) -> None:
        self._worker = worker
        self._draft = draft
        self._events = events
        self._tally = tally
        self._coming: int | None = None
        self.num_short = 0
        """Rows that wait for a page of a step in flight."""

    def obtain(self, residence: Residence) -> bool:
        """A page for a row; False if it has to wait for one, or was preempted itself."""
        pool = self._worker.pool
        while not pool.num_available:
            if self._coming is None:
                self._coming = pool.num_coming()
            if self.num_short < self._coming:
                self.num_short += 1
                return False
            victim = max(self._worker.rows.values(), key=_order)
            self._preempt(victim)
            if victim is residence:
                return False
        self._draft.append_page(residence, pool.take_one())
        return True

    def _preempt(self, residence: Residence) -> None:
        request = residence.request
        self._draft.forget(residence)
        self._worker.end_claims(request)
        if self._worker.vacate(residence):
            request.move(State.LANDING)
        else:
            request.move(State.WAITING)
            self._worker.queue.push(request)
        request.num_preemptions += 1
        self._tally.num_preemptions += 1
        self._coming = None
        self._events.append(Preempted(key=request.key, reason="no pages"))


def _order(residence: Residence) -> Order:
    return residence.request.order
