"""The asynchronous client against a gRPC server."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest
from pagewire_client import (
    AsyncClient,
    Delta,
    HealthStatus,
    NotFoundError,
    OverloadedError,
    RequestCancelledError,
    UnavailableError,
)
from pagewire_client.errors import DeadlineExceededError
from support.fake_server import Failure, FakeServer


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as fake:
        yield fake


@pytest.fixture
async def client(server: FakeServer) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.target) as opened:
        yield opened


async def test_generate_stream_and_chat_agree(client: AsyncClient) -> None:
    joined = await client.stream("one two", n=2, request_id="r").join()
    assert joined == await client.generate("one two", n=2, request_id="r")
    assert joined.text == "ONE TWO"
    messages = [{"role": "user", "content": "hi"}]
    assert (await client.chat(messages)).text == "HI"
    assert (await client.stream_chat(messages).join()).text == "HI"


async def test_many_at_once(client: AsyncClient) -> None:
    results = await asyncio.gather(*(client.stream(f"r {i}").join() for i in range(8)))
    assert [result.text for result in results] == [f"R {i}" for i in range(8)]


async def test_reads(client: AsyncClient, server: FakeServer) -> None:
    assert await client.tokenize("hi") == (104, 105)
    assert await client.detokenize([104]) == "h"
    assert (await client.models())[0].name == "fake"
    assert (await client.model()).page_size == 32
    assert await client.health() is HealthStatus.SERVING
    assert (await client.load()).num_workers == 1
    await client.cancel("known")
    with pytest.raises(NotFoundError):
        await client.cancel("unknown")


async def test_retries_and_errors(client: AsyncClient, server: FakeServer) -> None:
    server.failures.extend([Failure(code=grpc.StatusCode.UNAVAILABLE)] * 2)
    assert (await client.generate("again")).text == "AGAIN"
    assert server.num_calls == 3
    server.failures.append(Failure(code=grpc.StatusCode.RESOURCE_EXHAUSTED))
    with pytest.raises(OverloadedError):
        await client.stream("x").join()
    server.failures.append(Failure(code=grpc.StatusCode.UNAVAILABLE, after_messages=1))
    stream = client.stream("a b c")
    assert isinstance(await anext(stream), Delta)
    with pytest.raises(UnavailableError):
        await stream.join()
    assert server.num_calls == 5


async def test_the_deadline_ends_a_call(client: AsyncClient, server: FakeServer) -> None:
    server.hold = True
    with pytest.raises(DeadlineExceededError):
        await client.stream("x", timeout=0.2).join()


async def test_cancelling_a_stream_reaches_the_server(client: AsyncClient, server: FakeServer) -> None:
    server.hold = True
    stream = client.stream("x y")
    await anext(stream)
    stream.cancel()
    assert await asyncio.to_thread(server.cancelled.wait, 10)
    with pytest.raises(RequestCancelledError):
        await stream.join()


@pytest.mark.parametrize("streamed", [False, True])
async def test_cancelling_the_task_cancels_the_request(client: AsyncClient, server: FakeServer, streamed: bool) -> None:
    server.hold = True
    task = asyncio.create_task(client.stream("x y").join() if streamed else client.generate("x"))
    assert await asyncio.to_thread(server.called.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(server.cancelled.wait, 10)
