"""The core raises while one thing is handled: that ends, the loop and everybody else goes on."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.conditions import wait_until
from support.engine_thread import EngineThread
from support.raw_front import RawFront
from support.scripted_worker import ScriptedWorker, expected

from scheduler_svc.core.errors import InvariantViolation
from scheduler_svc.core.types import RequestKey
from scheduler_svc.engine import Engine

PROMPTS = [list(range(start, start + 20)) for start in (0, 40, 80)]
STEP_FAILED = 10


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


def break_call(engine: EngineThread, name: str, when: Callable[..., bool]) -> None:
    """``core.name`` raises when ``when`` of its arguments holds."""

    def install(running: Engine) -> None:
        whole = getattr(running.core, name)

        def broken(*args: Any, **kwargs: Any) -> Any:
            if when(*args, **kwargs):
                raise ZeroDivisionError("a fault of the core")
            return whole(*args, **kwargs)

        setattr(running.core, name, broken)

    engine.call(install)


def probe(front: RawFront) -> None:
    key = front.submit(PROMPTS[2], max_tokens=4)
    front.wait_over(key)
    assert front.requests[key].output() == expected(PROMPTS[2], 4)


def once() -> Callable[..., bool]:
    calls: list[None] = []

    def first(*args: Any, **kwargs: Any) -> bool:
        calls.append(None)
        return len(calls) == 1

    return first


def test_submit(engine: EngineThread, front: RawFront, worker: ScriptedWorker) -> None:
    break_call(engine, "submit", lambda request, now: list(request.prompt) == PROMPTS[0])
    bad, good = front.submit(PROMPTS[0]), front.submit(PROMPTS[1], max_tokens=5)
    front.wait_over(bad, good)
    assert front.requests[bad].rejected.code == 13
    assert "core" not in front.requests[bad].rejected.message
    assert front.requests[good].output() == expected(PROMPTS[1], 5)
    probe(front)
    engine.wait_clean()


@pytest.mark.parametrize("name", ["cancel", "stop"])
def test_a_call_about_one_request(engine: EngineThread, front: RawFront, worker: ScriptedWorker, name: str) -> None:
    worker.options.steps_before_hold = 4
    keys = [front.submit(prompt, max_tokens=8) for prompt in PROMPTS]
    front.wait_tokens(keys[0], 1)
    broken = engine.call(lambda running: running.desk.requests.by_front_key(front.front_id, keys[0]).outputs[0].key)
    calls: list[RequestKey] = []

    def first_about_it(key: RequestKey, *args: Any, **kwargs: Any) -> bool:
        calls.append(key)
        return calls.count(key) == 1 and key == broken

    break_call(engine, name, first_about_it)
    if name == "cancel":
        front.cancel(keys[0])
    else:
        front.stop(keys[0], 1)
    worker.options.steps_before_hold = None
    front.wait_over(*keys)
    assert front.requests[keys[0]].ended.reason == STEP_FAILED
    assert [front.requests[key].output() for key in keys[1:]] == [expected(prompt, 8) for prompt in PROMPTS[1:]]
    engine.wait_clean()


@pytest.mark.parametrize("name", ["plan", "commit"])
def test_a_call_about_a_worker(engine: EngineThread, front: RawFront, worker: ScriptedWorker, name: str) -> None:
    worker.options.steps_before_hold = 3
    keys = [front.submit(prompt, max_tokens=8) for prompt in PROMPTS]
    front.wait_tokens(keys[0], 1)
    break_call(engine, name, once())
    worker.options.steps_before_hold = None
    front.wait_over(*keys)
    assert any(front.requests[key].ended.reason == STEP_FAILED for key in keys)
    wait_until(lambda: worker.num_joins == 2, "it joined again")
    probe(front)
    engine.wait_clean()


@pytest.mark.parametrize("number", [0, 1, 7, 10**6])
def test_a_stop_that_makes_no_sense_ends_the_request(
    engine: EngineThread, front: RawFront, worker: ScriptedWorker, number: int
) -> None:
    worker.options.steps_before_hold = 4
    key = front.submit(PROMPTS[0], max_tokens=8, hold_endings=True)
    front.wait_tokens(key, 1)
    front.stop(key, number)
    front.stop(key, number, index=5)
    front.stop(key + 100, number)
    front.wait_over(key)
    told = front.requests[key]
    assert told.ended.output_tokens <= len(told.tokens[0])
    worker.options.steps_before_hold = None
    probe(front)
    engine.wait_clean()


def break_rules(running: Engine) -> None:
    def broken(*_: Any) -> Any:
        raise InvariantViolation("the books do not agree")

    running.core.submit = broken  # type: ignore[method-assign]


def submit_to_broken_core() -> None:
    with EngineThread() as engine, RawFront(engine.front_endpoint) as front:
        front.wait_ready(0)
        engine.call(break_rules)
        front.submit(PROMPTS[0])
        wait_until(lambda: engine.error is not None, "the loop ended")


def test_a_broken_rule_of_the_core_is_not_hidden() -> None:
    with pytest.raises(InvariantViolation):
        submit_to_broken_core()
