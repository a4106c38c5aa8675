"""Applies the result of a step: tokens, endings, publications, releases, in this order.

tokens      to requests that still accept them, at the position the step's record says; others are wasted
faults      a NaN ends its request alone; a row without a token ends its request; a failed step ends all that were in it
fills       pages that are full now get their names; whoever waited for them goes back to the queue
endings     requests at their stop token or length
releases    pages that waited for the step; requests that landed wait again
"""

from array import array

from scheduler_svc.core.page_hash import NO_PARENT
from scheduler_svc.core.registry import Registry
from scheduler_svc.core.request import Request, State
from scheduler_svc.core.step import StepRecord
from scheduler_svc.core.tally import Tally
from scheduler_svc.core.types import Committed, EndReason, Event, PrefillProgress, RequestKey, StepResult
from scheduler_svc.core.worker import Worker


def apply_result(
    worker: Worker, record: StepRecord, result: StepResult, registry: Registry, tally: Tally, now: float
) -> Committed:
    """Applies a result to the step it belongs to, which is in flight no more."""
    application = Application(worker, record, registry, tally, now)
    malformed = len(result.rows) != len(result.token_ids) or len(result.statuses) not in (0, len(result.rows))
    if result.failed or malformed:
        application.fail()
    else:
        if any(result.statuses):
            application.end_nan_rows(result)
        application.take_tokens(result)
        application.begin_outputs()
        application.publish()
        application.finish()
    application.release()
    return Committed(keys=application.keys, token_ids=application.token_ids, events=application.events)


class Application:
    """One result being applied."""

    __slots__ = ("_at_end", "_now", "_record", "_registry", "_tally", "_worker", "events", "keys", "token_ids")

    def __init__(self, worker: Worker, record: StepRecord, registry: Registry, tally: Tally, now: float) -> None:
        self._worker = worker
        self._record = record
        self._registry = registry
        self._tally = tally
        self._now = now
        self._at_end: list[tuple[Request, int]] = []
        self.keys: list[RequestKey] = []
        self.token_ids: array[int] = array("i")
        self.events: list[Event] = []

    def fail(self) -> None:
        """The step failed: what it wrote is worth nothing."""
        for request in self._record.requests():
            self._break(request, EndReason.STEP_FAILED)

    def end_nan_rows(self, result: StepResult) -> None:
        """Requests whose logits held NaN end, their neighbours go on. What one wrote that had ended meanwhile is not
        to be named either."""
        for row, status in zip(result.rows, result.statuses, strict=True):
            lane = self._record.sampling(row) if status else None
            if lane is None:
                continue
            lane[0].broken = True
            if lane[0].accepts_tokens:
                self._break(lane[0], EndReason.NAN)

    def take_tokens(self, result: StepResult) -> None:
        """Gives each token to its request. The loop over all rows of a step: most of the core's time is spent here."""
        keys, now, step_id = self.keys, self._now, self._record.step_id
        skipped: list[int] = []
        num_wasted = 0
        lane_of, first_of = self._record.lanes.get, self._record.firsts.get
        for row, token_id in zip(result.rows, result.token_ids, strict=True):
            lane = lane_of(row) or first_of(row)
            if lane is None:  # not to sample: its chunk ended before its last known token, say
                skipped.append(len(keys) + len(skipped))
                continue
            request, output, stop_token_ids, offset, last = lane
            position = len(output)
            if position != step_id + offset or not request.accepts_tokens:
                skipped.append(len(keys) + len(skipped))
                num_wasted += 1
                continue
            output.append(token_id)
            request.last_token_at = now
            keys.append(request.key)
            if position >= last or token_id in stop_token_ids:
                self._at_end.append((request, token_id))
        self._tally.num_output_tokens += len(keys)
        self._tally.num_wasted_tokens += num_wasted
        self.token_ids = _without(result.token_ids, skipped)
        if len(keys) < self._record.num_sampling_rows:
            self._break_missing(set(result.rows))

    def begin_outputs(self) -> None:
        """Notes when first tokens came and tells how far prompts are."""
        for residence, _, num_computed in self._record.chunks:
            request = residence.request
            if request.first_token_at is None and request.output:
                request.first_token_at = self._now
            if request.residence is residence:
                done = min(num_computed, request.num_prompt)
                self.events.append(
                    PrefillProgress(key=request.key, num_computed_tokens=done, num_prompt_tokens=request.num_prompt)
                )

    def publish(self) -> None:
        """Names the pages that the step filled, and wakes who waited for them."""
        worker = self._worker
        for request, index, page in self._record.fills:
            names = request.names(index + 1, worker.page_size)
            if index >= len(names) or request.broken:  # a token of the page was dropped, or it was not reliably written
                continue
            worker.pool.publish(page, names[index], names[index - 1] if index else NO_PARENT)
            worker.queue.merge(worker.claims.end(names[index]))

    def finish(self) -> None:
        """Ends or holds requests at their stop token or length; of both, the stop token is the truth."""
        for request, token_id in self._at_end:
            if token_id in request.stop_token_ids:
                self.events.append(self._registry.finish(request, EndReason.STOP_TOKEN, self._now, token_id))
            else:
                self.events.append(self._registry.finish(request, EndReason.LENGTH, self._now))

    def release(self) -> None:
        """What waited for the step: pages go back, landed requests wait again."""
        self._worker.pool.settle(self._record.step_id)
        for request in self._record.landing:
            if request.state is State.LANDING:
                request.move(State.WAITING)
                self._worker.queue.push(request)

    def _break_missing(self, reported: set[int]) -> None:
        for row, lane in [*self._record.lanes.items(), *self._record.firsts.items()]:
            if row not in reported and lane[0].accepts_tokens:
                self._break(lane[0], EndReason.STEP_FAILED)

    def _break(self, request: Request, reason: EndReason) -> None:
        """Ends a request whose pages cannot be trusted; one that is at its end already keeps its ending, but what steps
        still in flight add to such a page is not to be named either."""
        request.broken = True
        if request.state is not State.ENDED and request.state is not State.HELD:
            self.events.append(self._registry.end(request, reason, self._now))


def _without(token_ids: "array[int]", skipped: list[int]) -> "array[int]":
    if not skipped:
        return token_ids
    kept = array("i", token_ids)
    for index in reversed(skipped):
        del kept[index]
    return kept
