"""One client process of `benchmarks.front`: opens streams, counts messages and notes when each came.

Messages stay bytes: reading them costs little, and the client must not be what is measured. Prints one JSON object.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
from pagewire.v1 import generation_pb2 as pb

SERVICE = "/pagewire.v1.GenerationService/"


def request(number: int, given: argparse.Namespace) -> pb.GenerateRequest:
    """Text out; every second request has a stop string that never comes."""
    made = pb.GenerateRequest(request_id=f"{given.name}-{number}", text=f"stream {given.name} {number}")
    made.stop.max_tokens = given.tokens
    made.stop.ignore_eos = True
    if number % 2:
        made.stop.stop.append("a stop string")
    made.output.max_delay_ms = given.max_delay_ms
    made.sampling.temperature = 0
    return made


async def one_stream(method: Any, number: int, given: argparse.Namespace, note: Callable[[bytes], None]) -> None:
    """One Generate call to its end."""
    async for message in method(request(number, given).SerializeToString()):
        note(message)


async def many(channel: Any, given: argparse.Namespace, note: Callable[[bytes], None]) -> None:
    """All requests over one GenerateMany stream."""
    call = channel.stream_stream(SERVICE + "GenerateMany")()
    for number in range(given.streams):
        await call.write(pb.GenerateManyRequest(start=request(number, given)).SerializeToString())
    await call.done_writing()
    while (message := await call.read()) is not grpc.aio.EOF:
        note(message)


async def run(given: argparse.Namespace) -> dict[str, Any]:
    """Runs all streams; what was seen of them."""
    arrivals: list[float] = []
    last: list[bytes] = []

    def note(message: bytes) -> None:
        arrivals.append(time.monotonic())

    options = [("grpc.max_receive_message_length", 16 * 1024 * 1024), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(given.target, options=options) as channel:
        await channel.channel_ready()
        if given.many:
            await many(channel, given, note)
        else:
            method = channel.unary_stream(SERVICE + "Generate")
            await asyncio.gather(*(one_stream(method, number, given, note) for number in range(given.streams)))
    return {
        "messages": len(arrivals),
        "first": arrivals[0],
        "last": arrivals[-1],
        "arrivals": arrivals if given.times else last,
    }


def main() -> int:
    """Parses the arguments, runs, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--max-delay-ms", type=int, default=0)
    parser.add_argument("--many", action="store_true")
    parser.add_argument("--times", action="store_true")
    print(json.dumps(asyncio.run(run(parser.parse_args()))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
