"""Clients that ping a silent server (GRP-02), while a prompt is computed and between requests, are not told off."""

import asyncio
from typing import Any

import grpc
import pytest
from pagewire.v1 import generation_pb2 as pb
from support.fake_scheduler import FakeScheduler
from support.front_stack import front_stack, text_of

from scheduler_svc.front.listening import server_options

MIN_INTERVAL_MS = 5000
MAX_STRIKES = 5


def pinging(milliseconds: int) -> list[tuple[str, int]]:
    return [
        ("grpc.keepalive_time_ms", milliseconds),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.enable_retries", 0),
    ]


async def is_silent(waiting: "asyncio.Future[Any]", seconds: float) -> bool:
    """Whether nothing ends the wait for so long."""
    done, _ = await asyncio.wait({waiting}, timeout=seconds)
    return not done


def test_the_policy_for_pings() -> None:
    for reuse_port in (False, True):
        options = dict(server_options(reuse_port))
        assert options["grpc.http2.min_ping_interval_without_data_ms"] == MIN_INTERVAL_MS
        assert options["grpc.http2.max_ping_strikes"] == MAX_STRIKES
        assert options["grpc.keepalive_permit_without_calls"] == 1
        assert options["grpc.keepalive_time_ms"] + options["grpc.keepalive_timeout_ms"] <= 90_000


REQUEST = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[65]))


async def test_an_old_connection_gives_way_to_a_new_one_and_its_calls_go_on() -> None:
    scheduler = FakeScheduler()
    scheduler.gate.clear()
    async with front_stack(scheduler, max_connection_age_seconds=0.2) as stack:
        reading = asyncio.ensure_future(stack.stream(REQUEST))
        await asyncio.wait_for(stack.channel.wait_for_state_change(grpc.ChannelConnectivity.READY), 10)
        assert not reading.done()
        scheduler.gate.set()
        assert text_of(await reading) == "Hi"
        assert text_of(await stack.stream(REQUEST)) == "Hi"


async def test_calls_on_an_old_connection_may_get_a_limit() -> None:
    scheduler = FakeScheduler()
    scheduler.gate.clear()
    limits = {"max_connection_age_seconds": 0.2, "max_connection_age_grace_seconds": 0.2}
    async with front_stack(scheduler, channel_options=[("grpc.enable_retries", 0)], **limits) as stack:
        with pytest.raises(grpc.RpcError) as ended:
            await stack.stream(REQUEST)
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        scheduler.gate.set()


@pytest.mark.soak
async def test_grp_02_pings_during_a_silent_prefill_and_between_requests() -> None:
    """Longer than a server that counts every ping as a strike would bear."""
    every = MIN_INTERVAL_MS + 500
    silence = (MAX_STRIKES + 3.5) * every / 1000
    scheduler = FakeScheduler()
    scheduler.gate.clear()
    async with front_stack(scheduler, channel_options=pinging(every)) as stack:
        reading = asyncio.ensure_future(stack.stream(REQUEST, timeout=silence + 20))
        assert await is_silent(reading, silence)
        scheduler.gate.set()
        assert text_of(await reading) == "Hi"
        leaving = asyncio.ensure_future(stack.channel.wait_for_state_change(grpc.ChannelConnectivity.READY))
        assert await is_silent(leaving, silence)
        leaving.cancel()
        assert text_of(await stack.stream(REQUEST)) == "Hi"


@pytest.mark.soak
async def test_grp_02_pings_that_come_too_often_are_refused() -> None:
    """As the policy says; it also shows that the other test could fail."""
    scheduler = FakeScheduler()
    scheduler.gate.clear()
    async with front_stack(scheduler, channel_options=pinging(1000)) as stack:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stack.stream(REQUEST, timeout=30)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "too many pings" in str(caught.value.details()).lower().replace("_", " ")
        scheduler.gate.set()
        assert text_of(await stack.stream(REQUEST)) == "Hi"
