"""Applies the result of a step: tokens, endings, publications, releases, in this order.

faults      a NaN or a grammar that leaves no token ends its request alone; a row without a token ends its request; a
            failed step ends all that were in it
tokens      to the worker's ring, where their requests collect them; those of requests that ended meanwhile are wasted
fills       pages that are full now get their names; whoever waited for them goes back to the queue
endings     requests at their stop token or length
releases    pages that waited for the step; requests that landed wait again

Cost: a few operations on whole columns, and work for each row at which something happens. Most rows just decode.
"""

from array import array
from collections.abc import Sequence

from scheduler_svc.core.page_hash import NO_PARENT
from scheduler_svc.core.registry import Registry
from scheduler_svc.core.request import Lane, Request, Residence, State
from scheduler_svc.core.step import StepRecord
from scheduler_svc.core.tally import Tally
from scheduler_svc.core.types import Committed, EndReason, Event, PrefillProgress, RequestKey, Row, StepResult
from scheduler_svc.core.worker import Worker

STATUS_GRAMMAR = 2
"""Of a row; any other but 0 stands for logits that are not numbers."""


def apply_result(worker: Worker, result: StepResult, registry: Registry, tally: Tally, now: float) -> Committed:
    """Applies a result to the step it belongs to, the oldest in flight, which is in flight no more afterwards."""
    application = Application(worker, registry, tally, now)
    malformed = len(result.rows) != len(result.token_ids) or len(result.statuses) not in (0, len(result.rows))
    if result.failed or malformed:
        application.fail()
    else:
        application.see_pace(result)
        if any(result.statuses):
            application.end_faulty_rows(result)
        application.take_tokens(result)
        if result.attachments:
            application.hand_on(result)
        application.begin_outputs()
        application.publish()
        application.finish()
    application.release()
    return Committed(
        keys=application.keys,
        num_firsts=application.num_firsts,
        token_ids=application.token_ids,
        attachments=application.attachments,
        events=application.events,
    )


class Application:
    """One result being applied."""

    __slots__ = (
        "_at_end",
        "_now",
        "_record",
        "_registry",
        "_tally",
        "_worker",
        "attachments",
        "events",
        "keys",
        "num_firsts",
        "token_ids",
    )

    def __init__(self, worker: Worker, registry: Registry, tally: Tally, now: float) -> None:
        self._worker = worker
        self._record: StepRecord = worker.in_flight[0]
        self._registry = registry
        self._tally = tally
        self._now = now
        self._at_end: list[tuple[Request, int]] = []
        self.keys: Sequence[RequestKey] = ()
        self.num_firsts = 0
        self.token_ids: array[int] = array("i")
        self.attachments: list[tuple[RequestKey, bytes]] = []
        self.events: list[Event] = []

    def fail(self) -> None:
        """The step failed: what it wrote is worth nothing."""
        for request in self._record.requests():
            self._break(request, EndReason.STEP_FAILED)
        self._worker.note_done(self._now)
        self._close_lanes()

    def see_pace(self, result: StepResult) -> None:
        """How long the step took, if running streams waited for it."""
        record = self._record
        if result.seconds and record.decoders.rows:
            self._worker.pace.observe(record.num_tokens - len(record.decoders.rows), result.seconds)

    def end_faulty_rows(self, result: StepResult) -> None:
        """Requests whose logits held NaN or whose grammar left no token end, their neighbours go on. What one wrote
        that had ended meanwhile is not to be named either."""
        for row, status in zip(result.rows, result.statuses, strict=True):
            place = self._record.place_of(row) if status else None
            if place is not None:
                reason = EndReason.GRAMMAR if status == STATUS_GRAMMAR else EndReason.NAN
                self._break(self._record.lane_at(place).request, reason)

    def take_tokens(self, result: StepResult) -> None:
        """Hands the tokens on: to the ring, to requests that begin their output, and as columns to the caller."""
        record, worker = self._record, self._worker
        token_ids = self._in_place(result)
        num_firsts = len(record.firsts)
        decoded = token_ids[num_firsts:] if num_firsts else token_ids
        worker.ring.put(record.step_id, record.decoders.runs, decoded)
        for place, lane in enumerate(record.firsts.values()):
            if place not in record.dropped:
                lane.request.output.append(token_ids[place])
                lane.request.last_token_at = self._now
        worker.note_done(self._now)
        self._close_lanes()
        self._see_ends(token_ids)
        self.num_firsts = num_firsts - sum(1 for place in record.dropped if place < num_firsts)
        self.keys, self.token_ids = _without(record.sampling_keys, token_ids, record.dropped)
        self._tally.num_output_tokens += len(token_ids) - len(record.dropped)
        self._tally.num_wasted_tokens += len(record.dropped)

    def hand_on(self, result: StepResult) -> None:
        """Finds out whose row an attachment is about; rows that were not in the step are about nobody."""
        record = self._record
        computed = {chunk[0].row: chunk[0].request.key for chunk in record.chunks}
        for row, content in result.attachments:
            place = record.place_of(row)
            if place is not None:
                computed[Row(row)] = record.lane_at(place).request.key
            if place not in record.dropped and row in computed:
                self.attachments.append((computed[Row(row)], content))

    def begin_outputs(self) -> None:
        """Notes when first tokens came and tells how far prompts are."""
        for residence, _, num_computed in self._record.chunks:
            request = residence.request
            if request.first_token_at is None and request.output:
                request.first_token_at = self._now
            if request.residence is residence:
                self._see_prompt(residence, num_computed)
                done = min(num_computed, request.num_prompt)
                self.events.append(
                    PrefillProgress(key=request.key, num_computed_tokens=done, num_prompt_tokens=request.num_prompt)
                )

    def publish(self) -> None:
        """Names the pages that the step filled, and wakes who waited for them."""
        worker = self._worker
        pool, claims, page_size = worker.pool, worker.claims, worker.page_size
        for request, index, page in self._record.fills:
            if (index + 1) * page_size > request.num_prompt:
                worker.collect(request)  # before the ring has come round
            names = request.hashes
            if names is None or request.broken:  # it has no name, or was not reliably written
                continue
            if index >= len(names) and index >= len(request.names(index + 1, page_size)):
                continue  # a token of the page was dropped
            pool.publish(page, names[index], names[index - 1] if index else NO_PARENT)
            if claims and (parked := claims.end(names[index])):
                worker.queue.merge(parked)

    def finish(self) -> None:
        """Ends or holds requests at their stop token or length; of both, the stop token is the truth."""
        for request, token_id in self._at_end:
            if token_id in request.stop_token_ids:
                self.events.append(self._registry.finish(request, EndReason.STOP_TOKEN, self._now, token_id))
            else:
                self.events.append(self._registry.finish(request, EndReason.LENGTH, self._now))

    def release(self) -> None:
        """What waited for the step: pages go back, landed requests wait again."""
        worker, record = self._worker, self._record
        worker.in_flight.popleft()
        worker.pool.settle(record.step_id)
        for request in record.landing:
            if request.state is State.LANDING:
                request.move(State.WAITING)
                worker.queue.push(request)

    def _close_lanes(self) -> None:
        """Lanes that ended with the step have got their last token."""
        for lane in self._record.closing:
            self._worker.take(lane)
            lane.request.num_closing -= 1
        self._record.closing.clear()

    def _in_place(self, result: StepResult) -> "array[int]":
        """The tokens in the places of the rows that were to sample. Rows without one end; others are not looked at."""
        rows = self._record.sampling_rows
        if result.rows == rows:
            return result.token_ids
        token_of = dict(zip(reversed(result.rows), reversed(result.token_ids), strict=True))  # a row's first one counts
        self._tally.num_wasted_tokens += len(result.rows) - len(token_of)
        for place, row in enumerate(rows):
            if row not in token_of:
                self._break(self._record.lane_at(place).request, EndReason.STEP_FAILED)
        return array("i", [token_of.get(row, 0) for row in rows])

    def _see_ends(self, token_ids: "array[int]") -> None:
        """Finds the requests that are at their end with this step, in the order of the rows."""
        record = self._record
        ends: dict[int, Lane] = {}
        for place in self._worker.stops.find(token_ids):
            lane = record.lane_at(place)
            if token_ids[place] in lane.request.stop_token_ids:
                ends[place] = lane
        last = [(record.place_of(lane.row), lane) for lane in record.finals]
        ends.update({place: lane for place, lane in last if place is not None})
        self._at_end = [
            (ends[place].request, token_ids[place]) for place in sorted(ends) if place not in record.dropped
        ]

    def _see_prompt(self, residence: Residence, num_computed: int) -> None:
        """Its prompt may be computed now, and with it all that the row knew when it began."""
        worker, request = self._worker, residence.request
        if not residence.has_prompt and num_computed >= request.num_prompt:
            residence.has_prompt = True
            if request.family:
                worker.queue.merge(worker.claims.end(request.family_name))
        if num_computed == residence.num_known:
            worker.prefixes.join(residence, num_computed // worker.page_size)

    def _break(self, request: Request, reason: EndReason) -> None:
        """Ends a request whose pages cannot be trusted; one that is at its end already keeps its ending, but what steps
        still in flight add to such a page is not to be named either."""
        request.broken = True
        if request.state is not State.ENDED and request.state is not State.HELD:
            self.events.append(self._registry.end(request, reason, self._now))


def _without(
    keys: "array[int]", token_ids: "array[int]", dropped: set[int]
) -> "tuple[Sequence[RequestKey], array[int]]":
    """Both columns without the dropped places; the columns themselves if there are none."""
    if dropped:
        keys, token_ids = keys[:], token_ids[:]
        for place in sorted(dropped, reverse=True):
            del keys[place], token_ids[place]
    return keys, token_ids  # type: ignore[return-value]
