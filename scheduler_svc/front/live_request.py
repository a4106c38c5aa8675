"""One live request between the scheduler and whoever reads its events.

The link puts tokens and events in (`add_tokens`, `apply`, `fail`), never waiting; the reader waits for news (`wait`)
and takes what there is (`take`): one delta an output, however many tokens came since. So a slow reader gets fewer,
larger messages and nothing queues up.

Invariants: for each output all its deltas come before its one `finished`; `summary` is the last event and comes once;
after an error no event follows. A request that its reader leaves before the end is cancelled at the scheduler.
"""

import asyncio
from array import array
from collections.abc import Callable
from typing import Any

from pagewire.internal.v1 import front_pb2
from pagewire.v1 import generation_pb2

from scheduler_svc.front.endings import (
    EARLY_SECONDS,
    deadline_error,
    finished_message,
    hard_end,
    progress_response,
    rejection_error,
    slow_reader_error,
    write_finished,
    write_summary,
)
from scheduler_svc.front.errors import FrontError, UnavailableError
from scheduler_svc.front.logprobs import MAX_POSITIONS, PromptLogprobs
from scheduler_svc.front.output import Output
from scheduler_svc.front.prepared_request import PreparedRequest
from scheduler_svc.front.scheduler_link import SchedulerLink

New = Callable[[], Any]

MAX_PENDING_BYTES = 1024 * 1024
GRACE_SECONDS = 0.01
"""How long a passed deadline waits for the scheduler to tell stage and usage."""


class Reader:
    """Whoever reads the events of one or more requests."""

    __slots__ = ("is_blocked",)

    def __init__(self) -> None:
        self.is_blocked = False
        """It waits for its own writes: unread data is held against it."""


class LiveRequest:
    """A submitted request; the link's `Sink`."""

    def __init__(
        self,
        prepared: PreparedRequest,
        link: SchedulerLink,
        *,
        deadline: float | None = None,
        wakes_for_tokens: bool = True,
        reader: Reader | None = None,
        on_news: Callable[[], None] | None = None,
        key: int | None = None,
    ) -> None:
        """Submits the request, unless it has a `key` already. `deadline` is on the loop's clock; `on_news`: `take` may
        have something."""
        self.reader = reader or Reader()
        self.on_failure: Callable[[FrontError], None] | None = None
        """Called when the request ends with an error."""
        self.is_quiet = False
        """Its reader holds text back for a while: tokens are no news."""
        self._prepared = prepared
        self._link = link
        self._on_news = on_news
        self._wakes_for_tokens = wakes_for_tokens or prepared.stops is not None
        self._outputs: list[Output] = []
        self._prompt_logprobs = PromptLogprobs(is_empty=prepared.wants_prompt_logprobs and len(prepared.prompt) == 1)
        self._progress: list[Any] = []
        self._ended: Any = None
        self._error: FrontError | None = None
        self._summary_taken = False
        self._has_news = False
        self._has_tokens = False
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        if deadline is not None:
            self._arm(deadline)
        self.key = link.submit(prepared.submit, self) if key is None else link.hand_over(key, self)
        try:
            # While it is on its way: nothing is told of it before the loop's next turn.
            self._outputs = prepared.outputs()
        except BaseException:
            self.close()
            raise
        if prepared.span is not None:
            prepared.span.queued(self.request_id, prepared.model.name, len(prepared.prompt))

    def _arm(self, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        self._prepared.submit.deadline_ms = max(1, int((deadline - loop.time()) * 1000))
        self._timer = loop.call_at(deadline - EARLY_SECONDS, self._deadline_passed)

    @property
    def request_id(self) -> str:
        return self._prepared.request_id

    @property
    def max_delay_seconds(self) -> float:
        """How long text may be held back to send larger messages."""
        return self._prepared.max_delay_seconds

    @property
    def progress_events(self) -> bool:
        """Whether its caller wants progress events and heartbeats."""
        return self._prepared.progress_events

    @property
    def is_over(self) -> bool:
        """Nothing more is to come from the scheduler."""
        return self._ended is not None or self._error is not None

    @property
    def is_taken(self) -> bool:
        """The summary was taken."""
        return self._summary_taken

    # From the link

    def adder(self, index: int) -> Callable[[int], None]:
        """What takes the tokens of one output."""
        return self._outputs[index].adder(self._hear) if index < len(self._outputs) else _drop

    def slot(self, index: int) -> "array[int] | None":
        """Where the tokens of one output wait; none with stop strings, for which each is looked at as it comes."""
        has_slot = index < len(self._outputs) and self._prepared.stops is None
        return self._outputs[index].slot if has_slot else None

    def _hear(self, output: Output) -> None:
        """An output has tokens that nobody has taken."""
        if not self._has_tokens:
            self._has_tokens = True
            if self._prepared.span is not None:
                self._prepared.span.first_token()
        if self.reader.is_blocked or self.is_quiet:
            # With stop strings generation should stop, however long its reader takes.
            if self._prepared.stops is not None:
                self._scan(output)
            if self.reader.is_blocked and sum(each.pending_bytes for each in self._outputs) > MAX_PENDING_BYTES:
                self.fail(slow_reader_error())
        if self._wakes_for_tokens and not self.is_quiet:
            self._news()

    def add_logprobs(self, index: int, found: Any) -> None:
        """Log probabilities of one output's next token, or of the prompt."""
        if index >= len(self._outputs) or self.is_over:
            return
        if found.num_prompt_positions:
            self._prompt_logprobs.add(found)
        else:
            self._outputs[index].append_logprobs(found)

    def apply(self, event: Any) -> None:
        """A RequestEvent."""
        kind = event.WhichOneof("event")
        if kind == "held":
            self._hold(event.held)
        elif kind == "output_ended":
            if event.output_ended.index < len(self._outputs):
                self._outputs[event.output_ended.index].end(event.output_ended)
                self._news()
        elif kind == "ended":
            self._end(event.ended)
        elif kind == "resumed":
            self._prepared.submit.seed = event.resumed.submit.seed
        elif kind == "rejected":
            self._close(rejection_error(event.rejected, self._prepared.prompt_field))
        else:
            self._apply_progress(kind, event)

    def _apply_progress(self, kind: str, event: Any) -> None:
        if self._prepared.span is not None:
            self._prepared.span.note(kind, event)
        if self._prepared.progress_events:
            response = progress_response(self.request_id, event)
            if response is not None:
                self._progress.append(response)
                self._news()

    def fail(self, error: FrontError) -> None:
        """The request ends with this error."""
        if not self.is_over:
            # What can be resumed outlives this front.
            self._link.cancel(self.key, broken=isinstance(error, UnavailableError), code=error.code.value[0])
            self._close(error)

    def skip(self, index: int, num_tokens: int, *, tail: bool, finished: bool) -> None:
        """What of an output the caller has already, see ResumePosition; before any token is added."""
        self._outputs[index].skip(num_tokens, tail=tail, finished=finished)

    # To the reader

    async def wait(self, until: float | None = None) -> bool:
        """Returns once there is news: True; or at `until` (on the loop's clock): False."""
        if not self._has_news:
            loop = asyncio.get_running_loop()
            waiter = self._waiter = loop.create_future()
            timer = None if until is None else loop.call_at(until, _wake, waiter)
            try:
                await waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        has_news, self._has_news = self._has_news, False
        return has_news

    async def pause(self, until: float) -> None:
        """Returns at `until` (on the loop's clock), or once the request is over; tokens gather meanwhile."""
        self.is_quiet = True
        while not self.is_over and await self.wait(until):
            pass
        self.is_quiet = False

    def take(self) -> list[Any]:
        """The events there are now, as GenerateResponse messages.

        Raises: FrontError if the request ended with one.
        """
        events: list[Any] = []

        def new() -> Any:
            events.append(generation_pb2.GenerateResponse())
            return events[-1]

        self.take_into(new)
        return events

    def take_into(self, new: New) -> None:
        """As `take`, each event written into an empty GenerateResponse that `new` makes in its place."""
        if self._error is not None:
            raise self._error
        if self._progress:
            for event in self._progress:
                new().CopyFrom(event)
            self._progress = []
        for part in self._prompt_logprobs.take():
            self._response(new).prompt_logprobs.CopyFrom(part)
        for output in self._outputs:
            if not output.is_finished:
                self._take_output(output, new)
        if self._ended is not None and not self._summary_taken:
            self._summary_taken = True
            self._write_summary(self._response(new).summary)

    def cancel(self) -> None:
        """Ends the request while its reader still reads: its outputs finish as cancelled."""
        if not self.is_over:
            self._link.cancel(self.key)

    def close(self) -> None:
        """The reader is gone. Idempotent."""
        if not self.is_over:  # else nothing is left to release
            # Who leaves when its time is over did not cancel, also if this process was too busy to end it first.
            is_late = self._timer is not None and self._timer.when() <= asyncio.get_running_loop().time()
            self._link.cancel(self.key, deadline=is_late, broken=not is_late)
            if self._prepared.span is not None:
                self._prepared.span.left()
            self._release()

    # Inside

    def _take_output(self, output: Output, new: New) -> None:
        """Adds an output's deltas and, once all is taken, its ending."""
        while True:
            text, token_ids = output.take()
            self._tell_stop(output)
            if token_ids or text:
                self._add_delta(output, text, token_ids, new)
            if not output.slot:
                break
        if output.ending is not None:
            tail = output.finish()
            if tail:
                self._add_delta(output, tail, (), new)
            if not output.was_finished:
                write_finished(self._response(new).finished, output)

    def _add_delta(self, output: Output, text: str, token_ids: Any, new: New) -> None:
        """A delta, unless it holds nothing the caller wants; several if there are many log probabilities."""
        text = text if self._prepared.wants_text else ""
        if self._prepared.wants_logprobs:
            for start in range(0, len(token_ids), MAX_POSITIONS)[:-1]:
                some = token_ids[start : start + MAX_POSITIONS]
                num_told = output.num_decoded - len(token_ids) + start + len(some)
                self._write_delta(self._response(new).delta, output, "", some, num_told)
            token_ids = token_ids[max(0, len(token_ids) - 1) // MAX_POSITIONS * MAX_POSITIONS :]
        wants_ids = self._prepared.wants_token_ids or self._prepared.wants_logprobs
        if text or (token_ids and wants_ids):
            # The tail does not raise it, though tokens without text may have come since: so callers know the tail.
            num_told = min(output.num_told, output.num_decoded) if output.is_finished else output.num_decoded
            self._write_delta(self._response(new).delta, output, text, token_ids, num_told)

    def _write_delta(self, delta: Any, output: Output, text: str, token_ids: Any, num_told: int) -> None:
        output.num_told = num_told
        delta.index = output.index
        delta.text = text
        delta.num_output_tokens = num_told
        if self._prepared.wants_token_ids:
            delta.token_ids.extend(token_ids)
        if self._prepared.wants_logprobs and token_ids:
            logprobs = output.take_logprobs(len(token_ids))
            if logprobs is not None:
                delta.logprobs.CopyFrom(logprobs)

    def _response(self, new: New) -> Any:
        response = new()
        response.request_id = self._prepared.request_id
        return response

    def _write_summary(self, summary: Any) -> None:
        overrun = 0
        if self._prepared.stops is not None:
            overrun = sum(
                max(0, output.ending.num_output_tokens - output.num_to_stop)
                for output in self._outputs
                if output.stop_string is not None and output.ending is not None
            )
        write_summary(summary, self._ended, seed=self._prepared.submit.seed, num_overrun=overrun)
        if self._prepared.wants_prompt_token_ids:
            summary.prompt_token_ids.extend(self._prepared.prompt)

    def _hold(self, held: Any) -> None:
        """The scheduler waits to hear whether a stop string comes before this ending."""
        if held.index >= len(self._outputs) or self.is_over:
            return
        output = self._outputs[held.index]
        if output.stop_string is None:
            self._scan(output)
            if output.stop_string is None:
                self._link.scanned(self.key, output.index)
        self._news()

    def _scan(self, output: Output) -> None:
        if output.stop_string is None:
            output.scan()
            self._tell_stop(output)

    def _tell_stop(self, output: Output) -> None:
        """Tells the scheduler of a stop string, once."""
        if output.stop_string is not None and not output.is_stop_told:
            output.is_stop_told = True
            if output.ending is None and not self.is_over:
                self._link.stop(self.key, output.index, output.num_to_stop)

    def _end(self, ended: Any) -> None:
        error = hard_end(ended)
        if error is not None:
            self._close(error)
            return
        for output in self._outputs:
            if output.ending is None:
                output.end(
                    front_pb2.OutputEnded(
                        index=output.index, reason=ended.reason, num_output_tokens=output.num_received
                    )
                )
        self._ended = ended
        if self._prepared.span is not None:
            summary = generation_pb2.Summary()
            self._write_summary(summary)
            self._prepared.span.finished(summary, map(finished_message, self._outputs))
        self._release()
        self._news()

    def _deadline_passed(self) -> None:
        """Ends the request; waits a little for the scheduler to tell stage and usage."""
        self._link.cancel(self.key, deadline=True)
        self._timer = asyncio.get_running_loop().call_later(
            GRACE_SECONDS, self._close, deadline_error("decode" if self._has_tokens else "queue")
        )

    def _close(self, error: FrontError) -> None:
        """The last thing that happens to a request which ends with an error."""
        if not self.is_over:
            self._error = error
            if self._prepared.span is not None:
                self._prepared.span.failed(error)
            self._release()
            self._news()
            if self.on_failure is not None:
                self.on_failure(error)

    def _release(self) -> None:
        self._link.forget(self.key)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _news(self) -> None:
        self._has_news = True
        if self._waiter is not None:
            _wake(self._waiter)
        if self._on_news is not None:
            self._on_news()


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


def _drop(token_id: int) -> None:
    """Takes a token of an output that does not exist."""
