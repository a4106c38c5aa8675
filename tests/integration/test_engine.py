"""Requests from a front to a worker and back, without gRPC and without a model."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from pagewire.internal.v1 import front_pb2
from pagewire.v1 import admin_pb2, generation_pb2
from support.engine_thread import EngineThread
from support.raw_front import RawFront, Told
from support.scripted_rows import Limits
from support.scripted_worker import ScriptedWorker, expected

from scheduler_svc.engine import Engine
from scheduler_svc.replay import Replay
from scheduler_svc.traced_core import TraceFile

LENGTH = front_pb2.END_REASON_LENGTH
PROBE = list(b"are you well?")


def probe(front: RawFront) -> None:
    key = front.submit(PROBE, max_tokens=5)
    front.wait_over(key, seconds=5)
    assert front.requests[key].output() == expected(PROBE, 5)


def reason(told: Told, index: int = 0) -> int:
    return int(told.outputs[index].reason)


@pytest.fixture
def engine() -> Iterator[EngineThread]:
    with EngineThread() as running:
        yield running


@pytest.fixture
def front(engine: EngineThread) -> Iterator[RawFront]:
    with RawFront(engine.front_endpoint) as connected:
        yield connected


@pytest.fixture
def worker(engine: EngineThread, front: RawFront) -> Iterator[ScriptedWorker]:
    with ScriptedWorker(engine.worker_endpoint) as running:
        front.wait_ready()
        yield running
        assert running.rows.violations == []
        assert running.refusals == []
        engine.wait_clean()


def test_a_request_gets_its_tokens_and_ends_once(front: RawFront, worker: ScriptedWorker) -> None:
    prompt = list(range(100))
    key = front.submit(prompt, max_tokens=20, seed=7)
    front.wait_over(key)
    told = front.requests[key]
    assert told.output() == expected(prompt, 20, seed=7)
    assert reason(told) == LENGTH
    ended = told.ended
    assert (ended.prompt_tokens, ended.output_tokens, ended.cached_tokens) == (100, 20, 0)
    assert (ended.reason, ended.worker_id) == (front_pb2.END_REASON_UNSPECIFIED, worker.worker_id)
    assert 0 <= ended.queue_seconds <= ended.first_token_seconds <= ended.total_seconds
    # A prompt of 100 tokens does not fit the worker's 64 a step.
    assert [each.num_tokens for each in worker.plans[:2]] == [64, 36]


def test_tokens_leave_before_the_next_plan_is_made(
    front: RawFront, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[bool] = []
    plan = Engine._plan

    def watched(engine: Engine, now: float) -> None:
        waiting.append(engine.fronts.has_waiting())
        plan(engine, now)

    monkeypatch.setattr(Engine, "_plan", watched)
    probe(front)
    assert waiting
    assert not any(waiting)


def test_a_polling_loop_misses_nothing() -> None:
    with (
        EngineThread(polling_seconds=0.005) as engine,
        RawFront(engine.front_endpoint) as front,
        ScriptedWorker(engine.worker_endpoint),
    ):
        front.wait_ready()
        for _ in range(20):
            probe(front)
        engine.wait_clean()
        assert engine.faults() == 0


def test_a_prefix_is_computed_once(front: RawFront, worker: ScriptedWorker) -> None:
    prompt = list(range(200, 250))
    first = front.submit(prompt, max_tokens=4)
    front.wait_over(first)
    second = front.submit(prompt, max_tokens=4)
    front.wait_over(second)
    assert front.requests[second].ended.cached_tokens == 48
    assert front.requests[first].output() == front.requests[second].output()


def test_equal_cold_prompts_compute_shared_pages_once(front: RawFront, worker: ScriptedWorker) -> None:
    prompt = list(range(64))
    submits = [front.make(prompt, max_tokens=3) for _ in range(8)]
    front.send(submits=submits)
    front.wait_over(*(submit.key for submit in submits))
    assert all(front.requests[submit.key].output() == expected(prompt, 3) for submit in submits)
    # The last page of a full hit is computed at least in part; the three before it are computed once.
    assert worker.rows.num_computed_tokens <= 64 + 7 * 16 + 8 * 3


def test_many_requests_under_pressure_keep_their_tokens(engine: EngineThread, front: RawFront) -> None:
    limits = Limits(num_pages=20, max_num_seqs=6, max_num_batched_tokens=32)
    chosen = random.Random(1)
    with ScriptedWorker(engine.worker_endpoint, limits=limits) as worker:
        front.wait_ready()
        wanted = {}
        for _ in range(40):
            prompt = [chosen.randrange(256) for _ in range(chosen.randrange(1, 60))]
            count = chosen.randrange(1, 60)
            wanted[front.submit(prompt, max_tokens=count)] = (prompt, count)
        front.wait_over(*wanted)
        for key, (prompt, count) in wanted.items():
            assert front.requests[key].output() == expected(prompt, count)
        assert worker.rows.violations == []
        assert worker.refusals == []
        assert engine.counts().num_preemptions > 0
        engine.wait_clean()


def test_n_outputs_end_as_one_request(front: RawFront, worker: ScriptedWorker) -> None:
    prompt = list(range(40))
    key = front.submit(prompt, n=3, max_tokens=6, seed=5)
    front.wait_over(key)
    told = front.requests[key]
    assert [told.output(index) for index in range(3)] == [expected(prompt, 6, index, 5) for index in range(3)]
    assert (told.ended.prompt_tokens, told.ended.output_tokens) == (40, 18)


def test_stop_tokens_end_an_output(front: RawFront, worker: ScriptedWorker) -> None:
    prompt = list(b"stop here")
    tokens = expected(prompt, 10)
    key = front.submit(prompt, max_tokens=10, stop_token_ids=tokens[4].to_bytes(4, "little"))
    front.wait_over(key)
    told = front.requests[key]
    assert (reason(told), told.outputs[0].stop_token_id) == (front_pb2.END_REASON_STOP_TOKEN, tokens[4])
    assert told.output() == tokens[: tokens.index(tokens[4]) + 1]


@pytest.mark.parametrize("answer", ["scanned", "stop"])
def test_a_held_ending_waits_for_the_front(front: RawFront, worker: ScriptedWorker, answer: str) -> None:
    key = front.submit(PROBE, max_tokens=6, hold_endings=True)
    told = front.requests[key]
    front.wait(lambda: told.held, "the ending is held")
    assert told.held == {0: 6}
    assert not told.is_over
    if answer == "scanned":
        front.scanned(key)
    else:
        front.stop(key, 3)
    front.wait_over(key)
    wanted = (LENGTH, 6) if answer == "scanned" else (front_pb2.END_REASON_STOP_STRING, 3)
    assert (reason(told), told.outputs[0].num_output_tokens) == wanted
    assert told.ended.output_tokens == wanted[1]
    front.scanned(key)
    front.stop(key, 1)
    probe(front)


def test_a_stop_string_wins_over_a_later_end(front: RawFront, worker: ScriptedWorker) -> None:
    worker.options.steps_before_hold = 4
    key = front.submit(PROBE, max_tokens=50, hold_endings=True)
    front.wait_tokens(key, 4)
    front.stop(key, 2)
    front.wait_over(key)
    told = front.requests[key]
    assert (reason(told), told.ended.output_tokens) == (front_pb2.END_REASON_STOP_STRING, 2)
    worker.options.steps_before_hold = None
    probe(front)


PHASES = ["waiting", "chunk in flight", "between chunks", "decoding", "decode in flight", "preempted", "ended"]


@pytest.mark.parametrize("phase", PHASES)
def test_cancel_in_every_phase_releases_everything(engine: EngineThread, front: RawFront, phase: str) -> None:
    limits = Limits(num_pages=16, max_num_seqs=2 if phase == "waiting" else 4, max_num_batched_tokens=16)
    with ScriptedWorker(engine.worker_endpoint, limits=limits) as worker:
        front.wait_ready()
        others = [front.submit([index] * 4, max_tokens=30) for index in (1, 2)]
        if phase == "waiting":
            worker.options.steps_before_hold = 3
        prompt = list(range(100)) if "chunk" in phase else list(range(60, 70))
        key = front.submit(prompt, max_tokens=160 if phase == "preempted" else 20, progress_events=True)
        told = front.requests[key]
        _reach(phase, front, worker, key)
        front.cancel(key)
        front.cancel(key)
        front.wait_over(key, seconds=2)
        worker.options.steps_before_hold = None
        front.wait_over(*others)
        if phase != "ended":
            assert told.ended.reason == front_pb2.END_REASON_CANCELLED
        assert told.output() == expected(prompt, len(told.output()))
        assert [front.requests[other].output() for other in others] == [expected([i] * 4, 30) for i in (1, 2)]
        probe(front)
        assert worker.rows.violations == []
        assert worker.refusals == []
        engine.wait_clean()


def _reach(phase: str, front: RawFront, worker: ScriptedWorker, key: int) -> None:
    told = front.requests[key]
    if phase == "ended":
        front.wait_over(key)
    elif phase == "decoding":
        front.wait_tokens(key, 3)
    elif phase == "decode in flight":
        front.wait_tokens(key, 3)
        worker.options.steps_before_hold = len(worker.plans)
    elif phase == "chunk in flight":
        worker.options.steps_before_hold = 2
        front.wait(lambda: any(kind == "admitted" for kind, _ in told.progress), "admitted")
    elif phase == "between chunks":
        front.wait(lambda: any(kind == "prefill" for kind, _ in told.progress), "a chunk is done")
    elif phase == "preempted":
        rival = front.submit([9] * 40, max_tokens=160, priority=1)
        front.wait(lambda: any(kind == "preempted" for kind, _ in told.progress), "preempted")
        front.cancel(rival)


def test_500_random_cancels_leave_nothing(engine: EngineThread, front: RawFront) -> None:
    limits = Limits(num_pages=48, max_num_seqs=8, max_num_batched_tokens=48)
    chosen = random.Random(2)
    with ScriptedWorker(engine.worker_endpoint, limits=limits) as worker:
        front.wait_ready()
        live: list[int] = []
        for round_number in range(500):
            prompt = [round_number % 5] * chosen.randrange(1, 90)
            live.append(front.submit(prompt, max_tokens=chosen.randrange(1, 40), hold_endings=chosen.random() < 0.2))
            if len(live) > 12:
                front.cancel(live.pop(chosen.randrange(len(live))))
            if chosen.random() < 0.1:
                one = front.requests[live[0]]
                front.wait(lambda one=one: one.is_over or one.held or one.tokens, "the oldest runs")
            front.pump(0)
        front.cancel(*live)
        front.wait_over(*front.requests)
        probe(front)
        assert worker.rows.violations == []
        assert worker.refusals == []
        engine.wait_clean()


def test_a_deadline_is_hard_and_a_time_limit_soft(front: RawFront, worker: ScriptedWorker) -> None:
    worker.options.steps_before_hold = 3
    hard = front.submit(PROBE, max_tokens=100, deadline_ms=100)
    soft = front.submit(PROBE, max_tokens=100, time_limit_ms=100)
    front.wait_over(hard, soft)
    assert front.requests[hard].ended.reason == front_pb2.END_REASON_DEADLINE
    assert front.requests[hard].ended.stage in ("prefill", "decode")
    assert front.requests[soft].ended.reason == front_pb2.END_REASON_TIME_LIMIT
    worker.options.steps_before_hold = None
    probe(front)


def test_requests_are_found_by_tenant_and_id(engine: EngineThread, front: RawFront, worker: ScriptedWorker) -> None:
    worker.options.steps_before_hold = 3
    key = front.submit(PROBE, request_id="r1", max_tokens=100)
    front.wait_tokens(key, 2)
    twin = front.submit(PROBE, request_id="r1")
    front.wait_over(twin)
    assert (front.requests[twin].rejected.code, front.requests[twin].rejected.reason) == (6, "REQUEST_EXISTS")
    other_tenant = front.submit(PROBE, request_id="r1", tenant="u", max_tokens=2)
    with RawFront(engine.front_endpoint) as elsewhere:
        elsewhere.wait_ready()
        found = generation_pb2.GetRequestResponse.FromString(elsewhere.query(get_request_id="r1").response)
        assert (found.state, found.usage.prompt_tokens) == (generation_pb2.REQUEST_STATE_RUNNING, len(PROBE))
        assert elsewhere.query(tenant="x", get_request_id="r1").code == 5
        assert elsewhere.query(cancel_request_id="nobody").code == 5
        assert elsewhere.query(cancel_request_id="").code == 3
        assert elsewhere.query(cancel_request_id="r1").code == 0
        front.wait_over(key)
        assert front.requests[key].ended.reason == front_pb2.END_REASON_CANCELLED_ELSEWHERE
        assert elsewhere.query(cancel_request_id="r1").code == 0
        found = generation_pb2.GetRequestResponse.FromString(elsewhere.query(get_request_id="r1").response)
        assert found.state == generation_pb2.REQUEST_STATE_ENDED
        assert found.finished[0].finish_reason == generation_pb2.FINISH_REASON_CANCELLED
        assert not found.HasField("status")
    worker.options.steps_before_hold = None
    front.wait_over(other_tenant)


def test_decisions_about_a_request_are_told_while_it_runs_and_afterwards(
    front: RawFront, worker: ScriptedWorker
) -> None:
    worker.options.steps_before_hold = 2
    key = front.submit(PROBE, request_id="explained", n=2, max_tokens=8)
    front.wait_tokens(key, 1)

    def told(**tenant: str) -> list[str]:
        reply = front.query(explain_request_id="explained", **tenant)
        assert reply.code == (5 if tenant else 0)
        return [each.text for each in admin_pb2.ExplainRequestResponse.FromString(reply.response).decisions]

    live = told()
    assert live[0].startswith(f"output 0: submitted with {len(PROBE)} prompt tokens")
    assert any(text.startswith("output 1: admitted") for text in live)
    worker.options.steps_before_hold = None
    front.wait_over(key)
    assert told()[: len(live)] == live
    assert told()[-1].endswith("ended: length, 8 output tokens")
    assert told(tenant="another") == []
    assert front.query(explain_request_id="nobody").code == 5


def test_load_and_workers_are_told(front: RawFront, worker: ScriptedWorker) -> None:
    probe(front)
    load = admin_pb2.GetLoadResponse.FromString(front.query(load=True).response)
    assert (load.num_workers, load.num_pages, load.num_requests_running) == (1, 64, 0)
    assert load.num_output_tokens >= 5
    workers = admin_pb2.ListWorkersResponse.FromString(front.query(workers=True).response).workers
    assert [(each.worker_id, each.device, each.num_pages) for each in workers] == [(worker.worker_id, "scripted", 64)]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"max_tokens": 0}, 3),
        ({"n": 0}, 3),
        ({"n": 1_000_000}, 3),
        ({"temperature": float("nan")}, 3),
        ({"top_p": 0.0}, 3),
        ({"prompt_token_ids": b"\0\0\0"}, 3),
        ({"prompt_token_ids": (300).to_bytes(4, "little")}, 3),
        ({"prompt_token_ids": b"\xff\xff\xff\xff"}, 3),
        ({"prompt_token_ids": b""}, 3),
        ({"prompt_token_ids": bytes(4 * 600)}, 3),
    ],
)
def test_what_cannot_run_is_refused_and_spoils_nothing(
    front: RawFront, worker: ScriptedWorker, fields: dict[str, object], code: int
) -> None:
    bad, good = front.make(PROBE), front.make(PROBE, max_tokens=3)
    changed = front_pb2.Submit(**{**{field.name: value for field, value in bad.ListFields()}, **fields})
    front.send(submits=[changed, good])
    front.wait_over(bad.key, good.key)
    assert front.requests[bad.key].rejected.code == code
    assert front.requests[good.key].output() == expected(PROBE, 3)


def test_a_full_queue_is_refused_with_a_time_to_come_back() -> None:
    held = {"limits": Limits(max_num_seqs=1), "steps_before_hold": 1}
    with (
        EngineThread(max_queued_requests=2) as engine,
        RawFront(engine.front_endpoint) as front,
        ScriptedWorker(engine.worker_endpoint, **held) as worker,
    ):
        front.wait_ready()
        first = front.submit(PROBE, max_tokens=9)
        front.wait_tokens(first, 1)
        waiting = front.submit(PROBE, max_tokens=2)
        # One of its two outputs has room: nothing of it is kept, so one more request is taken.
        twins = front.submit(PROBE, max_tokens=2, n=2)
        keys = [front.submit(PROBE, max_tokens=2) for _ in range(3)]
        front.wait_over(twins, *keys[1:])
        refused = [front.requests[key].rejected for key in (twins, *keys[1:])]
        assert [(each.code, each.reason) for each in refused] == [(8, "QUEUE_FULL")] * 3
        assert all(each.retry_ms > 0 and each.num_waiting in (1, 2) for each in refused)
        worker.options.steps_before_hold = None
        front.wait_over(first, waiting, keys[0])
        assert front.requests[keys[0]].output() == expected(PROBE, 2)
        engine.wait_clean()


def test_without_a_worker_nothing_is_taken(front: RawFront, engine: EngineThread) -> None:
    front.wait_ready(0)
    assert not front.service.HasField("model_card")
    key = front.submit(PROBE)
    front.wait_over(key)
    rejected = front.requests[key].rejected
    assert (rejected.code, rejected.reason) == (14, "NO_WORKER")
    assert rejected.retry_ms > 0


def test_progress_is_told_to_those_who_ask(front: RawFront, worker: ScriptedWorker) -> None:
    key = front.submit(list(range(150)), max_tokens=2, progress_events=True)
    quiet = front.submit(PROBE, max_tokens=2)
    front.wait_over(key, quiet)
    kinds = [kind for kind, _ in front.requests[key].progress]
    assert {"queued", "admitted", "prefill"} <= set(kinds)
    assert front.requests[quiet].progress == []


def test_5000_tiny_requests_at_once_all_end(engine: EngineThread, front: RawFront) -> None:
    limits = Limits(num_pages=256, max_num_seqs=64, max_num_batched_tokens=512)
    with ScriptedWorker(engine.worker_endpoint, limits=limits) as worker:
        front.wait_ready()
        submits = [front.make([number % 256, number // 256], max_tokens=1) for number in range(5000)]
        for start in range(0, 5000, 50):
            front.send(submits=submits[start : start + 50])
        keys = [submit.key for submit in submits]
        front.wait(lambda: all(front.requests[key].is_over for key in keys), "all have ended", 60)
        for number, key in enumerate(keys):
            assert front.requests[key].output() == expected([number % 256, number // 256], 1)
        assert worker.rows.violations == []
        engine.wait_clean()


def test_draining_lets_running_requests_finish() -> None:
    with (
        EngineThread() as engine,
        RawFront(engine.front_endpoint) as front,
        ScriptedWorker(engine.worker_endpoint, steps_before_hold=2) as worker,
    ):
        front.wait_ready()
        key = front.submit(PROBE, max_tokens=6)
        front.wait_tokens(key, 2)
        assert front.query(drain_ms=5000).code == 0
        front.wait(lambda: front.service.draining, "the drain is told")
        late = front.submit(PROBE)
        front.wait_over(late)
        assert (front.requests[late].rejected.code, front.requests[late].rejected.reason) == (14, "DRAINING")
        worker.options.steps_before_hold = None
        front.wait_over(key)
        assert front.requests[key].output() == expected(PROBE, 6)


def test_a_drain_that_takes_too_long_ends_what_runs() -> None:
    with (
        EngineThread() as engine,
        RawFront(engine.front_endpoint) as front,
        ScriptedWorker(engine.worker_endpoint, steps_before_hold=2),
    ):
        front.wait_ready()
        key = front.submit(PROBE, max_tokens=6)
        front.wait_tokens(key, 2)
        front.query(drain_ms=100)
        front.wait_over(key)
        assert front.requests[key].ended.reason == front_pb2.END_REASON_SHUTDOWN
        assert front.requests[key].ended.retry_ms > 0


def test_a_traced_engine_is_replayed_answer_by_answer(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    with EngineThread(trace_file=TraceFile(path)) as engine, ScriptedWorker(engine.worker_endpoint) as worker:
        with RawFront(engine.front_endpoint) as front:
            front.wait_ready()
            keys = [front.submit(PROBE * 4, n=2, max_tokens=40) for _ in range(3)]
            front.wait_tokens(keys[0], 2)
            front.cancel(keys[1])
            front.wait_over(*keys)
        assert worker.worker_id
    calls = list(Replay(path))
    assert all(call.is_equal for call in calls)
    assert {"add_worker", "submit", "plan", "commit", "cancel"} <= {call.name for call in calls}
