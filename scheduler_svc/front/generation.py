# ruff: noqa: N802 (methods are named as in the proto)
"""pagewire.v1.GenerationService: what each method does with the parts of the front.

Every handler raises FrontError and nothing else on purpose; the status interceptor answers. A handler that ends, in
whatever way, closes its request: what has not ended is cancelled at the scheduler.
"""

import asyncio
from array import array
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pagewire.v1 import generation_pb2, generation_pb2_grpc

from scheduler_svc.front.caller import CALLER, echo
from scheduler_svc.front.errors import InvalidRequestError
from scheduler_svc.front.in_flight import InFlight
from scheduler_svc.front.live_request import LiveRequest
from scheduler_svc.front.load_report import LoadReport
from scheduler_svc.front.logprobs import join_logprobs
from scheduler_svc.front.many import ManyStream
from scheduler_svc.front.preparation import Preparation, check_model
from scheduler_svc.front.resumption import Resumption
from scheduler_svc.front.scheduler_link import SchedulerLink
from scheduler_svc.front.service_state import ServiceState
from scheduler_svc.front.stream import HeadersFirst, SlowReaderGuard, StreamWriter, Write
from scheduler_svc.front.validation import Violations, check_ids, check_tokenize

if TYPE_CHECKING:
    from scheduler_svc.front.tracing import Tracing

MAX_DETOKENIZED = 1_048_576


class GenerationService(generation_pb2_grpc.GenerationServiceServicer):  # type: ignore[misc]
    """Generation over the scheduler's link."""

    def __init__(
        self,
        state: ServiceState,
        link: SchedulerLink,
        executor: Executor,
        preparation: Preparation,
        in_flight: InFlight,
        load_report: LoadReport,
        tracing: "Tracing | None" = None,
        *,
        slow_reader_seconds: float,
    ) -> None:
        self._state = state
        self._link = link
        self._executor = executor
        self._in_flight = in_flight
        self._preparation = preparation
        self._load_report = load_report
        self._tracing = tracing
        self._slow_reader_seconds = slow_reader_seconds

    @contextmanager
    def _call(self, context: Any) -> Iterator[None]:
        """The duration of one call: in flight, in its caller's trace; at its end it tells how busy the server is."""
        if self._tracing is not None:
            self._tracing.enter(context.invocation_metadata() or ())
        with self._in_flight.call():
            yield
        context.set_trailing_metadata((*self._load_report.trailers, *echo(context)))

    async def Generate(self, request: Any, context: Any) -> None:
        """One request, streamed."""
        await self.run(request, context, HeadersFirst(context).write)

    async def run(self, request: Any, context: Any, write: Write) -> None:
        """Runs a GenerateRequest of this call; `write` takes its events."""
        with self._call(context):
            deadline = deadline_of(context.time_remaining())
            prepared = await self._preparation.prepare(request, deadline=deadline)
            live = LiveRequest(prepared, self._link, deadline=deadline)
            await self._stream(live, write)

    async def _stream(self, live: LiveRequest, write: Write) -> None:
        try:
            guard = SlowReaderGuard(self._slow_reader_seconds, self._link.figures)
            await StreamWriter(live, write, guard=guard, heartbeats=live.progress_events).run()
        finally:
            live.close()

    async def GenerateOnce(self, request: Any, context: Any) -> Any:
        """One request, answered whole."""
        with self._call(context):
            deadline = deadline_of(context.time_remaining())
            prepared = await self._preparation.prepare(request.request, deadline=deadline, once=True)
            live = LiveRequest(prepared, self._link, deadline=deadline, wakes_for_tokens=False)
            response = generation_pb2.GenerateOnceResponse(request_id=live.request_id)
            collector = Collector(response, prepared.submit.n)
            try:
                while not live.is_taken:
                    await live.wait()
                    collector.add(live.take())
            finally:
                live.close()
            collector.finish()
            return response

    async def GenerateMany(self, requests: AsyncIterator[Any], context: Any) -> None:
        """Many requests over one stream."""
        with self._call(context):
            caller = HeadersFirst(context)
            stream = ManyStream(
                self._preparation,
                self._link,
                caller.write,
                on_submitted=caller.begin,
                deadline=deadline_of(context.time_remaining()),
                slow_reader_seconds=self._slow_reader_seconds,
            )
            try:
                await stream.run(requests)
            finally:
                await caller.sent()

    async def ResumeGenerate(self, request: Any, context: Any) -> None:
        """The rest of a request whose stream broke."""
        with self._call(context):
            deadline = deadline_of(context.time_remaining())
            headers_first = HeadersFirst(context)

            async def write(response: Any) -> None:
                await headers_first.write(generation_pb2.ResumeGenerateResponse(response=response))

            live = await Resumption(request, self._link).live(self._state, deadline=deadline)
            await self._stream(live, write)

    async def Quote(self, request: Any, context: Any) -> Any:
        """What a request would meet; it does not run."""
        submit = await self._preparation.ask_quote(request.request, deadline=deadline_of(context.time_remaining()))
        return generation_pb2.QuoteResponse.FromString(await self._link.query(submit.tenant, quote=submit))

    async def CancelRequest(self, request: Any, context: Any) -> Any:
        """Ends a request of any front."""
        await self._link.query(CALLER.get().tenant, cancel_request_id=_request_id(request))
        return generation_pb2.CancelRequestResponse()

    async def GetRequest(self, request: Any, context: Any) -> Any:
        """What the scheduler knows of a request."""
        answer = await self._link.query(CALLER.get().tenant, get_request_id=_request_id(request))
        return generation_pb2.GetRequestResponse.FromString(answer)

    async def Tokenize(self, request: Any, context: Any) -> Any:
        """Text or a chat as token ids."""
        model = self._state.require_model()
        check_model(request.model, model)
        violations = check_tokenize(request, model)
        if violations:
            raise InvalidRequestError(violations)
        token_ids = await self._preparation.reader.read(request, model)
        return generation_pb2.TokenizeResponse(token_ids=token_ids, max_model_len=model.max_model_len)

    async def Detokenize(self, request: Any, context: Any) -> Any:
        """Token ids as text."""
        model = self._state.require_model()
        check_model(request.model, model)
        bad = Violations()
        if len(request.token_ids) > MAX_DETOKENIZED:
            bad.add("token_ids", f"at most {MAX_DETOKENIZED} ids")
        else:
            check_ids("token_ids", request.token_ids, model.vocab_size, bad)
        if bad.found:
            raise InvalidRequestError(bad.found)
        hidden = request.skip_special_tokens if request.HasField("skip_special_tokens") else True
        token_ids = array("i", request.token_ids)
        text = await asyncio.get_running_loop().run_in_executor(
            self._executor, lambda: model.tokenizer.decode(token_ids, skip_special_tokens=hidden)
        )
        return generation_pb2.DetokenizeResponse(text=text)


class Collector:
    """Joins the events of one request into whole outputs."""

    def __init__(self, response: Any, num_outputs: int) -> None:
        self._response = response
        self._texts: list[list[str]] = [[] for _ in range(num_outputs)]
        for index in range(num_outputs):
            response.outputs.add(index=index)

    def add(self, events: list[Any]) -> None:
        """Takes some GenerateResponse messages."""
        for event in events:
            kind = event.WhichOneof("event")
            if kind == "delta":
                self._texts[event.delta.index].append(event.delta.text)
                self._response.outputs[event.delta.index].token_ids.extend(event.delta.token_ids)
                if event.delta.HasField("logprobs"):
                    join_logprobs(self._response.outputs[event.delta.index].logprobs, event.delta.logprobs)
            elif kind == "prompt_logprobs":
                join_logprobs(self._response.prompt_logprobs, event.prompt_logprobs.logprobs)
            elif kind == "finished":
                self._response.outputs[event.finished.index].finished.CopyFrom(event.finished)
            elif kind == "summary":
                self._response.summary.CopyFrom(event.summary)

    def finish(self) -> None:
        """Writes the joined texts."""
        for output, pieces in zip(self._response.outputs, self._texts, strict=True):
            output.text = "".join(pieces)


def deadline_of(remaining: float | None) -> float | None:
    """A call's remaining seconds as a time on the loop's clock."""
    return None if remaining is None else asyncio.get_running_loop().time() + remaining


def _request_id(request: Any) -> str:
    """Raises: InvalidRequestError if the id is empty."""
    if not request.request_id:
        raise InvalidRequestError.at("request_id", "must not be empty")
    return str(request.request_id)
