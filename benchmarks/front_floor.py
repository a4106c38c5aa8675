"""A bare grpc.aio server with the messages of `benchmarks.front`'s pace and nothing behind: what gRPC itself costs.

Waits for its streams, then writes one message to each of them every step; prints its processor microseconds a message.
"""

import argparse
import asyncio
import sys
import time
from typing import Any

import grpc
import grpc.aio
import uvloop
from pagewire.v1 import generation_pb2 as pb

from scheduler_svc.front.listening import server_options


class Floor(grpc.GenericRpcHandler):
    """Every method streams `num_steps` messages, one a step."""

    def __init__(self, num_streams: int, num_steps: int) -> None:
        self.all_here = asyncio.Event()
        self.steps = [asyncio.Event() for _ in range(num_steps)]
        self._num_missing = num_streams

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return grpc.unary_stream_rpc_method_handler(self._stream)

    async def _stream(self, request: bytes, context: Any) -> None:
        name = pb.GenerateRequest.FromString(request).request_id
        self._num_missing -= 1
        if not self._num_missing:
            self.all_here.set()
        for position, step in enumerate(self.steps, start=1):
            await step.wait()
            message = pb.GenerateResponse(request_id=name, delta={"text": "x", "num_output_tokens": position})
            await context.write(message.SerializeToString())


async def serve(given: argparse.Namespace) -> None:
    """Serves once."""
    floor = Floor(given.streams, given.steps)
    server = grpc.aio.server(options=server_options(reuse_port=False))
    server.add_generic_rpc_handlers((floor,))
    server.add_insecure_port(f"127.0.0.1:{given.port}")
    await server.start()
    print("ready", flush=True)
    await floor.all_here.wait()
    began, due = time.process_time(), time.monotonic()
    for step in floor.steps:
        due += given.step_seconds
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        step.set()
    await server.stop(5)
    print((time.process_time() - began) / (given.streams * given.steps) * 1e6, flush=True)


def main() -> int:
    """Parses the arguments and serves."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--port", "--streams", "--steps"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--step-seconds", type=float, required=True)
    uvloop.run(serve(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
