"""A real front on the loop of the test, behind it a fake scheduler, before it a real gRPC channel."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pagewire.v1 import generation_pb2, generation_pb2_grpc, model_pb2_grpc
from support.fake_scheduler import FakeScheduler

from scheduler_svc.front.server import Front, FrontOptions

TIMEOUT = 20.0


@dataclass
class FrontStack:
    """Everything a test touches."""

    scheduler: FakeScheduler
    front: Front
    channel: Any
    generation: Any = field(init=False)
    models: Any = field(init=False)
    health: Any = field(init=False)

    def __post_init__(self) -> None:
        self.generation = generation_pb2_grpc.GenerationServiceStub(self.channel)
        self.models = model_pb2_grpc.ModelServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    async def wait_serving(self, status: str = "SERVING") -> None:
        """Returns once health has this status."""
        watch = self.health.Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT)
        async for answer in watch:
            if answer.status == health_pb2.HealthCheckResponse.ServingStatus.Value(status):
                break
        watch.cancel()

    async def stream(self, request: Any, timeout: float = TIMEOUT) -> list[Any]:
        """All events of a Generate call."""
        return [event async for event in self.generation.Generate(request, timeout=timeout)]

    async def once(self, request: Any, timeout: float = TIMEOUT) -> Any:
        """The answer of a GenerateOnce call."""
        return await self.generation.GenerateOnce(generation_pb2.GenerateOnceRequest(request=request), timeout=timeout)


@asynccontextmanager
async def front_stack(
    scheduler: FakeScheduler | None = None,
    *,
    channel_options: Any = (),
    credentials: grpc.ChannelCredentials | None = None,
    serving: bool = True,
    **options: Any,
) -> AsyncIterator[FrontStack]:
    """A running front; ends with everything closed."""
    async with scheduler or FakeScheduler() as fake:
        front = Front(FrontOptions(front_endpoint=fake.endpoint, **options))
        await front.start()
        try:
            target = f"127.0.0.1:{front.port}"
            opened = (
                grpc.aio.insecure_channel(target, options=channel_options)
                if credentials is None
                else grpc.aio.secure_channel(target, credentials, options=channel_options)
            )
            async with opened as channel:
                stack = FrontStack(fake, front, channel)
                if serving:
                    await stack.wait_serving()
                yield stack
        finally:
            await front.stop(0)


def text_of(events: list[Any], index: int = 0) -> str:
    """JOIN of one output."""
    return "".join(event.delta.text for event in events if event.HasField("delta") and event.delta.index == index)


def ids_of(events: list[Any], index: int = 0) -> list[int]:
    """All token ids of one output."""
    return [
        token_id
        for event in events
        if event.HasField("delta") and event.delta.index == index
        for token_id in event.delta.token_ids
    ]


def finished_of(events: list[Any], index: int = 0) -> Any:
    """The one `finished` event of an output; checks that the stream ends as it must."""
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds.count("summary") == 1
    assert kinds[-1] == "summary"
    found = [
        place for place, event in enumerate(events) if kinds[place] == "finished" and event.finished.index == index
    ]
    assert len(found) == 1
    later = [event for event in events[found[0] :] if event.HasField("delta") and event.delta.index == index]
    assert not later
    return events[found[0]].finished


def details_of(error: grpc.RpcError) -> dict[str, Any]:
    """The google.rpc details of a failed call, by type name."""
    trailers = dict(error.trailing_metadata())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    found: dict[str, Any] = {}
    for packed in status.details:
        for kind in (error_details_pb2.BadRequest, error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo):
            detail = kind()
            if packed.Unpack(detail):
                found[kind.__name__] = detail
    return found


def fields_of(error: grpc.RpcError) -> list[str]:
    """Paths of the fields at fault."""
    return [violation.field for violation in details_of(error)["BadRequest"].field_violations]
