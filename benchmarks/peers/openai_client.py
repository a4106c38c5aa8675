"""Closed-loop streams on an OpenAI-style server on loopback, over bare sockets so that the client costs little."""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.engine import EngineError
from benchmarks.measure import Outcome, StreamTimes
from benchmarks.workloads import Workload


def run_streams(port: int, model: str, workload: Workload) -> Outcome:
    """Runs ``workload`` with ``workload.num_clients`` clients, each sending its next request when its last has ended.

    Raises:
        EngineError: the server refused a request.
    """
    began = time.perf_counter()
    streams, counted = asyncio.run(_closed_loop(port, model, workload))
    wall = time.perf_counter() - began
    return Outcome(wall_s=wall, outputs=[[] for _ in streams], num_output_tokens=counted, streams=streams)


async def _closed_loop(port: int, model: str, workload: Workload) -> tuple[list[StreamTimes], int]:
    waiting = iter(list(enumerate(workload.prompts)))
    streams: dict[int, StreamTimes] = {}

    async def client() -> None:
        for index, prompt in waiting:
            streams[index] = await _stream(port, model, prompt, workload.max_tokens)

    await asyncio.gather(*(client() for _ in range(workload.num_clients)))
    in_order = [streams[index] for index in range(len(workload.prompts))]
    return in_order, sum(stream.num_tokens for stream in in_order)


async def _stream(port: int, model: str, prompt: Sequence[int], max_tokens: int) -> StreamTimes:
    body = _body(model, prompt, max_tokens)
    head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n"
    sent = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    status = (await reader.readline()).decode()
    if " 200 " not in status:
        raise EngineError(status + (await reader.read(2000)).decode(errors="replace"))
    arrivals, counted = await _events(reader)
    writer.close()
    return StreamTimes(sent=sent, messages=_spread(arrivals, counted))


def _body(model: str, prompt: Sequence[int], max_tokens: int) -> bytes:
    values: dict[str, Any] = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    return json.dumps(values).encode()


async def _events(reader: asyncio.StreamReader) -> tuple[list[tuple[float, int]], int]:
    """Times of the messages with choices and the tokens counted by then, and the tokens counted in all."""
    arrivals: list[tuple[float, int]] = []
    counted = 0
    async for line in reader:
        if not line.startswith(b"data: "):
            continue
        event = line[6:].strip()
        if event == b"[DONE]":
            break
        message = json.loads(event)
        if message.get("usage"):
            counted = message["usage"]["completion_tokens"]
        if message.get("choices"):
            arrivals.append((time.perf_counter(), counted))
    return arrivals, counted


def _spread(arrivals: Sequence[tuple[float, int]], counted: int) -> list[tuple[float, int]]:
    """Tokens of each message, from the running counts."""
    messages: list[tuple[float, int]] = []
    before = 0
    for moment, total in arrivals:
        if total > before:
            messages.append((moment, total - before))
            before = total
    if messages and before < counted:
        moment, count = messages[-1]
        messages[-1] = (moment, count + counted - before)
    return messages
