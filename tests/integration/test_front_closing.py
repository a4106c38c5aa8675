"""Callers that do not stop asking while a front closes: each call succeeds or is UNAVAILABLE, never CANCELLED."""

import asyncio
from collections import Counter
from typing import Any

import grpc
from pagewire.v1 import generation_pb2, generation_pb2_grpc
from support.fake_scheduler import FakeScheduler
from support.front_stack import front_stack

NUM_CALLERS = 16
REQUEST = generation_pb2.GenerateOnceRequest(request=generation_pb2.GenerateRequest(text="x"))


async def test_calls_that_arrive_while_a_front_closes_are_unavailable() -> None:
    codes: Counter[grpc.StatusCode] = Counter()

    async def ask(stub: Any) -> bool:
        """Whether somebody listens."""
        try:
            await stub.GenerateOnce(REQUEST, timeout=10)
        except grpc.RpcError as error:
            codes[error.code()] += 1
            return "failed to connect" not in str(error.details())
        codes[grpc.StatusCode.OK] += 1
        return True

    async def ask_on(target: str) -> None:
        options = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(target, options=options) as channel:
            stub = generation_pb2_grpc.GenerationServiceStub(channel)
            while await ask(stub):
                pass

    async with front_stack(FakeScheduler(lambda submit: [[65, 257]])) as stack:
        callers = [asyncio.ensure_future(ask_on(f"127.0.0.1:{stack.front.port}")) for _ in range(NUM_CALLERS)]
        await stack.scheduler.wait_for(lambda: codes[grpc.StatusCode.OK] >= 2 * NUM_CALLERS)
        await stack.front.stop(3)
        await asyncio.wait_for(asyncio.gather(*callers), 20)
    assert set(codes) == {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}
