"""Workers that join, misbehave or speak nonsense: what is refused, resynchronised or dropped, and what goes on."""

import os
import secrets
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import AF_UNIX
from socket import socket as StreamSocket
from typing import Any

import pytest
import zmq
from pagewire.internal.v1 import worker_pb2
from support.conditions import wait_until
from support.engine_thread import EngineThread
from support.link_faults import ChangedFrame, LateFrame, LostFrame, RepeatedFrame
from support.raw_front import RawFront
from support.scripted_rows import Limits
from support.scripted_worker import ScriptedWorker, expected, model_card

PROMPTS = [list(range(start, start + 30)) for start in (0, 50, 100)]
NUM_TOKENS = 8
LIMITS = Limits(max_num_batched_tokens=48)


@pytest.fixture
def engine() -> Iterator[EngineThread]:
    with EngineThread(worker_timeout_seconds=1.0) as running:
        yield running


@pytest.fixture
def front(engine: EngineThread) -> Iterator[RawFront]:
    with RawFront(engine.front_endpoint) as connected:
        yield connected


def run_batch(engine: EngineThread, front: RawFront, worker: ScriptedWorker) -> None:
    """A few requests; every one ends as if nothing had happened, and nothing of them is left."""
    front.wait_ready()
    keys = [front.submit(prompt, max_tokens=NUM_TOKENS) for prompt in PROMPTS]
    front.wait_over(*keys)
    for key, prompt in zip(keys, PROMPTS, strict=True):
        assert front.requests[key].ended.reason == 0
        assert front.requests[key].output() == expected(prompt, NUM_TOKENS)
    assert worker.rows.violations == []
    engine.wait_clean()


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    created: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield created
    created.destroy(linger=0)


def peer(context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str) -> "zmq.Socket[bytes]":
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(endpoint)
    return socket


def received(socket: "zmq.Socket[bytes]", seconds: float = 5.0) -> Any:
    assert socket.poll(seconds * 1000), "nothing came"
    return worker_pb2.SchedulerFrame.FromString(socket.recv())


# One frame lost, repeated or late.

FAULTS = [LostFrame, RepeatedFrame, LateFrame]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("step_id", range(1, 10))
def test_a_faulty_result_never_makes_a_wrong_token(
    engine: EngineThread, front: RawFront, fault: Callable[[int], Any], step_id: int
) -> None:
    happens = fault(step_id)
    with ScriptedWorker(engine.worker_endpoint, limits=LIMITS, on_result=happens) as worker:
        run_batch(engine, front, worker)
        assert happens.happened
        assert engine.faults() > 0
        assert worker.num_joins == (1 if fault is RepeatedFrame else 2)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("step_id", range(1, 10))
def test_a_faulty_plan_never_makes_a_wrong_token(
    engine: EngineThread, front: RawFront, fault: Callable[[int], Any], step_id: int
) -> None:
    happens = fault(step_id)
    with ScriptedWorker(engine.worker_endpoint, limits=LIMITS, on_plan=happens) as worker:
        run_batch(engine, front, worker)
        assert happens.happened
        assert engine.faults() > 0
        assert worker.num_joins >= 2


# Columns that do not fit.


def change_plan(change: Callable[[Any], None]) -> Callable[[bytes], bytes]:
    def changed(content: bytes) -> bytes:
        frame = worker_pb2.SchedulerFrame.FromString(content)
        change(frame.plan)
        return bytes(frame.SerializeToString())

    return changed


def _short(plan: Any) -> None:
    plan.append_pages = plan.append_pages[:-4]


def _torn(plan: Any) -> None:
    plan.chunk_tokens = plan.chunk_tokens[:-1]


def _far_page(plan: Any) -> None:
    plan.append_pages = array("i", [10_000] * (len(plan.append_pages) // 4)).tobytes()


def _wrong_sum(plan: Any) -> None:
    plan.num_scheduled_tokens += 1


def _far_row(plan: Any) -> None:
    plan.chunk_rows = array("H", [77] * (len(plan.chunk_rows) // 2)).tobytes()


@pytest.mark.parametrize("change", [_short, _torn, _far_page, _wrong_sum, _far_row])
def test_a_plan_that_does_not_fit_is_refused_whole(
    engine: EngineThread, front: RawFront, change: Callable[[Any], None]
) -> None:
    fault = ChangedFrame(1, change_plan(change))
    with ScriptedWorker(engine.worker_endpoint, limits=LIMITS, on_plan=fault) as worker:
        run_batch(engine, front, worker)
        assert len(worker.refusals) == 1
        assert worker.num_joins == 2


def test_a_plan_that_is_refused_for_ever_ends_its_requests(engine: EngineThread, front: RawFront) -> None:
    def refuse(step_id: int, content: bytes) -> list[bytes]:
        return [change_plan(_wrong_sum)(content)]

    with ScriptedWorker(engine.worker_endpoint, on_plan=refuse) as worker:
        front.wait_ready()
        key = front.submit(PROMPTS[0])
        front.wait_over(key)
        assert front.requests[key].ended.reason == 10
        worker.options.on_plan = None
        run_batch(engine, front, worker)


def _fewer_rows(result: Any) -> None:
    result.rows, result.token_ids = result.rows[:-4], result.token_ids[:-4]


def _fewer_ids(result: Any) -> None:
    result.token_ids = result.token_ids[:-4]


def _torn_ids(result: Any) -> None:
    result.token_ids = result.token_ids[:-1]


def _other_row(result: Any) -> None:
    rows = array("i", result.rows)
    rows[-1] = 200
    result.rows = rows.tobytes()


def _swapped_rows(result: Any) -> None:
    result.rows = result.rows[4:8] + result.rows[:4] + result.rows[8:]


def _large_id(result: Any) -> None:
    result.token_ids = array("i", [300] * (len(result.token_ids) // 4)).tobytes()


def _negative_id(result: Any) -> None:
    result.token_ids = b"\xff" * len(result.token_ids)


def _status(result: Any) -> None:
    result.statuses = b"\x09" * (len(result.rows) // 4)


def _few_statuses(result: Any) -> None:
    result.statuses = b"\x01"


def _failed_with_rows(result: Any) -> None:
    result.failure = "failed"


CHANGES = [
    *(_fewer_rows, _fewer_ids, _torn_ids, _other_row, _swapped_rows, _large_id, _negative_id, _status, _few_statuses),
    _failed_with_rows,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_result_that_does_not_fit_is_not_believed(
    engine: EngineThread, front: RawFront, change: Callable[[Any], None]
) -> None:
    changed: list[int] = []

    def change_once(step_id: int, result: Any) -> None:
        if not changed and len(result.rows) >= 8:
            changed.append(step_id)
            change(result)

    with ScriptedWorker(engine.worker_endpoint, limits=LIMITS, change_result=change_once) as worker:
        run_batch(engine, front, worker)
        assert changed
        assert worker.num_joins == 2


# Joining.


def test_another_model_is_refused_with_the_reason(engine: EngineThread, front: RawFront) -> None:
    with (
        ScriptedWorker(engine.worker_endpoint, limits=LIMITS) as worker,
        ScriptedWorker(engine.worker_endpoint, digest="toy-2") as other,
    ):
        run_batch(engine, front, worker)
        first, second = (other, worker) if other.is_joined else (worker, other)
        wait_until(lambda: second.hello_refusals, "refused")
        assert "toy-1" in second.hello_refusals[0]
        assert "toy-2" in second.hello_refusals[0]
        assert first.is_joined


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"protocol_version": 2}, "protocol version 2"),
        ({"limits": Limits(page_size=32)}, "page size 32"),
        ({"limits": Limits(num_pages=0)}, "zero"),
    ],
)
def test_a_worker_that_does_not_fit_is_refused(
    engine: EngineThread, front: RawFront, options: dict[str, Any], word: str
) -> None:
    with ScriptedWorker(engine.worker_endpoint, limits=LIMITS) as worker:
        front.wait_ready()
        with ScriptedWorker(engine.worker_endpoint, **options) as other:
            wait_until(lambda: other.hello_refusals, "refused")
            assert word in other.hello_refusals[0]
            run_batch(engine, front, worker)
            assert other.num_joins == 0


def test_a_hello_of_absurd_size_is_refused_at_once(
    engine: EngineThread, context: "zmq.Context[zmq.Socket[bytes]]"
) -> None:
    socket = peer(context, engine.worker_endpoint)
    hello = worker_pb2.Hello(
        protocol_version=1,
        page_size=1,
        num_pages=2**32 - 1,
        max_num_seqs=2**32 - 1,
        max_num_batched_tokens=2**32 - 1,
        max_model_len=2**32 - 1,
        model_card=model_card("toy-1", LIMITS),
    )
    socket.send(worker_pb2.WorkerFrame(epoch=1, hello=hello).SerializeToString())
    assert "4294967295 pages" in received(socket).refusal.reason
    socket.close()


def test_an_unknown_epoch_is_told_to_say_hello(engine: EngineThread, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    socket = peer(context, engine.worker_endpoint)
    heartbeat = worker_pb2.Heartbeat(last_received_step_id=3)
    socket.send(worker_pb2.WorkerFrame(session=99, epoch=7, step_id=3, heartbeat=heartbeat).SerializeToString())
    frame = received(socket)
    assert frame.WhichOneof("body") == "resync"
    assert frame.epoch == 7
    assert frame.session not in (0, 99)
    socket.close()


def test_a_late_result_of_an_old_epoch_is_dropped(engine: EngineThread, front: RawFront) -> None:
    with ScriptedWorker(engine.worker_endpoint, limits=LIMITS, steps_before_hold=3) as worker:
        front.wait_ready()
        key = front.submit(PROMPTS[0], max_tokens=NUM_TOKENS)
        front.wait_tokens(key, 2)
        old_epoch, session = worker._epoch, worker._session
        result = worker_pb2.StepResult(rows=array("i", [0]).tobytes(), token_ids=array("i", [66]).tobytes())
        stale = worker_pb2.WorkerFrame(session=session, epoch=old_epoch + 1, step_id=4, result=result)
        before = engine.faults()
        worker.send_bytes(stale.SerializeToString())
        wait_until(lambda: engine.faults() > before, "the frame was counted")
        worker.options.steps_before_hold = None
        front.wait_over(key)
        assert front.requests[key].output() == expected(PROMPTS[0], NUM_TOKENS)


def test_two_workers_share_the_work_and_one_may_leave(engine: EngineThread, front: RawFront) -> None:
    with (
        ScriptedWorker(engine.worker_endpoint, limits=LIMITS, step_seconds=0.002) as first,
        ScriptedWorker(engine.worker_endpoint, limits=LIMITS, step_seconds=0.002) as second,
    ):
        front.wait_ready(2)
        keys = [front.submit([number] * 20, max_tokens=30) for number in range(10)]
        front.wait(lambda: all(front.requests[key].tokens for key in keys), "all run")
        assert first.plans
        assert second.plans
        second.leave()
        front.wait_ready(1)
        front.wait_over(*keys)
        for number, key in enumerate(keys):
            assert front.requests[key].output() == expected([number] * 20, 30)
        assert first.rows.violations == second.rows.violations == []
        engine.wait_clean()


def test_a_worker_that_fails_at_once_again_and_again_waits(engine: EngineThread, front: RawFront) -> None:
    broken = [True]

    def change(step_id: int, result: Any) -> None:
        if broken[0]:
            _large_id(result)

    begun = time.monotonic()
    with ScriptedWorker(engine.worker_endpoint, limits=LIMITS, change_result=change) as worker:
        front.wait_ready()
        key = front.submit(PROMPTS[0], max_tokens=NUM_TOKENS)
        front.wait(lambda: worker.num_joins == 4, "it joined four times")
        assert time.monotonic() - begun > 0.6
        with ScriptedWorker(engine.worker_endpoint, limits=LIMITS) as other:
            front.wait(lambda: other.is_joined, "another one joins at once", 2)
            front.wait_over(key)
            assert front.requests[key].output() == expected(PROMPTS[0], NUM_TOKENS)
        broken[0] = False
        front.wait(lambda: worker.is_joined, "it joined")
        num_joins = worker.num_joins
        run_batch(engine, front, worker)
        worker.send_bytes(b"\xff\xff\xff")
        front.wait(lambda: worker.num_joins == num_joins + 1, "forgiven, it joins at once", 0.9)


# Garbage.


def test_garbage_is_counted_and_dropped(
    engine: EngineThread, front: RawFront, context: "zmq.Context[zmq.Socket[bytes]]", tmp_path: Path
) -> None:
    marker = tmp_path / f"marker_{secrets.token_hex(4)}"
    pickled = f"cposix\nsystem\n(S'touch {marker}'\ntR.".encode()
    with ScriptedWorker(engine.worker_endpoint, limits=LIMITS) as worker:
        front.wait_ready()
        for endpoint in (engine.worker_endpoint, engine.front_endpoint):
            socket = peer(context, endpoint)
            before = engine.faults()
            for content in (os.urandom(1000), b"", pickled, b"\x08"):
                socket.send(content)
            socket.send_multipart([b"", b"a", b"b"])
            wait_until(lambda before=before: engine.faults() >= before + 5, "all were counted")
            socket.close()
        run_batch(engine, front, worker)
        assert worker.num_joins == 1
        assert not marker.exists()


def test_bytes_of_another_protocol_are_dropped(engine: EngineThread, front: RawFront) -> None:
    # ZMTP 1.0, a frame that names nobody and a frame of five bytes: ZeroMQ takes it, and tells no descriptor. Bytes of
    # unrelated protocols often look like it.
    spoken = (b"\x01\x00\x06\x00hello", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + bytes(500))
    with ScriptedWorker(engine.worker_endpoint, limits=LIMITS) as worker:
        front.wait_ready()
        for endpoint in (engine.worker_endpoint, engine.front_endpoint):
            for content in spoken:
                with StreamSocket(AF_UNIX) as raw:
                    raw.settimeout(5)
                    raw.connect(endpoint.removeprefix("ipc://"))
                    raw.sendall(content)
                    assert raw.recv(64)
                    run_batch(engine, front, worker)
        assert worker.num_joins == 1


def test_an_oversized_message_closes_its_connection_alone(
    engine: EngineThread, front: RawFront, context: "zmq.Context[zmq.Socket[bytes]]"
) -> None:
    with ScriptedWorker(engine.worker_endpoint, limits=LIMITS) as worker:
        front.wait_ready()
        for endpoint in (engine.worker_endpoint, engine.front_endpoint):
            socket = context.socket(zmq.DEALER)
            socket.setsockopt(zmq.LINGER, 0)
            monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            socket.connect(endpoint)
            socket.send(bytes(64_000_000))
            assert monitor.poll(10_000), "the connection stays open"
            socket.disable_monitor()
            monitor.close()
            socket.close()
        run_batch(engine, front, worker)
        assert worker.num_joins == 1


def test_garbage_from_a_joined_worker_starts_it_again(engine: EngineThread, front: RawFront) -> None:
    with ScriptedWorker(engine.worker_endpoint, limits=LIMITS, steps_before_hold=3) as worker:
        front.wait_ready()
        key = front.submit(PROMPTS[0], max_tokens=NUM_TOKENS)
        front.wait_tokens(key, 2)
        worker.send_bytes(b"\xff\xff\xff")
        wait_until(lambda: worker.num_joins == 2, "it joined again")
        worker.options.steps_before_hold = None
        front.wait_over(key)
        assert front.requests[key].output() == expected(PROMPTS[0], NUM_TOKENS)
        engine.wait_clean()


# Failing steps.


@pytest.mark.parametrize("step_id", range(1, 8))
def test_a_failed_step_ends_its_requests_and_no_others(engine: EngineThread, front: RawFront, step_id: int) -> None:
    with ScriptedWorker(engine.worker_endpoint, limits=LIMITS, failing_steps=frozenset({step_id})) as worker:
        front.wait_ready()
        keys = [front.submit(prompt, max_tokens=20) for prompt in PROMPTS]
        front.wait_over(*keys)
        for key, prompt in zip(keys, PROMPTS, strict=True):
            told = front.requests[key]
            assert told.output() == expected(prompt, len(told.output()))
            assert (told.ended.reason, len(told.output())) in ((0, 20), (10, len(told.output())))
        assert any(front.requests[key].ended.reason == 10 for key in keys)
        assert worker.num_joins == 1
        run_batch(engine, front, worker)


def test_nan_ends_one_request_alone(engine: EngineThread, front: RawFront) -> None:
    poisoned = tuple(PROMPTS[1])
    with ScriptedWorker(
        engine.worker_endpoint, limits=LIMITS, nan=lambda each: each.prompt == poisoned and each.position == 3
    ) as worker:
        front.wait_ready()
        keys = [front.submit(prompt, max_tokens=NUM_TOKENS) for prompt in PROMPTS]
        front.wait_over(*keys)
        assert [front.requests[key].ended.reason for key in keys] == [0, 9, 0]
        assert front.requests[keys[1]].output() == expected(PROMPTS[1], 3)
        assert front.requests[keys[2]].output() == expected(PROMPTS[2], NUM_TOKENS)
        assert worker.num_joins == 1
        engine.wait_clean()


@pytest.mark.parametrize(("device", "seconds"), [("cuda:0 Imaginary", 0.05), ("cpu", 0.0)])
def test_steps_of_gpu_workers_have_a_target(engine: EngineThread, front: RawFront, device: str, seconds: float) -> None:
    with ScriptedWorker(engine.worker_endpoint, device=device) as worker:
        wait_until(lambda: worker.is_joined, "it has joined", 10)
        cards = engine.call(lambda running: [each.card for each in running.core._placement.workers.values()])
        assert [(card.worker_id, card.target_step_seconds) for card in cards] == [(worker.worker_id, seconds)]
