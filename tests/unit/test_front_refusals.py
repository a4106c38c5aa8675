"""What a refused request leaves in memory: nothing, without waiting for the collector."""

import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc.aio import AbortError
from pagewire.v1 import generation_pb2 as pb

from scheduler_svc.front.errors import InvalidRequestError
from scheduler_svc.front.figures import Figures
from scheduler_svc.front.many import ManyStream
from scheduler_svc.front.status_interceptor import StatusInterceptor


class Large:
    """Stands for a request of megabytes."""


class Context:
    """The part of a call's context that ends it."""

    def invocation_metadata(self) -> None:
        """None came."""

    async def abort(self, code: grpc.StatusCode, message: str, trailing_metadata: Any = ()) -> None:
        raise AbortError


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("streams", [False, True])
async def test_a_refused_request_is_let_go(streams: bool) -> None:
    refs: list[weakref.ref[Large]] = []

    def read(content: bytes) -> Large:
        request = Large()
        refs.append(weakref.ref(request))
        return request

    async def refuse(request: Large, context: Any) -> None:
        try:
            raise KeyError(request)
        except KeyError:
            raise InvalidRequestError.at("field", "is wrong") from None

    make: Any = grpc.unary_stream_rpc_method_handler if streams else grpc.unary_unary_rpc_method_handler

    async def continuation(details: Any) -> Any:
        return make(refuse, request_deserializer=read)

    details = grpc.HandlerCallDetails()
    details.method = "/service/Method"
    handler: Any = await StatusInterceptor(lambda context, method: nullcontext()).intercept_service(
        continuation, details
    )
    kept = []
    for _ in range(3):
        with pytest.raises(AbortError) as ended:
            await (handler.unary_stream if streams else handler.unary_unary)(b"", Context())
        kept.append(ended.value)
    assert [ref() for ref in refs] == [None] * 3


@pytest.mark.parametrize("at_once", [False, True])
async def test_refused_entries_are_let_go(at_once: bool) -> None:
    refs: list[weakref.ref[Large]] = []

    class Preparation:
        def prepare_at_once(self, request: Any, **options: Any) -> Any:
            return self._refuse() if at_once else None

        async def prepare(self, request: Any, **options: Any) -> Any:
            self._refuse()

        def _refuse(self) -> None:
            held = Large()
            refs.append(weakref.ref(held))
            raise InvalidRequestError.at("field", "is wrong")

    async def requests() -> AsyncIterator[Any]:
        for place in range(3):
            yield pb.GenerateManyRequest(start=pb.GenerateRequest(request_id=str(place)))

    written: list[Any] = []

    async def write(message: Any) -> None:
        written.extend(message.events)

    preparation: Any = Preparation()
    link: Any = SimpleNamespace(figures=Figures())
    await ManyStream(preparation, link, write, deadline=None, slow_reader_seconds=5).run(requests())
    assert [event.failure.request_id for event in written] == ["0", "1", "2"]
    assert [ref() for ref in refs] == [None] * 3
