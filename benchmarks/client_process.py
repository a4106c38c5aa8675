"""One of `clients`' processes: one request a stream, with the moments at which its tokens came.

`python -m benchmarks.client_process grpc|http` answers the lines that `Clients` writes, as `peers.child` says. Over
gRPC a stream is one Generate call on the process's channel, text out; over HTTP a completion of an OpenAI-style server.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import grpc.aio
import uvloop
from pagewire.v1 import generation_pb2 as pb
from pagewire.v1.generation_pb2_grpc import GenerationServiceStub

from benchmarks.peers.child import answer_lines
from benchmarks.peers.openai_client import HttpError, completion

Messages = list[tuple[float, int]]
"""Moment and number of tokens of every message that brings some."""
Stream = Callable[[Sequence[int], int, float], AsyncIterator[tuple[float, int]]]
"""Sends a prompt to be continued by so many tokens, at a temperature."""


@asynccontextmanager
async def over_grpc(target: str, model: str) -> AsyncIterator[Stream]:
    """One channel for all streams of this process."""
    async with grpc.aio.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        await channel.channel_ready()
        generate = GenerationServiceStub(channel).Generate

        async def stream(prompt: Sequence[int], count: int, temperature: float) -> AsyncIterator[tuple[float, int]]:
            request = pb.GenerateRequest(
                token_ids=pb.TokenIds(ids=prompt),
                sampling=pb.SamplingOptions(temperature=temperature),
                stop=pb.StopOptions(max_tokens=count, ignore_eos=True),
            )
            seen = 0
            async for response in generate(request):
                if response.HasField("delta") and response.delta.num_output_tokens > seen:
                    yield time.perf_counter(), response.delta.num_output_tokens - seen
                    seen = response.delta.num_output_tokens
                elif response.HasField("summary") and response.summary.usage.output_tokens > seen:
                    yield time.perf_counter(), response.summary.usage.output_tokens - seen  # tokens without text

        yield stream


@asynccontextmanager
async def over_http(target: str, model: str) -> AsyncIterator[Stream]:
    """A connection a stream."""
    host, _, port = target.rpartition(":")

    def stream(prompt: Sequence[int], count: int, temperature: float) -> AsyncIterator[tuple[float, int]]:
        return completion(host, int(port), model, prompt, count, temperature)

    yield stream


KINDS: Mapping[str, Callable[[str, str], AbstractAsyncContextManager[Stream]]] = {"grpc": over_grpc, "http": over_http}


async def run_share(kind: str, share: Mapping[str, Any]) -> list[tuple[int, float, Messages]]:
    """Runs this process's requests; (index, moment of sending, messages) of each."""
    streams: list[tuple[int, float, Messages]] = []
    async with KINDS[kind](share["target"], share["model"]) as stream:

        async def one(index: int, prompt: Sequence[int], count: int) -> None:
            sent = time.perf_counter()
            streams.append((index, sent, [each async for each in stream(prompt, count, share["temperature"])]))

        async def at(arrival: float, request: tuple[int, Sequence[int], int]) -> None:
            await _until(share["start"] + arrival)
            await one(*request)

        async def client(waiting: Any) -> None:
            await _until(share["start"])
            for request in waiting:
                await one(*request)

        if share["arrivals"]:
            timed = zip(share["arrivals"], share["requests"], strict=True)
            await asyncio.gather(*(at(arrival, request) for arrival, request in timed))
        else:
            waiting = iter(share["requests"])
            await asyncio.gather(*(client(waiting) for _ in range(share["num_clients"])))
    return streams


async def _until(moment: float) -> None:
    await asyncio.sleep(max(0.0, moment - time.perf_counter()))


def main() -> None:
    kind = sys.argv[1]

    def answer(share: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return {"streams": uvloop.run(run_share(kind, share))}
        except (grpc.aio.AioRpcError, HttpError, OSError) as error:
            return {"error": f"{kind} client: {error}"}

    answer_lines(lambda: (answer, {}))


if __name__ == "__main__":
    main()
