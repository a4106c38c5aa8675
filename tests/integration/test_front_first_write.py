"""A request that fails while its first message is being written still tells its caller (GRP-04)."""

import asyncio
import gc
import random
from typing import Any

import grpc
import pytest
from pagewire.internal.v1 import front_pb2
from pagewire.v1 import generation_pb2 as pb
from support.fake_scheduler import FakeScheduler
from support.front_stack import front_stack

from scheduler_svc.front.stream import HeadersFirst


@pytest.mark.parametrize("many", [False, True], ids=["generate", "many"])
async def test_grp_04_a_failure_during_the_first_write_becomes_a_status(many: bool) -> None:
    draw = random.Random(4)
    scheduler = FakeScheduler(lambda submit: [[65, 66, 67, 68, 69, 70]])
    request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[65]))
    async with front_stack(scheduler) as stack:

        async def ending() -> Any:
            try:
                if many:
                    call = stack.generation.GenerateMany(iter([pb.GenerateManyRequest(start=request)]), timeout=10)
                    events = [event async for message in call for event in message.events]
                    return grpc.StatusCode(_number(events[-1].failure.status.code))
                await stack.stream(request, timeout=10)
            except grpc.RpcError as error:
                return error.code()
            return None

        for _ in range(60):
            num_before, ended = len(scheduler.submits), set()
            calls = [asyncio.ensure_future(ending()) for _ in range(4)]
            while len(ended) < 4:
                for submit in scheduler.submits[num_before:]:
                    if submit.key not in ended and submit.key in scheduler.running and draw.random() < 0.3:
                        ended.add(submit.key)
                        await scheduler.end(submit.key, front_pb2.END_REASON_STEP_FAILED)
                await asyncio.sleep(0)
            assert set(await asyncio.gather(*calls)) == {grpc.StatusCode.INTERNAL}


def _number(code: int) -> tuple[int, str]:
    return next(status.value for status in grpc.StatusCode if status.value[0] == code)


async def test_headers_of_a_call_that_was_given_up_fail_silently() -> None:
    """Nobody is left to hear of it; the log of the loop is no place for it either."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    gate = asyncio.Event()

    class Context:
        async def send_initial_metadata(self, metadata: object) -> None:
            await gate.wait()
            raise RuntimeError("the connection is gone")

    call = asyncio.ensure_future(HeadersFirst(Context()).write(b""))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.sleep(0)
    gate.set()
    await asyncio.wait((call,))
    assert call.cancelled()
    del call
    gc.collect()
    assert told == []


async def test_a_stream_that_breaks_while_its_headers_are_sent_still_tells_its_caller() -> None:
    """GenerateMany sends headers once something is submitted; what its caller sends next is no message."""
    request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[65]))
    sent = [pb.GenerateManyRequest(start=request).SerializeToString(), b"\xff\xff"]
    async with front_stack(FakeScheduler(lambda submit: [[65]])) as stack:

        async def code() -> grpc.StatusCode:
            call = stack.channel.stream_stream("/pagewire.v1.GenerationService/GenerateMany")(iter(sent), timeout=10)
            while await call.read() is not grpc.aio.EOF:
                pass
            return await call.code()

        async def failed() -> grpc.StatusCode:
            try:
                return await code()
            except grpc.RpcError as error:
                return error.code()

        for _ in range(25):
            assert set(await asyncio.gather(*(failed() for _ in range(4)))) == {grpc.StatusCode.INVALID_ARGUMENT}
