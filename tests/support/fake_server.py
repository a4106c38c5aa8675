"""An in-process gRPC server for client tests: it says back what it is asked, fails when told to, and records calls."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.rpc import status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_status import rpc_status
from pagewire.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    generation_pb2,
    generation_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Ends one call with a status after some messages."""

    code: grpc.StatusCode
    message: str = "told to fail"
    details: tuple[Message, ...] = ()
    after_messages: int = 0

    def status(self) -> Any:
        """What ``abort_with_status`` takes."""
        packed = []
        for detail in self.details:
            anything = AnyMessage()
            anything.Pack(detail)
            packed.append(anything)
        return rpc_status.to_status(status_pb2.Status(code=self.code.value[0], message=self.message, details=packed))


class FakeServer:
    """Context manager. ``failures`` are used up one a generation call; ``hold`` makes streams wait after one delta."""

    def __init__(self, port: int = 0) -> None:
        self.failures: deque[Failure] = deque()
        self.requests: list[generation_pb2.GenerateRequest] = []
        self.tokenize_requests: list[generation_pb2.TokenizeRequest] = []
        self.metadata: list[dict[str, str]] = []
        self.num_calls = 0
        self.called = threading.Event()
        self.hold = False
        self.cancelled = threading.Event()
        self.cancelled_ids: list[str] = []
        self.health = health.HealthServicer()
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=16), options=[("grpc.so_reuseport", 0)])
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(_Generation(self), self._server)
        model_pb2_grpc.add_ModelServiceServicer_to_server(_Models(), self._server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(_Admin(), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.target = f"127.0.0.1:{self.port}"
        self.set_serving(True)

    def set_serving(self, serving: bool) -> None:
        """Sets the overall health."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        self.health.set("", status)

    def __enter__(self) -> FakeServer:
        self._server.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._server.stop(grace=None).wait()


def answer_of(request: generation_pb2.GenerateRequest) -> str:
    """What the fake model says: the prompt, in capitals."""
    if request.WhichOneof("prompt") == "chat":
        return request.chat.messages[-1].content.upper() if request.chat.messages else ""
    if request.WhichOneof("prompt") == "token_ids":
        return " ".join(str(i) for i in request.token_ids.ids)
    return request.text.upper()


def events_of(request: generation_pb2.GenerateRequest) -> Iterator[generation_pb2.GenerateResponse]:
    """A whole stream: words as deltas, outputs interleaved, then endings and the summary."""
    request_id = request.request_id or "made-by-server"
    words = answer_of(request).split(" ")
    num_outputs = request.output.n or 1

    def response(**event: Any) -> generation_pb2.GenerateResponse:
        return generation_pb2.GenerateResponse(request_id=request_id, **event)

    if request.output.progress_events:
        yield response(queued=generation_pb2.Queued(position=2, reason="full"))
        yield response(admitted=generation_pb2.Admitted(cached_tokens=32, worker_id="w0"))
        yield response(prefill=generation_pb2.Prefill(computed_tokens=40, total_tokens=40))
        yield response(preempted=generation_pb2.Preempted(reason="no pages"))
        yield response(heartbeat=generation_pb2.Heartbeat())
    for position, word in enumerate(words):
        for index in range(num_outputs):
            text = word if position == 0 else f" {word}"
            token_ids = [100 + position] if request.output.token_ids else []
            yield response(delta=generation_pb2.Delta(index=index, text=text, token_ids=token_ids))
    for index in range(num_outputs):
        reason = generation_pb2.FINISH_REASON_STOP if index == 0 else generation_pb2.FINISH_REASON_LENGTH
        end = generation_pb2.Finished(index=index, finish_reason=reason)
        if index == 0:
            end.stop_token_id = 2
        yield response(finished=end)
    yield response(summary=summary_of(request, num_outputs * len(words)))


def summary_of(request: generation_pb2.GenerateRequest, num_tokens: int) -> generation_pb2.Summary:
    """The summary the fake sends."""
    return generation_pb2.Summary(
        usage=generation_pb2.Usage(prompt_tokens=40, cached_tokens=32, output_tokens=num_tokens),
        timings=generation_pb2.Timings(first_token_seconds=0.25, decode_seconds=0.5, total_seconds=0.75),
        seed=request.sampling.seed or 7,
        worker_id="w0",
    )


class _Generation(generation_pb2_grpc.GenerationServiceServicer):  # type: ignore[misc]
    def __init__(self, server: FakeServer) -> None:
        self._server = server

    def _begin(self, request: generation_pb2.GenerateRequest, context: Any) -> Failure | None:
        self._server.num_calls += 1
        self._server.called.set()
        self._server.requests.append(request)
        self._server.metadata.append(dict(context.invocation_metadata()))
        return self._server.failures.popleft() if self._server.failures else None

    def Generate(self, request: generation_pb2.GenerateRequest, context: Any) -> Iterator[Any]:
        failure = self._begin(request, context)
        context.add_callback(lambda: self._server.cancelled.set() if self._server.hold else None)
        for count, event in enumerate(events_of(request)):
            if failure is not None and count == failure.after_messages:
                context.abort_with_status(failure.status())
            yield event
            if self._server.hold:
                self._server.cancelled.wait(timeout=20)
                return

    def GenerateMany(self, messages: Iterator[generation_pb2.GenerateManyRequest], context: Any) -> Iterator[Any]:
        context.add_callback(self._server.cancelled.set)
        for message in messages:
            requests = [message.start] if message.HasField("start") else []
            for request in (*requests, *map(generation_pb2.GenerateRequest.FromString, message.starts)):
                self._begin(request, context)
                yield generation_pb2.GenerateManyResponse(events=[{"response": event} for event in events_of(request)])

    def GenerateOnce(self, request: generation_pb2.GenerateOnceRequest, context: Any) -> Any:
        failure = self._begin(request.request, context)
        if failure is not None:
            context.abort_with_status(failure.status())
        if self._server.hold:
            context.add_callback(self._server.cancelled.set)
            self._server.cancelled.wait(timeout=20)
        return joined(request.request)

    def CancelRequest(self, request: generation_pb2.CancelRequestRequest, context: Any) -> Any:
        self._server.cancelled_ids.append(request.request_id)
        if request.request_id != "known":
            context.abort(grpc.StatusCode.NOT_FOUND, "no such request")
        return generation_pb2.CancelRequestResponse()

    def Tokenize(self, request: generation_pb2.TokenizeRequest, context: Any) -> Any:
        self._server.tokenize_requests.append(request)
        text = request.text or request.chat.messages[0].content
        return generation_pb2.TokenizeResponse(token_ids=text.encode(), max_model_len=2048)

    def Detokenize(self, request: generation_pb2.DetokenizeRequest, context: Any) -> Any:
        return generation_pb2.DetokenizeResponse(text=bytes(request.token_ids).decode())


def joined(request: generation_pb2.GenerateRequest) -> generation_pb2.GenerateOnceResponse:
    """The same events as GenerateOnce answers them."""
    response = generation_pb2.GenerateOnceResponse()
    for event in events_of(request):
        response.request_id = event.request_id
        kind = event.WhichOneof("event")
        if kind == "delta":
            while len(response.outputs) <= event.delta.index:
                response.outputs.add(index=len(response.outputs))
            output = response.outputs[event.delta.index]
            output.text += event.delta.text
            output.token_ids.extend(event.delta.token_ids)
        elif kind == "finished":
            response.outputs[event.finished.index].finished.CopyFrom(event.finished)
        elif kind == "summary":
            response.summary.CopyFrom(event.summary)
    return response


MODEL = model_pb2.Model(
    name="fake",
    architecture="LlamaForCausalLM",
    max_model_len=2048,
    vocab_size=300,
    dtype="float32",
    page_size=32,
    capabilities=["chat", "seed"],
    server_version="0.1.0",
    max_num_seqs=64,
    max_request_tokens=2048,
)


class _Models(model_pb2_grpc.ModelServiceServicer):  # type: ignore[misc]
    def ListModels(self, request: Any, context: Any) -> Any:
        return model_pb2.ListModelsResponse(models=[MODEL])

    def GetModel(self, request: model_pb2.GetModelRequest, context: Any) -> Any:
        if request.name not in ("", MODEL.name):
            context.abort(grpc.StatusCode.NOT_FOUND, f"no model {request.name!r} is served")
        return model_pb2.GetModelResponse(model=MODEL)


class _Admin(admin_pb2_grpc.AdminServiceServicer):  # type: ignore[misc]
    def GetLoad(self, request: Any, context: Any) -> Any:
        return admin_pb2.GetLoadResponse(num_pages=100, num_free_pages=90, num_held_pages=10, num_workers=1)

    def ExplainRequest(self, request: Any, context: Any) -> Any:
        if request.request_id != "known":
            context.abort(grpc.StatusCode.NOT_FOUND, "there is no such request")
        decisions = [admin_pb2.Decision(text="waits"), admin_pb2.Decision(at_seconds=0.25, step_id=7, text="ended\x1b")]
        return admin_pb2.ExplainRequestResponse(decisions=decisions)
