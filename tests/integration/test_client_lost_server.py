"""A server that goes away between two attempts of a call: the client says so, and never waits for ever."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import grpc
import pytest
from pagewire.v1 import generation_pb2_grpc
from pagewire_client import AsyncClient, Client, UnavailableError
from support.fake_server import FakeServer

AWAY_SECONDS = 1.1
"""A front that crashed is back after so long."""


class Doomed(generation_pb2_grpc.GenerationServiceServicer):  # type: ignore[misc]
    """Keeps its calls until ``go``, then refuses them; the server is gone before they are retried."""

    def __init__(self) -> None:
        self.arrived = threading.Semaphore(0)
        self.go = threading.Event()

    def Generate(self, request: Any, context: Any) -> Iterator[Any]:
        self._refuse(context)
        yield from ()

    def GenerateOnce(self, request: Any, context: Any) -> None:
        self._refuse(context)

    def _refuse(self, context: Any) -> None:
        self.arrived.release()
        self.go.wait(10)
        context.set_trailing_metadata((("grpc-retry-pushback-ms", "200"),))
        context.abort(grpc.StatusCode.UNAVAILABLE, "it goes")


def use_sync(target: str) -> list[Callable[[], object]]:
    client = Client(target)
    return [lambda: client.stream("x", timeout=10).join(), lambda: client.generate("x", timeout=10)]


def use_async(target: str) -> list[Callable[[], object]]:
    async def stream() -> None:
        async with AsyncClient(target) as client:
            await client.stream("x", timeout=10).join()

    async def generate() -> None:
        async with AsyncClient(target) as client:
            await client.generate("x", timeout=10)

    return [lambda: asyncio.run(stream()), lambda: asyncio.run(generate())]


@pytest.mark.parametrize("use", [use_sync, use_async])
def test_a_retry_that_finds_no_server_is_unavailable(use: Callable[[str], list[Callable[[], object]]]) -> None:
    doomed = Doomed()
    with ThreadPoolExecutor(4) as served, ThreadPoolExecutor(4) as calling:
        server = grpc.server(served)
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(doomed, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        calls = [calling.submit(call) for call in use(f"127.0.0.1:{port}")]
        for _ in calls:
            assert doomed.arrived.acquire(timeout=10)
        stopped = server.stop(0.1)
        doomed.go.set()
        for call in calls:
            assert isinstance(call.exception(timeout=5), UnavailableError)
        stopped.wait(5)


def test_a_server_that_is_started_again_is_found_by_those_that_asked_meanwhile() -> None:
    with FakeServer() as first, Client(first.target) as client, ThreadPoolExecutor(9) as threads:
        client.generate("x", timeout=10)
        first.__exit__(None, None, None)
        calls = [threads.submit(client.generate, "x y", timeout=10) for _ in range(4)]
        calls += [threads.submit(lambda: client.stream("x y", timeout=10).join()) for _ in range(4)]
        assert not wait(calls, timeout=AWAY_SECONDS).done
        with FakeServer(first.port):
            assert [call.result().outputs[0].text for call in calls] == ["X Y"] * 8
