"""One worker as the core sees it: its pages, rows, queue and steps in flight.

Owns every fact about what runs there; ``seat`` and ``vacate`` are the only ways in and out of a row. Knows no policy:
what to run is the batcher's decision, where to wait is placement's.
"""

from bisect import insort
from collections import deque
from heapq import heappop, heappush
from itertools import chain

from scheduler_svc.core.claims import Claims
from scheduler_svc.core.decoding import Decoding
from scheduler_svc.core.inventory import in_order
from scheduler_svc.core.page_pool import PagePool
from scheduler_svc.core.rates import Rates
from scheduler_svc.core.request import Lane, Order, Request, Residence
from scheduler_svc.core.shared_prefixes import SharedPrefixes
from scheduler_svc.core.step import StepRecord
from scheduler_svc.core.step_pace import StepPace
from scheduler_svc.core.stop_tokens import StopTokens
from scheduler_svc.core.token_ring import TokenRing
from scheduler_svc.core.types import CoreConfig, LiveLimits, PageCounts, PageId, Row, StepId, WorkerCard
from scheduler_svc.core.waiting import WaitingQueue


class Worker:
    """Books of one worker, from ``add_worker`` to ``remove_worker``."""

    __slots__ = (
        "backlog",
        "capacity",
        "card",
        "claims",
        "decoding",
        "done_at",
        "done_step",
        "free_rows",
        "in_flight",
        "load",
        "max_running",
        "max_tokens_per_step",
        "next_step",
        "num_placed",
        "num_rows",
        "num_slots",
        "num_spare_pages",
        "num_steps",
        "pace",
        "page_size",
        "pool",
        "prefilling",
        "prefixes",
        "priorities",
        "queue",
        "rates",
        "released",
        "ring",
        "rows",
        "stops",
    )

    def __init__(self, card: WorkerCard, config: CoreConfig) -> None:
        self.card = card
        self.page_size = card.page_size
        self.pool = PagePool(card.num_pages)
        self.pool.adopt(in_order(card.inventory, card.num_pages) if config.enable_prefix_caching else [])
        self.claims = Claims()
        self.queue = WaitingQueue()
        self.decoding = Decoding()
        self.pace = StepPace()
        self.prefixes = SharedPrefixes()
        self.rates = Rates()
        self.rows: dict[Row, Residence] = {}
        """Who runs, by row."""
        self.prefilling: list[Residence] = []
        """Of them those that have known tokens to compute, first come first."""
        self.priorities: dict[int, int] = {}
        """How many of them have a priority; no zeros."""
        self.num_rows = min(card.max_num_seqs, config.max_num_seqs)
        self.free_rows = [Row(row) for row in range(self.num_rows)]
        """A heap."""
        self.released: list[Row] = []
        """Rows whose end the worker has still to be told."""
        self.in_flight: deque[StepRecord] = deque()
        self.next_step = card.first_step_id
        self.done_step = StepId(card.first_step_id - 1)
        """The last step whose result was applied."""
        self.done_at = 0.0
        """When that was."""
        self.ring = TokenRing(self.num_rows, self.page_size)
        self.stops = StopTokens()
        self.num_steps = 0
        self.load = 0
        """Tokens that the requests placed here were expected to compute, when they were placed."""
        self.backlog = 0
        """Of them those of requests that have not begun."""
        self.num_placed = 0
        self.num_slots = card.num_pages * card.page_size
        self.max_running = self.num_rows
        """Most rows that may be in use; fewer than there are once a limit was lowered."""
        self.max_tokens_per_step = min(card.max_num_batched_tokens, config.max_num_batched_tokens)
        limit = card.max_model_len if config.max_model_len is None else min(card.max_model_len, config.max_model_len)
        self.num_spare_pages = int(card.num_pages * config.page_watermark)
        """Most pages kept for rows that run."""
        self.capacity = min(limit, self.num_slots)
        """Most tokens of one request, prompt and output."""

    def limit(self, limits: LiveLimits) -> None:
        """From now on no more begins, and no larger step, than these let. What runs goes on."""
        self.max_running = min(self.num_rows, limits.max_num_seqs)
        self.max_tokens_per_step = min(self.card.max_num_batched_tokens, limits.max_num_batched_tokens)

    @property
    def num_rows_left(self) -> int:
        """How many more requests may run now; negative after a limit was lowered below what runs."""
        return self.max_running - len(self.rows)

    def num_pages_for(self, num_tokens: int) -> int:
        """Pages that so many tokens fill, the last one perhaps in part."""
        return -(-num_tokens // self.page_size)

    def begin(self, request: Request) -> None:
        """What a request has to compute is backlog no more."""
        self.backlog -= request.backlog
        request.backlog = 0

    def is_stuck(self) -> bool:
        """Requests wait that will not begin soon: there is no row, their pages are not there, or others come first."""
        head = self.queue.peek()
        if head is None:
            return False
        return self.num_rows_left <= 0 or head.pages_needed > 0 or self.backlog > 2 * self.max_tokens_per_step

    def seat(self, request: Request, pages: list[PageId], num_computed: int) -> Residence:
        """Gives a request a row, and the pages it begins with, which hold its first ``num_computed`` tokens."""
        self.pool.share(pages)
        most_computed = min(request.num_prompt + request.new.max_tokens, self.capacity) - 1
        residence = Residence(request, heappop(self.free_rows), pages, num_computed, most_computed)
        request.residence, request.row = residence, residence.row
        self.rows[residence.row] = residence
        self.priorities[request.priority] = self.priorities.get(request.priority, 0) + 1
        insort(self.prefilling, residence, key=_order)
        return residence

    def vacate(self, residence: Residence) -> bool:
        """Takes row and pages from a running request. True: tokens of it are still in flight.

        Its claims stay: what it has computed is published with the steps in flight. Unless they are not waited for, see
        ``end_claims``.
        """
        request = residence.request
        if residence.is_prefilling:
            self.prefilling.remove(residence)
        self._close(residence)
        self.decoding.leave(residence, StepId(self.next_step - 1))
        self.prefixes.leave(residence.row)
        del self.rows[residence.row]
        self.priorities[request.priority] -= 1
        if not self.priorities[request.priority]:
            del self.priorities[request.priority]
        heappush(self.free_rows, residence.row)
        self.released.append(residence.row)
        record = self._record(residence.last_step)
        after = None if record is None else record.step_id
        self.pool.release(residence.pages, request.hashes or (), after)
        request.num_seen = max(request.num_seen, residence.num_computed)
        request.num_sampled = residence.num_sampled
        request.residence = None
        if record is None or residence.is_prefilling:
            return False
        record.landing.append(request)
        return True

    def sit_out(self, residence: Residence) -> None:
        """A decoding row pauses from the step on that is planned next."""
        self._close(residence)
        self.decoding.sit_out(residence, StepId(self.next_step - 1))

    def collect(self, request: Request) -> None:
        """Completes a request's output by the tokens of all steps that are done."""
        if request.num_closing:
            for record in self.in_flight:
                for lane in record.closing:
                    if lane.request is request:
                        self.take(lane)
        if request.residence is not None and request.residence.lane is not None:
            self.take(request.residence.lane)

    def take(self, lane: Lane) -> None:
        """Gives a request the tokens of a lane that it has not got yet, if it still accepts any.

        The lane sampled in the last step done.
        """
        request = lane.request
        if not request.accepts_tokens:
            return
        output = request.output
        first_step = len(output) - lane.offset
        if first_step <= self.done_step:
            output.extend(self.ring.take(lane.row, first_step, self.done_step))
            request.last_token_at = self.done_at

    def drop(self, request: Request) -> None:
        """Nobody wants what steps in flight sample for a request."""
        for record in self.in_flight:
            record.drop(request)

    def forget_steps(self) -> None:
        """The results of steps in flight will never come."""
        while self.in_flight:
            for lane in self.in_flight.popleft().closing:
                lane.request.num_closing -= 1

    def note_done(self, now: float) -> None:
        """The oldest step in flight has come back."""
        record = self.in_flight[0]
        self.done_step, self.done_at = record.step_id, now
        self.rates.note_done(sum(chunk[1] for chunk in record.chunks), self.max_tokens_per_step, now)

    def end_claims(self, request: Request) -> None:
        """A request will not publish what it claimed, or not for sure: whoever waits for it goes back to the queue."""
        for parked in self.claims.end_all(request):
            if parked:
                self.queue.merge(parked)

    def drain(self) -> list[Request]:
        """Takes out all requests that wait here, parked ones included."""
        for parked in self.claims.drain():
            self.queue.merge(parked)
        return self.queue.drain()

    def is_idle(self) -> bool:
        """Nothing in flight, nothing running, nothing waiting."""
        return not self.in_flight and not self.rows and self.queue.peek() is None

    def counts(self) -> PageCounts:
        """A snapshot."""
        pool = self.pool
        return PageCounts(
            num_pages=pool.num_pages,
            num_free=pool.num_free,
            num_held=pool.num_pages - pool.num_available,
            num_cached=pool.num_cached,
            num_pinned=pool.num_pinned(),
            num_dead_slots=self.num_dead_slots(),
            num_running=len(self.rows),
            num_steps=self.num_steps,
        )

    def num_dead_slots(self) -> int:
        """Slots of held pages that hold no token of a running request: behind its last token, or in pages that only
        wait for a step. Costs the number of rows."""
        step_id, size = StepId(self.next_step), self.page_size
        behind = sum(len(entry.pages) * size - entry.computed_before(step_id) for entry in self.rows.values())
        return behind + self.pool.num_coming() * size

    def landing(self) -> "chain[Request]":
        """Requests without a row whose tokens are in flight; ended ones may be among them."""
        return chain.from_iterable(record.landing for record in self.in_flight)

    def _close(self, residence: Residence) -> None:
        """A lane ends: the tokens that are here are taken, the others when its last step is done."""
        if residence.lane is None:
            return
        self.take(residence.lane)
        if self.in_flight:
            self.in_flight[-1].closing.append(residence.lane)
            residence.request.num_closing += 1

    def _record(self, step_id: StepId) -> StepRecord | None:
        """The record of a step, if it is in flight."""
        if not self.in_flight:
            return None
        index = step_id - self.in_flight[0].step_id
        return self.in_flight[index] if 0 <= index < len(self.in_flight) else None


def _order(residence: Residence) -> Order:
    return residence.request.order
