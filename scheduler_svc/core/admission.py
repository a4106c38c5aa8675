"""Which waiting request begins on a worker now, and with which cached pages.

In the queue's order: its head begins or nobody does, except that a request whose next page is being
computed by another one is parked until that page is there (claims.py), and others pass it. A request begins only if
all pages for the tokens it knows are there and not needed by prompts that have begun; so two half-computed prompts can
never block each other. A few pages stay for rows that run, so that beginning does not mean preempting a moment later.

Cost of a step: one look at the head while it does not fit, however many wait behind it.
"""

from collections.abc import Sequence

from scheduler_svc.core.fairness import charge_cached
from scheduler_svc.core.family import Start, fork, source_of
from scheduler_svc.core.plan import PlanDraft
from scheduler_svc.core.request import Order, Request, Residence, State
from scheduler_svc.core.supply import PageSupply
from scheduler_svc.core.tally import Tally
from scheduler_svc.core.types import Admitted, Event, PageHash
from scheduler_svc.core.worker import Worker

LOOK_AHEAD = 64
"""Most requests parked in one step."""


class Admission:
    """Admissions of one plan."""

    __slots__ = ("_draft", "_events", "_now", "_supply", "_tally", "_worker")

    def __init__(
        self, worker: Worker, draft: PlanDraft, supply: PageSupply, events: list[Event], tally: Tally, now: float
    ) -> None:
        self._worker = worker
        self._draft = draft
        self._supply = supply
        self._events = events
        self._tally = tally
        self._now = now

    def admit_next(self, before: Order | None) -> Residence | None:
        """Gives the next request that can begin a row; None if none can, or none that comes before ``before``."""
        worker, parked = self._worker, self._draft.parked
        while len(parked) < LOOK_AHEAD:
            request, num_rows = worker.queue.peek(), worker.num_rows_left
            if request is None:
                if num_rows > 0:
                    worker.rates.note_empty()
                return None
            if before is not None and request.order > before:
                return None
            if num_rows < 0 or (num_rows == 0 and not self._supply.can_make_row(request)):
                return None
            spare = worker.pool.num_available - self._num_promised() - min(len(worker.rows), worker.num_spare_pages)
            if request.pages_needed > spare and not self._can_match_more(request):
                if self._supply.make_room(request, request.pages_needed - spare):
                    continue
                return None
            limit = (request.num_tokens - 1) // worker.page_size
            names = request.names(limit, worker.page_size)[:limit]
            start = self._start(request, names)
            if self._park(request, names, start):
                continue
            self._remember(request, len(start.shared))
            missing = request.pages_needed - spare + worker.pool.num_cached_among(start.shared)
            if missing > 0:
                if self._supply.make_room(request, missing):
                    continue
                return None
            if num_rows == 0:
                # Who waited for the victim's pages is back in line and may come first now.
                self._supply.make_row(request)
                continue
            worker.queue.pop()
            return self._begin(request, start)
        return None

    def _num_promised(self) -> int:
        """Pages that prompts already begun will still need."""
        worker = self._worker
        if not worker.prefilling:
            return 0
        return sum(worker.num_pages_for(entry.num_known) - len(entry.pages) for entry in worker.prefilling)

    def _start(self, request: Request, names: Sequence[PageHash]) -> Start:
        """What is there of the request: cached pages of the longest known prefix that leaves at least one token to
        compute, or its prompt, if another output of the same request has it and that is more."""
        worker = self._worker
        cached = worker.pool.cache.match(names)
        matched = Start(cached, None, len(cached) * worker.page_size, is_fork=False)
        source = source_of(request) if request.family else None
        if source is None:
            return matched
        return max(fork(request, source, worker.page_size), matched, key=lambda start: start.num_tokens)

    def _can_match_more(self, request: Request) -> bool:
        """Whether the first page that was not cached at the last attempt is cached now, or it can fork now."""
        if request.missed_name is not None and self._worker.pool.cache.page_of(request.missed_name) is not None:
            return True
        return source_of(request) is not None

    def _remember(self, request: Request, num_cached: int) -> None:
        """Keeps what the attempt showed, so that the next one need not match again before it can succeed."""
        names = request.hashes
        request.pages_needed = self._worker.num_pages_for(request.num_tokens) - num_cached
        request.missed_name = names[num_cached] if names is not None and num_cached < len(names) else None

    def _park(self, request: Request, names: Sequence[PageHash], start: Start) -> bool:
        """Whether the request's prompt or next page is being computed; if so lets it wait for that."""
        worker = self._worker
        blocker = worker.claims.blocker([request.family_name], 0) if request.family else None
        if blocker is None:
            blocker = worker.claims.blocker(names, start.num_tokens // worker.page_size)
        if blocker is None:
            return False
        worker.queue.pop()
        worker.claims.park(request, blocker)
        self._draft.parked.append((request, worker.claims.claimer(blocker)))
        return True

    def _begin(self, request: Request, start: Start) -> Residence:
        worker = self._worker
        resumed = request.admitted_at is not None
        request.pages_needed = 0
        worker.rates.note_admission(request.backlog, self._now)
        worker.begin(request)
        residence = worker.seat(request, start.shared, start.num_tokens)
        if start.copied is not None:
            worker.pool.keep(start.copied, self._draft.record.step_id)
            residence.pages.append(worker.pool.take_one())
            self._draft.add_copy(start.copied, residence.pages[-1])
        request.move(State.RUNNING)
        charge_cached(residence)
        if not resumed:
            request.admitted_at = self._now
            request.num_cached_tokens = residence.num_computed
            self._tally.num_cached_tokens += 0 if start.is_fork else start.num_tokens
            if not start.is_fork:
                self._tally.hits.count(request, worker, len(start.shared))
        self._claim(request, len(residence.pages))
        self._draft.add_row(residence)
        self._events.append(
            Admitted(
                key=request.key,
                worker_id=worker.card.worker_id,
                num_cached_tokens=residence.num_computed,
                resumed=resumed,
            )
        )
        return residence

    def _claim(self, request: Request, num_pages: int) -> None:
        """Announces what of its prompt it will compute that others may want."""
        worker = self._worker
        num_prompt_pages = request.num_prompt // worker.page_size
        names = request.names(num_prompt_pages, worker.page_size)[num_pages:num_prompt_pages]
        claimed = worker.pool.cache.missing(names)
        if request.family and source_of(request) is None:
            claimed.append(request.family_name)
        worker.claims.claim(request, claimed)
