"""The front's link alone: frames are complete, in order and merged (ZMQ-04)."""

import asyncio
import random
from array import array
from collections.abc import Callable
from typing import Any

import pytest
from pagewire.internal.v1 import front_pb2
from support.fake_scheduler import FakeScheduler

from scheduler_svc.front.errors import FrontError
from scheduler_svc.front.link_socket import LinkSocket
from scheduler_svc.front.scheduler_link import SchedulerLink
from scheduler_svc.output_key import output_key


class Numbers:
    """A sink that checks what it is given."""

    def __init__(self) -> None:
        self.token_ids = array("i")
        self.changed = asyncio.Event()
        self.error: FrontError | None = None

    def adder(self, index: int) -> Callable[[int], None]:
        return self.add

    def slot(self, index: int) -> None:
        """Every token is to be told."""

    def add(self, token_id: int) -> None:
        self.token_ids.append(token_id)
        self.changed.set()

    def apply(self, event: Any) -> None:
        raise AssertionError("no event was sent")

    def fail(self, error: FrontError) -> None:
        self.error = error


def link_to(scheduler: FakeScheduler, on_answer: Callable[[], None] = lambda: None) -> SchedulerLink:
    return SchedulerLink(
        scheduler.endpoint, on_service=lambda service: on_answer(), on_lost=lambda: None, on_refusal=lambda reason: None
    )


async def test_zmq_04_no_frame_is_lost_whatever_the_readers_do() -> None:
    """Consumers wait with tiny timeouts and are cancelled all the time; the one reader task loses nothing."""
    num_frames = 5000
    async with FakeScheduler(lambda submit: [[]]) as scheduler:
        link = link_to(scheduler)
        link.start()
        sink = Numbers()
        key = link.submit(front_pb2.Submit(n=1, max_tokens=1), sink)
        await scheduler.wait_for(lambda: len(scheduler.submits) == 1)
        front = next(iter(scheduler._fronts))
        choices = random.Random(4)

        async def send() -> None:
            for number in range(num_frames):
                frame = front_pb2.SchedulerToFrontFrame(
                    tokens=front_pb2.Tokens(
                        keys=output_key(0, key, 0).to_bytes(8, "little"),
                        token_ids=number.to_bytes(4, "little"),
                    )
                )
                await scheduler._send(front, frame)
                if choices.random() < 0.05:
                    await asyncio.sleep(choices.random() * 0.002)

        async def wait_a_little() -> None:
            while len(sink.token_ids) < num_frames:
                sink.changed.clear()
                try:
                    await asyncio.wait_for(sink.changed.wait(), choices.random() * 0.002)
                except asyncio.TimeoutError:
                    continue

        await asyncio.wait_for(asyncio.gather(send(), wait_a_little()), 30)
        assert sink.token_ids.tolist() == list(range(num_frames))
        await link.close()
        assert sink.error is not None


async def test_everything_of_one_turn_goes_in_one_frame() -> None:
    async with FakeScheduler(lambda submit: [[]]) as scheduler:
        answered = asyncio.Event()
        link = link_to(scheduler, answered.set)
        link.start()
        await asyncio.wait_for(answered.wait(), 5)
        before = scheduler.frames
        for place in range(100):
            link.submit(front_pb2.Submit(n=1, max_tokens=1, request_id=str(place)), Numbers())
        link.cancel(3)
        await scheduler.wait_for(lambda: len(scheduler.submits) == 100)
        assert scheduler.frames <= before + 2
        assert [submit.key for submit in scheduler.submits] == list(range(1, 101))
        await link.close()


async def test_a_request_that_is_alone_does_not_wait_for_the_turn_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    send = LinkSocket.send

    def watched(socket: LinkSocket, frame: bytes) -> None:
        sent.append(len(front_pb2.FrontFrame.FromString(frame).submits))
        send(socket, frame)

    async with FakeScheduler(lambda submit: [[]]) as scheduler:
        answered = asyncio.Event()
        link = link_to(scheduler, answered.set)
        link.start()
        await asyncio.wait_for(answered.wait(), 5)
        monkeypatch.setattr(LinkSocket, "send", watched)
        for _ in range(3):
            link.submit(front_pb2.Submit(n=1, max_tokens=1), Numbers())
        assert sent == [1]
        await scheduler.wait_for(lambda: len(scheduler.submits) == 3)
        assert [count for count in sent if count] == [1, 2]
        await link.close()


async def test_requests_submitted_before_the_scheduler_answers_are_sent_then() -> None:
    async with FakeScheduler(lambda submit: [[]]) as scheduler:
        link = link_to(scheduler)
        link.submit(front_pb2.Submit(n=1, max_tokens=1), Numbers())
        link.start()
        await scheduler.wait_for(lambda: len(scheduler.submits) == 1)
        await link.close()


async def test_refusal_is_told() -> None:
    refusals: list[str] = []
    told = asyncio.Event()

    def refused(reason: str) -> None:
        refusals.append(reason)
        told.set()

    async with FakeScheduler() as scheduler:
        link = SchedulerLink(
            scheduler.endpoint, on_service=lambda service: None, on_lost=lambda: None, on_refusal=refused
        )
        link.start()
        await scheduler.wait_for(lambda: len(scheduler.hellos) == 1)
        await scheduler.send_all(front_pb2.SchedulerToFrontFrame(refusal="another version"))
        await asyncio.wait_for(told.wait(), 5)
        assert refusals == ["another version"]
        await link.close()


async def test_a_question_that_is_given_up_as_its_answer_comes_is_given_up() -> None:
    async with FakeScheduler() as scheduler:
        answered = asyncio.Event()
        link = link_to(scheduler, answered.set)
        link.start()
        await asyncio.wait_for(answered.wait(), 5)
        asking = asyncio.ensure_future(link.query(load=True))
        await asyncio.sleep(0)
        (future,) = link._queries.values()
        future.set_result(front_pb2.Reply(response=b"x"))
        asking.cancel()
        await asyncio.wait((asking,))
        assert asking.cancelled()
        await link.close()
