"""One OpenTelemetry span a request, by the semantic conventions for generative AI, with what happened as its events.

Off unless an endpoint is configured: then nobody makes a `Tracing`, and the library is not even loaded. A span begins
when a request is read and ends with it, however it ends. Its parent comes from the caller's `traceparent`. It holds
sizes, options and times; never a prompt, an output or a stop string. Spans leave in batches, from a thread of the
library; a collector that does not answer costs spans, never requests.
"""

import asyncio
import contextlib
import threading
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from pagewire.v1 import generation_pb2

from scheduler_svc.front.errors import FrontError

BATCH_MS = 1000
STOP_SECONDS = 2.0
CONTEXT_KEYS = ("traceparent", "tracestate")

_PARENT: ContextVar[Context | None] = ContextVar("parent", default=None)
_REQUESTED = ("temperature", "top_p", "top_k", "seed", "frequency_penalty", "presence_penalty")


class Tracing:
    """Makes the spans of one front."""

    def __init__(self, endpoint: str) -> None:
        """`endpoint` is http://HOST:PORT, or https://, of a collector's OTLP port for gRPC."""
        self._provider = TracerProvider(resource=Resource.create({"service.name": "pagewire"}), shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint), schedule_delay_millis=BATCH_MS)
        )
        self._tracer = self._provider.get_tracer("pagewire.front")
        self._propagator = TraceContextTextMapPropagator()

    def enter(self, metadata: Iterable[tuple[str, Any]]) -> None:
        """Requests of this call belong to the trace that its metadata names."""
        carrier = {key: value for key, value in metadata if key in CONTEXT_KEYS}
        _PARENT.set(self._propagator.extract(carrier) if carrier else None)

    def start(self, request: Any) -> "RequestSpan | None":
        """The span of a GenerateRequest; None if it is not sampled."""
        operation = "chat" if request.WhichOneof("prompt") == "chat" else "text_completion"
        attributes = {"gen_ai.operation.name": operation, "gen_ai.provider.name": "pagewire", **_asked(request)}
        span = self._tracer.start_span(
            f"{operation} {request.model}".strip(), context=_PARENT.get(), kind=SpanKind.SERVER, attributes=attributes
        )
        if span.is_recording():
            return RequestSpan(span)
        return None

    async def close(self) -> None:
        """Sends what is left, for a short while."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def shutdown() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # the loop is gone
                loop.call_soon_threadsafe(done.set)

        # A thread that nobody waits for at the end of the process: a collector may never answer.
        threading.Thread(target=shutdown, daemon=True).start()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(done.wait(), STOP_SECONDS)


class RequestSpan:
    """The span of one request; does nothing once it has ended."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def queued(self, request_id: str, model: str, num_prompt_tokens: int) -> None:
        """It was submitted to the scheduler."""
        self._span.set_attributes({"gen_ai.response.id": request_id, "gen_ai.response.model": model})
        self._span.add_event("queued", {"gen_ai.usage.input_tokens": num_prompt_tokens})

    def note(self, kind: str, event: Any) -> None:
        """A progress event of the scheduler."""
        if kind == "admitted":
            admitted = event.admitted
            self._span.add_event(
                "admitted",
                {
                    "gen_ai.usage.cache_read.input_tokens": admitted.cached_tokens,
                    "pagewire.worker_id": admitted.worker_id,
                },
            )
        elif kind == "preempted":
            self._span.add_event("preempted", {"reason": event.preempted.reason})

    def first_token(self) -> None:
        """Its first token arrived."""
        self._span.add_event("first token")

    def finished(self, summary: Any, finished: Iterable[Any]) -> None:
        """It ended with a Summary, its outputs with these Finished messages."""
        reasons = [_finish_reason(each.finish_reason) for each in finished]
        usage = summary.usage
        self._span.set_attributes(
            {
                "gen_ai.response.finish_reasons": reasons,
                "gen_ai.usage.input_tokens": usage.prompt_tokens,
                "gen_ai.usage.output_tokens": usage.output_tokens,
                "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
                "pagewire.recomputed_tokens": usage.recomputed_tokens,
            }
        )
        self._span.add_event("finished", {"finish_reasons": reasons})
        self._span.end()

    def failed(self, error: FrontError) -> None:
        """It ended with an error. Of the message nothing is told: it may quote what the caller sent."""
        self._end_with(error.code.name, error.reason)

    def left(self) -> None:
        """Its caller went away."""
        self._end_with("CANCELLED", "CANCELLED")

    def _end_with(self, code: str, reason: str) -> None:
        self._span.set_attributes({"error.type": reason, "rpc.response.status_code": code})
        self._span.set_status(Status(StatusCode.ERROR))
        self._span.add_event("finished", {"error.type": reason})
        self._span.end()


def _asked(request: Any) -> dict[str, Any]:
    """What the caller asked for."""
    asked: dict[str, Any] = {"gen_ai.output.type": "json" if "json" in _form(request) else "text"}
    if request.model:
        asked["gen_ai.request.model"] = request.model
    if request.output.n > 1:
        asked["gen_ai.request.choice.count"] = request.output.n
    if request.stop.HasField("max_tokens"):
        asked["gen_ai.request.max_tokens"] = request.stop.max_tokens
    for name in _REQUESTED:
        if request.sampling.HasField(name):
            value = getattr(request.sampling, name)
            # An attribute holds 63 bits; the seed has 64.
            asked[f"gen_ai.request.{name}"] = value if abs(value) < 2**63 else str(value)
    return asked


def _form(request: Any) -> str:
    return request.structured.WhichOneof("constraint") or ""


def _finish_reason(number: int) -> str:
    with contextlib.suppress(ValueError):
        return generation_pb2.FinishReason.Name(number).removeprefix("FINISH_REASON_").lower()
    return "unknown"
