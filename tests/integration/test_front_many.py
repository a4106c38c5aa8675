"""GenerateMany: many requests over one stream."""

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from pagewire.v1 import generation_pb2 as pb
from support.fake_scheduler import FakeScheduler
from support.front_stack import FrontStack, front_stack

from scheduler_svc.front import many
from scheduler_svc.front.live_request import LiveRequest


def start(request_id: str, **fields: Any) -> Any:
    request = pb.GenerateRequest(request_id=request_id, text="x", output=pb.OutputOptions(token_ids=True))
    return pb.GenerateManyRequest(start=request, **fields)


class Collected:
    """What came for each request."""

    def __init__(self) -> None:
        self.events: dict[str, list[Any]] = {}
        self.num_messages = 0
        self.ended: set[str] = set()

    def add(self, message: Any) -> None:
        self.num_messages += 1
        for event in message.events:
            one = event.failure if event.HasField("failure") else event.response
            assert one.request_id not in self.ended, "something follows an end"
            self.events.setdefault(one.request_id, []).append(one)
            if event.HasField("failure") or event.response.HasField("summary"):
                self.ended.add(one.request_id)


async def run(stack: FrontStack, requests: Any, collected: Collected) -> None:
    async for message in stack.generation.GenerateMany(requests, timeout=20):
        collected.add(message)


async def test_many_requests_share_messages() -> None:
    scheduler = FakeScheduler(lambda submit: [[65] * 50 + [257]])
    async with front_stack(scheduler) as stack:
        collected = Collected()
        await run(stack, [start(str(place)) for place in range(200)], collected)
        assert len(collected.ended) == 200
        for events in collected.events.values():
            assert "".join(event.delta.text for event in events) == "A" * 50
            assert [event.WhichOneof("event") for event in events[-2:]] == ["finished", "summary"]
        assert collected.num_messages < 200 * 52 / 10
        assert stack.front.link.num_live == 0


async def test_window_holds_back_further_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "WINDOW", 8)
    scheduler = FakeScheduler(lambda submit: [[65, 257]])
    most = 0

    def watch(submit: Any) -> Any:
        nonlocal most
        most = max(most, len(scheduler.running) + 1)
        return [[65, 257]]

    scheduler.script = watch
    async with front_stack(scheduler) as stack:
        collected = Collected()
        await run(stack, [start(str(place)) for place in range(100)], collected)
        assert len(collected.ended) == 100
        assert most <= 8


async def test_cancel_in_stream_and_timeouts() -> None:
    scheduler = FakeScheduler(lambda submit: [[65] if submit.request_id != "quick" else [66, 257]])
    async with front_stack(scheduler) as stack:
        told = asyncio.Event()

        async def requests() -> AsyncIterator[Any]:
            yield start("slow")
            yield start("late", timeout_ms=100)
            yield start("quick", timeout_ms=2**64 - 1)
            yield pb.GenerateManyRequest(cancel_request_id="nobody")
            await told.wait()
            yield pb.GenerateManyRequest(cancel_request_id="slow")

        collected = Collected()
        running = asyncio.ensure_future(run(stack, requests(), collected))
        await scheduler.wait_for(lambda: len(scheduler.submits) == 3)
        told.set()
        await running
        assert collected.ended == {"slow", "late", "quick"}
        assert collected.events["quick"][-1].HasField("summary")
        assert collected.events["late"][-1].status.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
        finished = [event for event in collected.events["slow"] if event.HasField("finished")]
        assert [event.finished.finish_reason for event in finished] == [pb.FINISH_REASON_CANCELLED]
        assert not scheduler.running


async def test_entries_without_id_are_cancelled_by_the_id_they_got() -> None:
    scheduler = FakeScheduler(lambda submit: [[65]])
    async with front_stack(scheduler) as stack:
        call = stack.generation.GenerateMany()
        for place in range(2):
            await call.write(start(""))
            await scheduler.wait_for(lambda place=place: len(scheduler.running) == place + 1)
        collected = Collected()
        while len(collected.events) < 2:
            collected.add(await call.read())
        for request_id in list(collected.events):
            await call.write(pb.GenerateManyRequest(cancel_request_id=request_id))
        await call.done_writing()
        while len(collected.ended) < 2:
            collected.add(await call.read())
        assert await call.read() is grpc.aio.EOF
        for events in collected.events.values():
            assert [event.finished.finish_reason for event in events if event.HasField("finished")] == [
                pb.FINISH_REASON_CANCELLED
            ]


async def test_an_empty_id_cancels_nothing() -> None:
    """Not even an entry that has none yet, because its prompt is still being read."""
    async with front_stack() as stack:
        unnamed = pb.GenerateRequest(text="word " * 500, prompt_options=pb.PromptOptions(truncate_prompt_tokens=5))
        call = stack.generation.GenerateMany(
            iter([pb.GenerateManyRequest(start=unnamed), pb.GenerateManyRequest(cancel_request_id="")])
        )
        events = [event.response async for message in call for event in message.events]
    assert [event.finished.finish_reason for event in events if event.HasField("finished")] == [pb.FINISH_REASON_STOP]


async def test_closing_the_stream_cancels_its_requests() -> None:
    scheduler = FakeScheduler(lambda submit: [[65]])
    async with front_stack(scheduler) as stack:
        call = stack.generation.GenerateMany()
        for place in range(5):
            await call.write(start(str(place)))
        await scheduler.wait_for(lambda: len(scheduler.running) == 5)
        call.cancel()
        await scheduler.wait_for(lambda: len(scheduler.cancels) == 5)
        assert stack.front.link.num_live == 0
        assert await stack.front.in_flight.wait_idle(5)


async def test_an_entry_without_action_fails_alone() -> None:
    async with front_stack() as stack:
        collected = Collected()
        await run(stack, [pb.GenerateManyRequest(), start("a")], collected)
        assert collected.events[""][0].status.code == 3
        assert collected.events["a"][-1].HasField("summary")


def together(*request_ids: str, **fields: Any) -> Any:
    starts = [start(request_id).start.SerializeToString() for request_id in request_ids]
    return pb.GenerateManyRequest(starts=starts, **fields)


async def test_many_requests_of_one_message_are_entries_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "WINDOW", 8)
    scheduler = FakeScheduler(lambda submit: [[65] if submit.request_id == "late" else [65, 257]])
    async with front_stack(scheduler) as stack:
        collected = Collected()
        some, wrong = together(*map(str, range(30))), pb.GenerateRequest(request_id="wrong")
        some.starts.append(wrong.SerializeToString())
        last = together("late", timeout_ms=100)
        last.start.CopyFrom(start("first").start)
        await run(stack, [some, last], collected)
        assert collected.events.pop("wrong")[0].status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        assert collected.events.pop("late")[-1].status.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
        assert set(collected.events) == {"first", *map(str, range(30))}
        assert all(events[-1].HasField("summary") for events in collected.events.values())
        order = [submit.request_id for submit in scheduler.submits]
        assert order == [*map(str, range(30)), "first", "late"]


async def test_what_is_no_request_among_others_ends_the_stream() -> None:
    scheduler = FakeScheduler(lambda submit: [[65]])
    async with front_stack(scheduler) as stack:
        message = together("runs")
        message.starts.append(b"\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await run(stack, [message], Collected())
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await scheduler.wait_for(lambda: len(scheduler.cancels) == 1)
        assert stack.front.link.num_live == 0


def objects_of(*types: type) -> list[object]:
    """What there is of them; others may answer to isinstance with a warning."""
    return [each for each in gc.get_objects() if type(each) in types]


async def test_ended_requests_are_let_go_without_the_collector() -> None:
    scheduler = FakeScheduler(lambda submit: [[65, 257]])
    async with front_stack(scheduler) as stack:
        gc.collect()
        gc.disable()
        before = objects_of(LiveRequest)
        try:
            await run(stack, [together("a", "b"), start("c")], Collected())
            async for _ in stack.generation.Generate(start("d").start, timeout=20):
                pass
            await stack.front.in_flight.wait_idle(5)
            assert len(scheduler.submits) == 4
            assert len(objects_of(LiveRequest)) == len(before)
        finally:
            gc.enable()


@pytest.mark.parametrize("starts", [[b""] * 5000, [b"", b"\xff"]], ids=["left", "broken"])
async def test_what_is_read_of_a_stream_that_ends_early_is_let_go_without_the_collector(starts: list[bytes]) -> None:
    # The caller deals in bytes: messages are the front's.
    content = pb.GenerateManyRequest(starts=starts).SerializeToString()
    async with front_stack() as stack:
        method = stack.channel.stream_stream("/pagewire.v1.GenerationService/GenerateMany")
        gc.collect()
        gc.disable()
        before = objects_of(pb.GenerateManyRequest, many.ManyStream)
        try:
            call = method(iter([content]), timeout=20)
            await call.read()
            if starts[-1]:
                assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
            call.cancel()
            await stack.front.in_flight.wait_idle(5)
            for _ in range(20):  # the last of a call goes a few turns later
                await asyncio.sleep(0)
            assert len(objects_of(pb.GenerateManyRequest, many.ManyStream)) == len(before)
        finally:
            gc.enable()


async def test_an_entrys_delay_makes_fewer_messages_and_loses_nothing() -> None:
    scheduler = FakeScheduler(lambda submit: [[65] * 60 + [257]])
    scheduler.step_seconds = 0.005
    collected, delayed = Collected(), Collected()
    async with front_stack(scheduler) as stack:
        await run(stack, [start("now")], collected)
        slow = start("slow")
        slow.start.output.max_delay_ms = 100
        await run(stack, [slow], delayed)
    texts = [
        "".join(event.delta.text for event in each) for each in (*collected.events.values(), *delayed.events.values())
    ]
    assert texts == ["A" * 60] * 2
    assert delayed.num_messages < collected.num_messages / 2


async def test_a_silent_entry_says_that_it_is_alive_if_its_caller_wants_to_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(many, "HEARTBEAT_SECONDS", 0.02)
    scheduler = FakeScheduler(lambda submit: [[65, 257]])
    scheduler.gate.clear()
    async with front_stack(scheduler) as stack:
        asked, plain = start("asked"), start("plain")
        asked.start.output.progress_events = True
        collected = Collected()
        async for message in stack.generation.GenerateMany([asked, plain], timeout=20):
            collected.add(message)
            if sum(each.HasField("heartbeat") for each in collected.events["asked"]) == 3:
                scheduler.gate.set()
    assert not any(each.HasField("heartbeat") for each in collected.events["plain"])
    assert collected.events["asked"][-1].HasField("summary")
