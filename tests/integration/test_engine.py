"""Requests from a front to a worker and back, without gRPC and without a model."""

from support.engine_thread import EngineThread
from support.raw_front import RawFront
from support.scripted_worker import ScriptedWorker, plain_script


def expected(prompt: list[int], count: int, index: int = 0, seed: int = 0) -> list[int]:
    return [plain_script(tuple(prompt), position, index, seed) for position in range(count)]


def test_a_request_gets_its_tokens_and_ends_once() -> None:
    with (
        EngineThread() as engine,
        ScriptedWorker(engine.worker_endpoint) as worker,
        RawFront(engine.front_endpoint) as front,
    ):
        front.wait_ready()
        prompt = list(range(100))
        key = front.submit(prompt, max_tokens=20, seed=7)
        front.wait_over(key)
        told = front.requests[key]
        assert told.output() == expected(prompt, 20, seed=7)
        assert told.ended.prompt_tokens == 100
        assert told.ended.output_tokens == 20
        assert worker.rows.violations == []
        engine.wait_clean()
