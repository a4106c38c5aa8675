"""Pagewire as it ships: scheduler, front and worker processes of a local stack, asked over gRPC.

Offline workloads go through one GenerateMany stream, ids in and ids out; streams are one Generate call a request with
text, as an interactive client sends it.
"""

import asyncio
import time
from collections.abc import Sequence
from importlib.metadata import version

import grpc.aio
import uvloop
from pagewire.v1 import generation_pb2 as pb
from pagewire.v1.generation_pb2_grpc import GenerationServiceStub
from pagewire_client import AsyncClient, Delta, PagewireError, Summary
from pagewire_client.stack import LocalStack, private_stack

from benchmarks.engine import EngineError, say
from benchmarks.measure import Outcome, StreamTimes
from benchmarks.workloads import Workload

_MESSAGE_BYTES = 16 * 1024 * 1024


class Pagewire:
    """A private stack, started by the first workload and left idle between workloads."""

    name = "pagewire"

    def __init__(
        self,
        model: str,
        dtype: str,
        *,
        scheduler_arguments: Sequence[str] = (),
        worker_arguments: Sequence[str] = (),
    ) -> None:
        self.model, self.dtype = model, dtype
        self.version = version("pagewire")
        self.settings = " ".join([f"dtype={dtype}", *scheduler_arguments, *worker_arguments])
        self._stack: LocalStack | None = None
        self._scheduler_arguments = scheduler_arguments
        self._worker_arguments = ("--dtype", dtype, *worker_arguments)

    def roots(self) -> list[int]:
        return list(self._stack.pids().values()) if self._stack else []

    def run(self, workload: Workload) -> Outcome:
        if not workload.num_clients:
            return self.generate([(prompt, workload.max_tokens) for prompt in workload.prompts])
        try:
            return uvloop.run(_closed_loop(self._started().target, workload))
        except (PagewireError, grpc.aio.AioRpcError) as error:
            raise EngineError(f"pagewire: {error}") from error

    def generate(self, requests: Sequence[tuple[Sequence[int], int]], temperature: float = 0.0) -> Outcome:
        """All prompts at once over one stream, each with its number of tokens.

        Raises:
            EngineError: it failed.
        """
        try:
            return uvloop.run(_offline(self._started().target, requests, temperature))
        except (PagewireError, grpc.aio.AioRpcError) as error:
            raise EngineError(f"pagewire: {error}") from error

    def pause(self) -> None:
        """An idle stack sleeps; nothing to do."""

    def resume(self) -> None:
        """See ``pause``."""

    def stop(self) -> None:
        if self._stack is not None:
            self._stack.stop()

    def _started(self) -> LocalStack:
        if self._stack is None:
            say("starting pagewire")
            stack = private_stack(
                self.model, scheduler_arguments=self._scheduler_arguments, worker_arguments=self._worker_arguments
            )
            stack.start()
            self._stack = stack
        return self._stack


def _request(request_id: str, prompt: Sequence[int], max_tokens: int, temperature: float) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        request_id=request_id,
        token_ids=pb.TokenIds(ids=prompt),
        sampling=pb.SamplingOptions(temperature=temperature),
        stop=pb.StopOptions(max_tokens=max_tokens, ignore_eos=True),
        output=pb.OutputOptions(text=False, token_ids=True),
    )


async def _offline(target: str, requests: Sequence[tuple[Sequence[int], int]], temperature: float) -> Outcome:
    outputs: list[list[int]] = [[] for _ in requests]
    cached = 0
    options = [("grpc.max_receive_message_length", _MESSAGE_BYTES), ("grpc.max_send_message_length", _MESSAGE_BYTES)]
    async with grpc.aio.insecure_channel(target, options=options) as channel:
        await channel.channel_ready()
        began = time.perf_counter()
        call = GenerationServiceStub(channel).GenerateMany()
        for index, (prompt, max_tokens) in enumerate(requests):
            start = _request(str(index), prompt, max_tokens, temperature)
            await call.write(pb.GenerateManyRequest(start=start))
        await call.done_writing()
        async for message in call:
            for event in message.events:
                if event.HasField("failure"):
                    raise EngineError(f"request {event.failure.request_id}: {event.failure.status.message}")
                response = event.response
                if response.HasField("delta"):
                    outputs[int(response.request_id)].extend(response.delta.token_ids)
                elif response.HasField("summary"):
                    cached += response.summary.usage.cached_tokens
        wall = time.perf_counter() - began
    return Outcome(wall_s=wall, outputs=outputs, num_output_tokens=sum(map(len, outputs)), num_cached_tokens=cached)


async def _closed_loop(target: str, workload: Workload) -> Outcome:
    """``workload.num_clients`` clients, each sending its next request when its last has ended."""
    waiting = iter(list(enumerate(workload.prompts)))
    streams: dict[int, StreamTimes] = {}
    outputs: list[list[int]] = [[] for _ in workload.prompts]

    async def one_client(client: AsyncClient) -> None:
        for index, prompt in waiting:
            streams[index] = await _stream(client, prompt, workload.max_tokens, outputs[index])

    async with AsyncClient(target) as client:
        await client.health()
        began = time.perf_counter()
        await asyncio.gather(*(one_client(client) for _ in range(workload.num_clients)))
        wall = time.perf_counter() - began
    in_order = [streams[index] for index in range(len(workload.prompts))]
    return Outcome(wall_s=wall, outputs=outputs, num_output_tokens=sum(map(len, outputs)), streams=in_order)


async def _stream(client: AsyncClient, prompt: Sequence[int], max_tokens: int, output: list[int]) -> StreamTimes:
    sent = time.perf_counter()
    messages: list[tuple[float, int]] = []
    expected = 0
    async with client.stream(
        prompt, temperature=0.0, max_tokens=max_tokens, ignore_eos=True, text=True, token_ids=True
    ) as stream:
        async for event in stream:
            if isinstance(event, Delta) and event.token_ids:
                messages.append((time.perf_counter(), len(event.token_ids)))
                output.extend(event.token_ids)
            elif isinstance(event, Summary):
                expected = event.usage.output_tokens
    if len(output) != expected:
        raise EngineError(f"received {len(output)} of {expected} tokens")
    return StreamTimes(sent=sent, messages=messages)
