"""Many requests over links that lose, repeat and delay frames all the time, with workers that come and go."""

import random

import pytest
from support.engine_thread import EngineThread
from support.raw_front import RawFront
from support.scripted_rows import Limits
from support.scripted_worker import Fault, ScriptedWorker, expected

LIMITS = Limits(num_pages=40, max_num_seqs=6, max_num_batched_tokens=40)


def unreliable(chosen: random.Random, rate: float) -> Fault:
    """Loses, repeats or delays frames at random."""
    late: list[bytes] = []

    def carry(step_id: int, content: bytes) -> list[bytes]:
        arriving, late[:] = [content, *late], []
        draw = chosen.random()
        if draw < rate:
            return []
        if draw < 2 * rate:
            return [*arriving, content]
        if draw < 3 * rate:
            late.append(content)
            return arriving[1:]
        return arriving

    return carry


def run(seed: int, num_requests: int, rate: float) -> None:
    chosen = random.Random(seed)
    patience = {"worker_timeout_seconds": 0.5, "heartbeat_seconds": 0.02, "worker_lost_seconds": 30.0}
    with EngineThread(**patience) as engine, RawFront(engine.front_endpoint) as front:
        workers = [
            ScriptedWorker(
                engine.worker_endpoint,
                limits=LIMITS,
                on_plan=unreliable(chosen, rate),
                on_result=unreliable(chosen, rate),
            )
            for _ in range(2)
        ]
        with workers[0], workers[1]:
            front.wait(lambda: front.service is not None and front.service.num_workers, "a worker joined")
            wanted = {}
            for _ in range(num_requests):
                prompt = [chosen.randrange(4)] * chosen.randrange(1, 60)
                count = chosen.randrange(1, 30)
                wanted[front.submit(prompt, max_tokens=count)] = (prompt, count)
            front.wait_over(*wanted, seconds=100)
            for key, (prompt, count) in wanted.items():
                assert front.requests[key].output() == expected(prompt, count)
                assert front.requests[key].ended.reason == 0
            for worker in workers:
                assert worker.rows.violations == []
            assert engine.faults() > 0
            engine.wait_clean()


@pytest.mark.parametrize("seed", [1, 2])
def test_no_token_is_wrong_lost_or_repeated(seed: int) -> None:
    run(seed, num_requests=40, rate=0.01)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 120))
def test_no_token_is_wrong_lost_or_repeated_for_long(seed: int) -> None:
    run(seed, num_requests=200, rate=0.01)
