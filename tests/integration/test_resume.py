"""Streams that break and go on: through any front, nothing lost or repeated, whatever the position; ids said twice."""

import contextlib
import os
import random
import signal
import threading
from array import array
from collections.abc import Iterator
from typing import Any

import grpc
import psutil
import pytest
from pagewire.v1 import generation_pb2 as pb
from pagewire.v1 import generation_pb2_grpc
from pagewire_client import (
    AlreadyExistsError,
    AsyncClient,
    InvalidRequestError,
    RequestCancelledError,
    UnavailableError,
)
from support.conditions import wait_until
from support.scripted_stack import ScriptedStack, first_ids
from support.scripted_worker import ScriptedWorker

GRACE_MS = 60_000
TEXT = "Grüße aus der Höhle: 日本語 und 🦊, dann END und mehr, viel mehr Text"
EOS = 257


@pytest.fixture(scope="module")
def stack() -> Iterator[ScriptedStack]:
    with ScriptedStack("--front-processes", "2") as running:
        yield running


@pytest.fixture
def worker(stack: ScriptedStack) -> Iterator[ScriptedWorker]:
    with stack.worker(step_seconds=0.002) as running:
        yield running


def stub_of(stack: ScriptedStack) -> Any:
    channel = grpc.insecure_channel(stack.scheduler.target, options=[("grpc.use_local_subchannel_pool", 1)])
    return channel, generation_pb2_grpc.GenerationServiceStub(channel)


def request_of(prompt: list[int], request_id: str, **fields: Any) -> pb.GenerateRequest:
    request = pb.GenerateRequest(request_id=request_id, token_ids=pb.TokenIds(ids=prompt))
    request.scheduling.resume_grace_ms = fields.pop("grace", GRACE_MS)
    request.output.token_ids = fields.pop("ids", True)
    request.output.n = fields.pop("n", 1)
    request.stop.max_tokens = fields.pop("max_tokens", 80)
    request.stop.stop.extend(fields.pop("stop", ()))
    request.stop.ignore_eos = fields.pop("ignore_eos", False)
    assert not fields
    return request


class Taken:
    """What a caller took of a request over all its streams, checked as a caller would."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}
        self.ids: dict[int, list[int]] = {}
        self.positions: dict[int, pb.ResumePosition] = {}
        self.finished: dict[int, Any] = {}
        self.summary: Any = None

    def take(self, call: Any, messages: int | None = None) -> None:
        """So many messages of a stream, all if None."""
        for message in call:
            self.note(getattr(message, "response", message))
            if messages is not None and (messages := messages - 1) <= 0:
                break

    def note(self, message: Any) -> None:
        assert self.summary is None
        kind = message.WhichOneof("event")
        if kind == "summary":
            self.summary = message.summary
            return
        event = getattr(message, kind)
        position = self.positions.setdefault(event.index, pb.ResumePosition(index=event.index))
        assert event.index not in self.finished
        if kind == "finished":
            self.finished[event.index] = event
            position.received_finished = True
            return
        assert event.num_output_tokens >= position.num_received_tokens
        position.received_tail = event.num_output_tokens == position.num_received_tokens
        position.num_received_tokens = event.num_output_tokens
        self.texts[event.index] = self.texts.get(event.index, "") + event.text
        self.ids.setdefault(event.index, []).extend(event.token_ids)

    def resume(self, stub: Any, request_id: str) -> Any:
        return stub.ResumeGenerate(
            pb.ResumeGenerateRequest(request_id=request_id, positions=self.positions.values()), timeout=20
        )


@pytest.mark.parametrize("seed", range(6))
def test_a_stream_broken_anywhere_continues_exactly(stack: ScriptedStack, worker: ScriptedWorker, seed: int) -> None:
    draw = random.Random(seed)
    prompt = [3, 7, seed]
    stack.outputs[tuple(prompt)] = [*TEXT.encode(), EOS]
    options: dict[str, Any] = {
        "n": draw.choice([1, 3]),
        "stop": draw.choice([(), ("END",), ("mehr Text and more",)]),
        "ids": draw.random() < 0.7,
        "max_tokens": draw.choice([200, 25, 11]),
    }
    channel, stub = stub_of(stack)
    whole = stub.GenerateOnce(
        pb.GenerateOnceRequest(request=request_of(prompt, f"whole-{seed}", **options)), timeout=20
    )
    taken = Taken()
    request = request_of(prompt, f"broken-{seed}", **options)
    call = stub.Generate(request, timeout=60)
    while taken.summary is None:
        taken.take(call, draw.randint(1, 12))
        call.cancel()
        channel.close()
        channel, stub = stub_of(stack)
        call = taken.resume(stub, request.request_id) if taken.positions else stub.Generate(request, timeout=20)
    channel.close()
    for output in whole.outputs:
        assert taken.texts.get(output.index, "") == output.text
        assert taken.ids.get(output.index, []) == list(output.token_ids)
        assert taken.finished[output.index] == output.finished
    assert taken.summary.usage == whole.summary.usage
    stack.wait_idle()


def test_an_ended_request_is_told_again_and_only_what_is_missing(stack: ScriptedStack, worker: ScriptedWorker) -> None:
    stack.outputs[5, 5] = list("Grüße".encode()[:3])  # ends inside a character
    channel, stub = stub_of(stack)
    taken = Taken()
    taken.take(stub.Generate(request_of([5, 5], "ended"), timeout=20))
    assert taken.texts[0] == "Gr\ufffd"
    for received in range(5):
        again = Taken()
        again.positions[0] = pb.ResumePosition(index=0, num_received_tokens=received)
        again.take(again.resume(stub, "ended"))
        assert again.ids.get(0, []) == taken.ids[0][received:]
        assert again.texts[0] == (taken.texts[0][received:] if received < 3 else "\ufffd")
        assert again.summary == taken.summary
    beyond = pb.ResumeGenerateRequest(request_id="ended", positions=[pb.ResumePosition(num_received_tokens=9)])
    told = [each.response.delta for each in stub.ResumeGenerate(beyond, timeout=20) if each.response.HasField("delta")]
    assert [(each.text, each.num_output_tokens) for each in told] == [("\ufffd", 4)]  # no more than there are
    taken.summary = None
    taken.finished.clear()
    rest = [each.response.WhichOneof("event") for each in taken.resume(stub, "ended")]
    assert rest == ["summary"]
    channel.close()


def front_pids(stack: ScriptedStack) -> list[int]:
    return [child.pid for child in psutil.Process(stack.scheduler.process.pid).children()]


def wait_fronts(stack: ScriptedStack) -> None:
    """Until both fronts live again, and the first, which alone has the internal port, answers there."""

    def answers() -> bool:
        with contextlib.suppress(UnavailableError):
            return len(front_pids(stack)) == 2 and stack.load() is not None
        return False

    wait_until(answers, "the fronts answer again", 20)


def test_a_killed_front_loses_no_resumable_stream(stack: ScriptedStack, worker: ScriptedWorker) -> None:
    clients = [stack.connect() for _ in range(6)]
    prompts = [[9, number] for number in range(6)]
    streams = [
        client.stream(
            prompt, token_ids=True, max_tokens=150, ignore_eos=True, resume_grace_ms=GRACE_MS, n=1 + place % 2
        )
        for place, (client, prompt) in enumerate(zip(clients, prompts, strict=True))
    ]
    for stream in streams:
        first_ids(stream, 3)
    pids = front_pids(stack)
    os.kill(pids[0], signal.SIGKILL)
    results = [stream.join() for stream in streams]
    for prompt, result in zip(prompts, results, strict=True):
        alone = stack.client.generate(prompt, token_ids=True, max_tokens=150, ignore_eos=True, n=len(result.outputs))
        assert [o.token_ids for o in result.outputs] == [o.token_ids for o in alone.outputs]
        assert [o.text for o in result.outputs] == [o.text for o in alone.outputs]
        assert result.usage.output_tokens == alone.usage.output_tokens
    wait_fronts(stack)
    stack.wait_idle()


async def test_an_asynchronous_stream_continues_too(stack: ScriptedStack, worker: ScriptedWorker) -> None:
    async with (
        AsyncClient(stack.scheduler.target, timeout=30) as client,
        client.stream([4, 4], token_ids=True, max_tokens=100, resume_grace_ms=GRACE_MS) as stream,
    ):
        await anext(stream)
        for pid in front_pids(stack):
            os.kill(pid, signal.SIGKILL)
        joined = await stream.join()
    alone = stack.client.generate([4, 4], token_ids=True, max_tokens=100)
    assert joined.outputs[0].token_ids == alone.outputs[0].token_ids
    wait_fronts(stack)


def test_the_same_id_and_content_is_the_same_request(stack: ScriptedStack) -> None:
    with stack.worker(step_seconds=0.03) as worker:  # each that is refused waits 0.25 s before
        options: dict[str, Any] = {"request_id": "twice", "token_ids": True, "max_tokens": 60, "seed": None}
        first = stack.client.stream([8, 8], resume_grace_ms=GRACE_MS, **options)
        begun = first_ids(first, 5)
        with pytest.raises(AlreadyExistsError):
            stack.client.generate([8, 9], resume_grace_ms=GRACE_MS, **options)
        with pytest.raises(AlreadyExistsError):
            stack.client.generate([8, 8], **options)
        whole = stack.connect().generate([8, 8], resume_grace_ms=GRACE_MS, **options)
        assert whole.outputs[0].token_ids[: len(begun)] == begun
        assert len(whole.outputs[0].token_ids) == 60
        with pytest.raises(RequestCancelledError) as error:
            list(first)
        assert error.value.reason == "RESUMED_ELSEWHERE"
        again = stack.client.generate([8, 8], resume_grace_ms=GRACE_MS, **options)
        assert again == whole
        assert sum(recorded.plan.HasField("new_rows") for recorded in worker.plans) == 1


def test_ids_that_come_packed_are_those_of_the_same_request(stack: ScriptedStack, worker: ScriptedWorker) -> None:
    channel, stub = stub_of(stack)
    plain, packed = request_of([8, 12], "either way"), request_of([], "either way")
    packed.token_ids.packed_ids = array("i", [8, 12]).tobytes()
    with channel:
        told = [stub.GenerateOnce(pb.GenerateOnceRequest(request=each), timeout=20) for each in (plain, packed, plain)]
    assert told[0] == told[1] == told[2]
    assert sum(recorded.plan.HasField("new_rows") for recorded in worker.plans) == 1


def test_what_one_entry_took_over_from_another_can_be_cancelled_in_the_stream(
    stack: ScriptedStack, worker: ScriptedWorker
) -> None:
    channel, stub = stub_of(stack)
    start = pb.GenerateManyRequest(start=request_of([8, 11], "both", max_tokens=400))
    taken_over = threading.Event()

    def requests() -> Iterator[Any]:
        yield from (start, start)
        taken_over.wait(10)
        yield pb.GenerateManyRequest(cancel_request_id="both")

    with channel:
        reasons = []
        for message in stub.GenerateMany(requests(), timeout=20):
            if any(event.HasField("failure") for event in message.events):
                taken_over.set()
            reasons += [
                event.response.finished.finish_reason for event in message.events if event.response.HasField("finished")
            ]
    assert reasons == [pb.FINISH_REASON_CANCELLED]


def test_without_a_front_a_request_lives_for_its_grace(stack: ScriptedStack) -> None:
    with stack.worker(step_seconds=0.01):
        channel, stub = stub_of(stack)
        call = stub.Generate(request_of([2, 2], "graceful", grace=1000, max_tokens=5000), timeout=60)
        Taken().take(call, 2)
        channel.close()
        channel, stub = stub_of(stack)
        asked = pb.GetRequestRequest(request_id="graceful")
        assert stub.GetRequest(asked).state == pb.REQUEST_STATE_RUNNING
        wait_until(lambda: stub.GetRequest(asked).state == pb.REQUEST_STATE_ENDED, "the grace is over")
        stack.wait_idle()
        assert stub.GetRequest(asked).finished[0].finish_reason == pb.FINISH_REASON_CANCELLED
        channel.close()


def test_a_request_without_a_front_can_be_cancelled_and_its_ending_read(stack: ScriptedStack) -> None:
    with stack.worker(step_seconds=0.01):
        channel, stub = stub_of(stack)
        call = stub.Generate(request_of([2, 3], "alone", max_tokens=5000), timeout=60)
        taken = Taken()
        taken.take(call, 3)
        channel.close()
        channel, stub = stub_of(stack)
        stub.CancelRequest(pb.CancelRequestRequest(request_id="alone"))
        stack.wait_idle()
        taken.take(taken.resume(stub, "alone"))
        assert taken.finished[0].finish_reason == pb.FINISH_REASON_CANCELLED
        assert len(taken.ids[0]) == taken.summary.usage.output_tokens
        channel.close()


def test_leaving_the_block_ends_a_resumable_request(stack: ScriptedStack) -> None:
    with stack.worker(step_seconds=0.01):
        with stack.client.stream([6, 6], resume_grace_ms=GRACE_MS, token_ids=True) as stream:
            first_ids(stream)
        stack.wait_idle()


def test_what_cannot_be_resumed_is_told(stack: ScriptedStack, worker: ScriptedWorker) -> None:
    channel, stub = stub_of(stack)
    with stack.client.stream([1, 9], request_id="plain", token_ids=True) as stream:
        first_ids(stream)
        for request_id in ("plain", "never"):
            with pytest.raises(grpc.RpcError) as error:
                list(stub.ResumeGenerate(pb.ResumeGenerateRequest(request_id=request_id), timeout=10))
            assert error.value.code() is grpc.StatusCode.NOT_FOUND
    bad = pb.ResumeGenerateRequest(positions=[pb.ResumePosition(index=99), pb.ResumePosition(index=99)])
    with pytest.raises(grpc.RpcError) as error:
        list(stub.ResumeGenerate(bad, timeout=10))
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(InvalidRequestError, match=r"scheduling\.resume_grace_ms"):
        stack.client.generate("a", resume_grace_ms=10**9)
    channel.close()
    stack.wait_idle()


def test_the_soft_limit_and_a_stop_string_hold_without_a_front(stack: ScriptedStack) -> None:
    stack.outputs[4, 1] = list(b"one STOP two")
    with stack.worker(step_seconds=0.005):
        channel, stub = stub_of(stack)
        call = stub.Generate(request_of([4, 1], "unseen", stop=["STOP"]), timeout=60)
        taken = Taken()
        taken.take(call, 1)
        channel.close()
        channel, stub = stub_of(stack)
        asked = pb.GetRequestRequest(request_id="unseen")
        # At its end-of-sequence token it waits: nobody has searched its text.
        wait_until(lambda: stub.GetRequest(asked).usage.output_tokens >= 13, "all tokens are there", 5)
        taken.take(taken.resume(stub, "unseen"))
        assert taken.texts[0] == "one "
        assert taken.finished[0].stop_string == "STOP"
        assert taken.summary.usage.output_tokens == 8
        channel.close()
        stack.wait_idle()
