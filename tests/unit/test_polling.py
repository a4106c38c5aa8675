"""Loops look again for a while after they had work, and then sleep."""

import asyncio

import pytest

from gpu_worker.polling import Polling as WorkerPolling
from scheduler_svc.front.polling import Polling as FrontPolling
from scheduler_svc.polling import Polling


@pytest.mark.parametrize("kind", [Polling, WorkerPolling])
def test_a_loop_looks_again_only_after_work(kind: type[Polling] | type[WorkerPolling]) -> None:
    polling = kind(0.02)
    assert not polling.looks_again(5.0)
    polling.had_work(5.0)
    assert polling.looks_again(5.0)
    assert polling.looks_again(5.019)
    assert not polling.looks_again(5.021)


@pytest.mark.parametrize("kind", [Polling, WorkerPolling])
def test_a_loop_that_may_not_never_does(kind: type[Polling] | type[WorkerPolling]) -> None:
    polling = kind(0.0)
    polling.had_work(5.0)
    assert not polling.looks_again(5.0)


def test_an_event_loop_turns_until_it_had_no_work_for_long() -> None:
    async def run(polling: FrontPolling) -> int:
        """How often it turns while somebody waits ten times as long as it may."""
        loop = asyncio.get_running_loop()
        turns = 0

        def count() -> None:
            nonlocal turns
            turns += 1

        selector = loop._selector  # type: ignore[attr-defined]
        select = selector.select
        selector.select = lambda timeout=None: (count() if timeout == 0 else None, select(timeout))[1]
        polling.had_work()
        polling.had_work()
        await asyncio.sleep(0.05)
        before = turns
        await asyncio.sleep(0.1)
        assert turns - before <= 3
        return before

    assert asyncio.run(run(FrontPolling(0.01))) > 5
    assert asyncio.run(run(FrontPolling(0.0))) <= 3
