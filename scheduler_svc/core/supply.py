"""Pages for rows that cannot go on without one, and who has to give way for it.

First what is free or cached, then what steps in flight will free (the row waits for it), and only then a victim among
those that come no earlier than who asks, which may be the asking one itself: of the lowest priority, and of these the
one that loses the fewest pages of computed tokens, those that stay cached not counted; of equals the last. It keeps its
tokens and waits again at its old place. If nobody else runs, pins give way instead.

A waiting request of a higher priority takes pages and a row from running ones of a lower one of its tenant
(``make_room``, ``make_row``), which are chosen in the same way.

A victim never comes before who asks, so the first of all requests that run is never a victim and always goes on.
"""

from functools import partial

from scheduler_svc.core.plan import PlanDraft
from scheduler_svc.core.request import Order, Request, Residence, State
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
            if len(self._worker.rows) == 1 and pool.drop_pin():
                continue
            asks = residence.request.order
            behind = (other for other in self._worker.rows.values() if other.request.order >= asks)
            victim = max(behind, key=self._readiness)
            self._preempt(victim, residence.request, "no pages")
            if victim is residence:
                return False
        self._draft.append_page(residence, pool.take_one())
        return True

    def make_room(self, request: Request, num_missing: int) -> bool:
        """Preempts what has a lower priority than a waiting request of the same tenant, if that brings the pages that
        it is short of. Where nobody runs pins give way."""
        worker = self._worker
        if not worker.rows and not worker.pool.num_coming():
            return worker.pool.drop_pin()
        lower = sorted(self._lower(request), key=self._readiness, reverse=True)
        num_missing -= worker.pool.num_coming()
        for count, residence in enumerate(lower if num_missing > 0 else (), 1):
            num_missing -= self._num_freed(residence)
            if num_missing <= 0:
                for victim in lower[:count]:
                    self._preempt(victim, request, "a higher priority needs its pages")
                return True
        return False

    def can_make_row(self, request: Request) -> bool:
        """Whether one of a lower priority would give its row to a waiting request."""
        return bool(self._lower(request))

    def make_row(self, request: Request) -> None:
        """Preempts one of a lower priority for its row; there must be one."""
        self._preempt(max(self._lower(request), key=self._readiness), request, "a higher priority needs its row")

    def _lower(self, request: Request) -> list[Residence]:
        """Who gives way to a waiting request of the tenant; nobody who was passed for so long that it comes before it.
        Costs one look as long as nobody of a lower priority runs."""
        worker = self._worker
        if not worker.priorities or min(worker.priorities) >= request.priority:
            return []
        return list(filter(partial(self._gives_way, request), worker.rows.values()))

    def _readiness(self, residence: Residence) -> tuple[int, int, Order]:
        """The greatest gives way first."""
        request = residence.request
        return -request.priority, -self._num_lost_pages(residence), request.order

    def _num_lost_pages(self, residence: Residence) -> int:
        """Pages of tokens that would be computed again: those behind the last one that stays cached."""
        worker = self._worker
        num_pages = worker.num_pages_for(residence.computed_before(self._draft.record.step_id))
        if residence.request.hashes is None:
            return num_pages
        num_kept = num_pages
        while num_kept and not worker.pool.cache.is_named(residence.pages[num_kept - 1]):
            num_kept -= 1
        return num_pages - num_kept

    def _gives_way(self, request: Request, residence: Residence) -> bool:
        other, step_id = residence.request, self._draft.record.step_id
        is_lower = other.priority < request.priority and other.account is request.account
        return (
            is_lower and other.order > request.order and (residence.lane is not None or residence.last_step != step_id)
        )

    def _num_freed(self, residence: Residence) -> int:
        """Pages that nobody else holds, and those it would still need for its prompt."""
        pool, num_prompt_pages = self._worker.pool, self._worker.num_pages_for(residence.num_known)
        num_own = sum(1 for page in residence.pages if pool.refs[page] == 1)
        return num_own + max(0, num_prompt_pages - len(residence.pages))

    def _preempt(self, residence: Residence, asking: Request, reason: str) -> None:
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
        made_room_for = None if asking is request else asking.key
        self._events.append(Preempted(key=request.key, reason=reason, made_room_for=made_room_for))
