"""Workers and fronts that die, stop or fall behind while requests run."""

import os
import time
from collections.abc import Iterator

import pytest
from pagewire.internal.v1 import front_pb2
from support.conditions import wait_until
from support.engine_thread import EngineThread
from support.raw_front import RawFront
from support.scripted_rows import Limits
from support.scripted_worker import ScriptedWorker, expected

PROMPTS = [list(range(start, start + 25)) for start in (0, 40, 80, 120)]
NUM_TOKENS = 24


@pytest.fixture
def engine() -> Iterator[EngineThread]:
    with EngineThread(worker_timeout_seconds=0.4, worker_lost_seconds=1.0) as running:
        yield running


@pytest.fixture
def front(engine: EngineThread) -> Iterator[RawFront]:
    with RawFront(engine.front_endpoint) as connected:
        yield connected


def start_some(front: RawFront, worker: ScriptedWorker, num_tokens: int = 3) -> list[int]:
    """Requests that have produced some tokens and wait for more."""
    worker.options.steps_before_hold = num_tokens + 3
    keys = [front.submit(prompt, max_tokens=NUM_TOKENS) for prompt in PROMPTS]
    for key in keys:
        front.wait_tokens(key, 1)
    return keys


def all_right(front: RawFront, keys: list[int]) -> None:
    front.wait_over(*keys)
    for key, prompt in zip(keys, PROMPTS, strict=True):
        assert front.requests[key].output() == expected(prompt, NUM_TOKENS)
        assert front.requests[key].ended.reason == 0


def test_a_worker_restarted_in_time_continues_every_request(engine: EngineThread, front: RawFront) -> None:
    with ScriptedWorker(engine.worker_endpoint) as first:
        front.wait_ready()
        keys = start_some(front, first)
    front.wait_ready(0)
    assert front.service.retry_ms > 0
    assert not any(front.requests[key].is_over for key in keys)
    with ScriptedWorker(engine.worker_endpoint) as second:
        front.wait_ready()
        all_right(front, keys)
        assert sum(front.requests[key].ended.recomputed_tokens for key in keys) > 0
        assert second.rows.violations == []
        assert {plan.epoch for plan in second.plans}.isdisjoint(plan.epoch for plan in first.plans)
        engine.wait_clean()


def test_without_another_worker_requests_end_as_unavailable(engine: EngineThread, front: RawFront) -> None:
    with ScriptedWorker(engine.worker_endpoint) as worker:
        front.wait_ready()
        keys = start_some(front, worker)
        lost_at = time.monotonic()
    front.wait_over(*keys)
    assert time.monotonic() - lost_at > 0.5
    for key, prompt in zip(keys, PROMPTS, strict=True):
        told = front.requests[key]
        assert told.ended.reason == front_pb2.END_REASON_WORKER_LOST
        assert told.ended.retry_ms > 0
        assert told.output() == expected(prompt, len(told.output()))
    with ScriptedWorker(engine.worker_endpoint):
        front.wait_ready()
        key = front.submit(PROMPTS[0], max_tokens=4)
        front.wait_over(key)
        assert front.requests[key].output() == expected(PROMPTS[0], 4)
        engine.wait_clean()


def test_a_stopped_worker_is_given_up_and_starts_anew_when_it_continues(engine: EngineThread, front: RawFront) -> None:
    with ScriptedWorker(engine.worker_endpoint) as worker:
        front.wait_ready()
        keys = start_some(front, worker)
        worker.freeze()
        front.wait_ready(0)
        worker.options.steps_before_hold = None
        worker.thaw()
        front.wait_ready()
        assert worker.resyncs
        all_right(front, keys)
        assert worker.rows.violations == []
        engine.wait_clean()


def test_a_short_stop_is_nothing() -> None:
    with (
        EngineThread(worker_timeout_seconds=5.0) as engine,
        RawFront(engine.front_endpoint) as front,
        ScriptedWorker(engine.worker_endpoint) as worker,
    ):
        front.wait_ready()
        keys = start_some(front, worker)
        worker.freeze()
        worker.options.steps_before_hold = None
        until = time.monotonic() + 0.5
        front.wait(lambda: time.monotonic() > until, "half a second")
        worker.thaw()
        all_right(front, keys)
        assert worker.num_joins == 1


def test_a_worker_is_not_blamed_for_the_schedulers_own_stall(engine: EngineThread, front: RawFront) -> None:
    with ScriptedWorker(engine.worker_endpoint, step_seconds=0.01) as worker:
        front.wait_ready()
        keys = [front.submit(prompt, max_tokens=NUM_TOKENS) for prompt in PROMPTS]
        front.wait_tokens(keys[0], 2)
        engine.call(lambda _: time.sleep(1.2))
        all_right(front, keys)
        assert worker.num_joins == 1


def test_a_silent_worker_with_steps_in_flight_is_found_by_its_heartbeats(engine: EngineThread, front: RawFront) -> None:
    with ScriptedWorker(engine.worker_endpoint, heartbeats=False) as worker:
        front.wait_ready()
        wait_until(lambda: worker.resyncs, "given up")
        assert "nothing heard" in worker.resyncs[0]
        worker.options.heartbeats = True
        front.wait_ready()
        keys = [front.submit(prompt, max_tokens=NUM_TOKENS) for prompt in PROMPTS]
        all_right(front, keys)


def test_a_worker_that_takes_long_but_lives_is_kept(engine: EngineThread, front: RawFront) -> None:
    with ScriptedWorker(engine.worker_endpoint, steps_before_hold=0) as worker:
        front.wait_ready()
        key = front.submit(PROMPTS[0], max_tokens=3)
        until = time.monotonic() + 1.5
        front.wait(lambda: time.monotonic() > until, "longer than a worker may be silent")
        worker.options.steps_before_hold = None
        front.wait_over(key)
        assert front.requests[key].output() == expected(PROMPTS[0], 3)
        assert worker.num_joins == 1


def test_a_request_too_large_for_the_other_worker_waits_for_one_that_fits(
    engine: EngineThread, front: RawFront
) -> None:
    with ScriptedWorker(engine.worker_endpoint, limits=Limits(num_pages=4)):
        with ScriptedWorker(engine.worker_endpoint) as large:
            front.wait_ready(2)
            key = front.submit(list(range(100)), max_tokens=10)
            large.options.steps_before_hold = 4
            front.wait_tokens(key, 1)
        front.wait_ready(1)
        assert not front.requests[key].is_over
        with ScriptedWorker(engine.worker_endpoint):
            front.wait_over(key)
            assert front.requests[key].output() == expected(list(range(100)), 10)
            engine.wait_clean()


# Fronts.


def test_a_dead_fronts_requests_are_cancelled(engine: EngineThread, front: RawFront) -> None:
    with ScriptedWorker(engine.worker_endpoint, steps_before_hold=4) as worker:
        front.wait_ready()
        with RawFront(engine.front_endpoint) as dying:
            dying.wait_ready()
            key = dying.submit(PROMPTS[0], max_tokens=100)
            dying.wait_tokens(key, 1)
        wait_until(lambda: engine.counts().num_running == 0, "its request is gone", 2)
        worker.options.steps_before_hold = None
        engine.wait_clean()


def test_a_silent_fronts_requests_are_cancelled(engine: EngineThread, front: RawFront) -> None:
    with ScriptedWorker(engine.worker_endpoint, steps_before_hold=4) as worker:
        front.wait_ready()
        key = front.submit(PROMPTS[0], max_tokens=100)
        front.wait_tokens(key, 1)
        wait_until(lambda: engine.counts().num_running == 0, "its request is gone", 4)
        now = time.monotonic()
        hung = engine.call(lambda loop: [loop.fronts.hung_pids(at) for at in (now, now + 15)])
        assert hung == [set(), {os.getpid()}]
        worker.options.steps_before_hold = None
        # It lives after all: it is told.
        front.wait_over(key)
        assert front.requests[key].ended.reason == front_pb2.END_REASON_CANCELLED
        again = front.submit(PROMPTS[1], max_tokens=3)
        front.wait_over(again)
        assert front.requests[again].output() == expected(PROMPTS[1], 3)
        engine.wait_clean()


def test_another_front_on_the_same_connection_ends_the_first(engine: EngineThread, front: RawFront) -> None:
    with ScriptedWorker(engine.worker_endpoint, steps_before_hold=4) as worker:
        front.wait_ready()
        key = front.submit(PROMPTS[0], max_tokens=100)
        front.wait_tokens(key, 1)
        front.front_id += 2
        front.service = None
        front.hello()
        front.wait_ready()
        wait_until(lambda: engine.counts().num_running == 0, "the first front's request is gone", 2)
        worker.options.steps_before_hold = None
        engine.wait_clean()


def test_a_front_of_another_version_is_refused(engine: EngineThread, front: RawFront) -> None:
    front.wait_ready(0)
    with RawFront(engine.front_endpoint) as other:
        other.wait_ready(0)
        other.hello(protocol_version=9)
        other.wait(lambda: other.refusal, "refused")
        assert "protocol version 9" in other.refusal


def test_a_frame_of_another_session_is_answered_with_this_one(engine: EngineThread, front: RawFront) -> None:
    front.wait_ready(0)
    session = front.session
    front.session = 12345
    front.send(heartbeat=True)
    front.wait(lambda: front.session == session, "the session is told again")


def test_a_slow_front_loses_nothing_and_stops_nobody(front: RawFront) -> None:
    limits = Limits(num_pages=300, max_model_len=4096)
    with (
        EngineThread(front_timeout_seconds=60.0, check=False) as engine,
        RawFront(engine.front_endpoint) as slow,
        RawFront(engine.front_endpoint) as quick,
        ScriptedWorker(engine.worker_endpoint, limits=limits) as worker,
    ):
        slow.wait_ready()
        quick.wait_ready()
        prompt = list(range(30))
        key = slow.submit(prompt, max_tokens=3000)
        other = quick.submit(prompt, max_tokens=20)
        quick.wait_over(other)
        assert quick.requests[other].output() == expected(prompt, 20)
        # Nobody reads for the slow front: all its tokens are computed all the same, then arrive in order, each once.
        wait_until(lambda: engine.counts().num_running == 0, "its request ran to the end", 30)
        submits = [slow.make([number], max_tokens=500) for number in range(100)]
        slow.send(submits=submits)
        slow.cancel(*(submit.key for submit in submits))
        slow.wait_over(key, *(submit.key for submit in submits))
        assert slow.requests[key].output() == expected(prompt, 3000)
        assert worker.rows.violations == []
        engine.wait_clean()


def test_5000_requests_wait_for_a_stopped_worker(engine: EngineThread, front: RawFront) -> None:
    limits = Limits(num_pages=256, max_num_seqs=64, max_num_batched_tokens=512)
    with ScriptedWorker(engine.worker_endpoint, limits=limits) as worker:
        front.wait_ready()
        worker.freeze()
        submits = [front.make([number % 256, number // 256], max_tokens=1) for number in range(5000)]
        for start in range(0, 5000, 50):
            front.send(submits=submits[start : start + 50])
        cancelled = {submit.key for submit in submits[::50]}
        front.cancel(*cancelled)
        front.wait(lambda: all(front.requests[key].is_over for key in cancelled), "cancels while it is stopped")
        worker.thaw()
        front.wait(lambda: all(front.requests[each.key].is_over for each in submits), "all have ended", 60)
        for number, submit in enumerate(submits):
            told = front.requests[submit.key]
            if submit.key not in cancelled:
                assert told.output() == expected([number % 256, number // 256], 1)
        assert worker.rows.violations == []
        engine.wait_clean()
