"""What was decided about each request, and why: kept while it lives, and for the last ones that ended.

Only decisions are kept (placed, waits for what, admitted with how much cached, chunks, preempted for whom, held,
ended), never single decode steps: a step in which all rows just decode costs nothing here. A request keeps its first
and its newest decisions, and says how many it forgot between them; of the ended ones the oldest are forgotten as a
whole. So the size is bounded by the live requests and two constants. Nothing is decided from what is recorded.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from enum import Enum

from scheduler_svc.core.admission import LOOK_AHEAD
from scheduler_svc.core.plan import PlanDraft
from scheduler_svc.core.request import Request
from scheduler_svc.core.types import Admitted, BatchPlan, Ended, Event, Held, Preempted, PrefillProgress, RequestKey
from scheduler_svc.core.worker import Worker

MOST_OF_ENDED = 65_536
"""Decisions kept of requests that have ended, all together."""
MOST_OF_ONE = 128
"""Decisions kept of one request."""
_FIRST_OF_ONE = 32

Detail = int | str | None


class What(Enum):
    """What was decided, with the meaning of the decision's two details."""

    SUBMITTED = "submitted"
    """Prompt tokens; requests that waited already."""
    PLACED = "placed"
    """Worker it waits for, None: no worker can hold it."""
    NO_ROW = "waits: no row"
    NO_PAGES = "waits: no pages"
    """Pages it needs; pages available."""
    NO_BUDGET = "waits: no budget"
    """Most tokens of a step."""
    PAGES_COMING = "waits: pages are coming"
    """Running requests that wait for a page."""
    PAGE_CLAIMED = "waits: page claimed"
    """Key of the request that computes the page."""
    TOO_MANY_LOOKED_AT = "waits: too many looked at"
    STANDS = "stands"
    """Requests of its tenant that come before it; requests of other tenants that wait there. Never recorded: it is so
    when it is asked."""
    BEHIND = "behind"
    """Key of the first in the queue, whose last decision follows."""
    ADMITTED = "admitted"
    """Cached tokens; worker."""
    RESUMED = "resumed"
    """Cached tokens; worker."""
    COMPUTES = "computes"
    """Tokens of the step; tokens computed after it."""
    FIRST_TOKEN = "first token"
    PREEMPTED = "preempted"
    """Reason; key of the request it was done for, None: itself or nobody."""
    HELD = "held"
    """Output tokens."""
    ENDED = "ended"
    """Reason; output tokens."""
    FORGOT = "forgot"
    """Decisions between the one before and the one after."""


class Decision:
    """One decision: when, in which step (0: none), what, and up to two details. Never changed."""

    __slots__ = ("at", "first", "second", "step_id", "what")

    def __init__(self, at: float, step_id: int, what: What, first: Detail = None, second: Detail = None) -> None:
        self.at = at
        self.step_id = step_id
        self.what = what
        self.first = first
        self.second = second


class _Record:
    __slots__ = ("decisions", "has_token", "num_forgotten")

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self.num_forgotten = 0
        self.has_token = False

    def add(self, decision: Decision) -> None:
        if len(self.decisions) == MOST_OF_ONE:
            del self.decisions[_FIRST_OF_ONE]
            self.num_forgotten += 1
        self.decisions.append(decision)


class FlightRecorder:
    """The decisions of one core."""

    __slots__ = ("_ended", "_live", "_num_ended")

    def __init__(self) -> None:
        self._live: dict[RequestKey, _Record] = {}
        self._ended: OrderedDict[RequestKey, _Record] = OrderedDict()
        self._num_ended = 0  # decisions in ``_ended``

    def decisions(self, key: RequestKey) -> Sequence[Decision]:
        """What is known of a request, in order; nothing if it is not known any more."""
        record = self._live.get(key) or self._ended.get(key)
        if record is None:
            return ()
        if not record.num_forgotten:
            return tuple(record.decisions)
        gap = Decision(record.decisions[_FIRST_OF_ONE].at, 0, What.FORGOT, record.num_forgotten)
        return (*record.decisions[:_FIRST_OF_ONE], gap, *record.decisions[_FIRST_OF_ONE:])

    def standing(self, request: Request, worker: Worker, now: float) -> Sequence[Decision]:
        """Where a request stands that waits behind others, and what the first of them waits for; nothing if it is the
        first itself, or waits for a page. Costs the number of those that wait there."""
        head, before = worker.queue.peek(), worker.queue.before(request)
        if head is None or head is request or before is None:
            return ()
        why = self._live[head.key].decisions[-1]
        return (
            Decision(now, 0, What.STANDS, *before),
            Decision(now, 0, What.BEHIND, head.key),
            Decision(now, why.step_id, why.what, why.first, why.second),
        )

    def note_submitted(self, request: Request, num_waiting: int, now: float) -> None:
        """A request was taken; ``num_waiting`` others waited before it."""
        record = self._live[request.key] = _Record()
        record.add(Decision(now, 0, What.SUBMITTED, request.num_prompt, num_waiting))

    def note_placed(self, request: Request, is_placed: bool, now: float) -> None:
        """A waiting request has its worker, or none can hold it."""
        self._live[request.key].add(Decision(now, 0, What.PLACED, request.worker_id if is_placed else None))

    def note_plan(
        self, worker: Worker, draft: PlanDraft, plan: BatchPlan | None, num_short: int, events: list[Event], now: float
    ) -> None:
        """A step was planned, or nothing was found to do. ``num_short``: running requests that wait for a page."""
        step_id, live = draft.record.step_id, self._live
        if events:
            self.note_events(events, now, step_id)
        for residence, num_tokens, num_computed in draft.record.chunks:
            live[residence.request.key].add(Decision(now, step_id, What.COMPUTES, num_tokens, num_computed))
        for request, claimer in draft.parked:
            self._wait(request, Decision(now, step_id, What.PAGE_CLAIMED, claimer.key))
        head = worker.queue.peek()
        if head is not None:
            self._wait(head, _why_it_waits(head, worker, draft, plan, num_short, now))

    def note_events(self, events: Iterable[Event], now: float, step_id: int = 0) -> None:
        """What the core tells."""
        for event in events:
            record = self._live[event.key]
            if isinstance(event, PrefillProgress):
                if event.num_computed_tokens == event.num_prompt_tokens and not record.has_token:
                    record.has_token = True
                    record.add(Decision(now, step_id, What.FIRST_TOKEN))
                continue
            record.add(_decision(event, now, step_id))
            if isinstance(event, Ended):
                self._end(event.key, record)

    def _wait(self, request: Request, decision: Decision) -> None:
        """Notes why a request waits, unless that is known already."""
        record = self._live[request.key]
        last = record.decisions[-1]
        if last.what is not decision.what or (last.what is What.PAGE_CLAIMED and last.first != decision.first):
            record.add(decision)

    def _end(self, key: RequestKey, record: _Record) -> None:
        del self._live[key]
        self._ended[key] = record
        self._num_ended += len(record.decisions)
        while self._num_ended > MOST_OF_ENDED:
            _, oldest = self._ended.popitem(last=False)
            self._num_ended -= len(oldest.decisions)


def _decision(event: Admitted | Preempted | Held | Ended, now: float, step_id: int) -> Decision:
    if isinstance(event, Admitted):
        what = What.RESUMED if event.resumed else What.ADMITTED
        return Decision(now, step_id, what, event.num_cached_tokens, event.worker_id)
    if isinstance(event, Preempted):
        return Decision(now, step_id, What.PREEMPTED, event.reason, event.made_room_for)
    if isinstance(event, Held):
        return Decision(now, step_id, What.HELD, event.num_output_tokens)
    return Decision(now, step_id, What.ENDED, event.reason.value, event.num_output_tokens)


def _why_it_waits(
    head: Request, worker: Worker, draft: PlanDraft, plan: BatchPlan | None, num_short: int, now: float
) -> Decision:
    """Why the request whose turn it is did not begin in the step that was just planned."""
    step_id = draft.record.step_id
    if worker.num_rows_left <= 0:
        return Decision(now, step_id, What.NO_ROW)
    if plan is not None and plan.num_scheduled_tokens >= worker.max_tokens_per_step:
        return Decision(now, step_id, What.NO_BUDGET, worker.max_tokens_per_step)
    if num_short:
        return Decision(now, step_id, What.PAGES_COMING, num_short)
    if len(draft.parked) >= LOOK_AHEAD:
        return Decision(now, step_id, What.TOO_MANY_LOOKED_AT)
    return Decision(now, step_id, What.NO_PAGES, head.pages_needed, worker.pool.num_available)
