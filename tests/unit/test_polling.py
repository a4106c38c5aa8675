"""Loops look again for a while after they had work, and then sleep."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_worker import polling
from gpu_worker.polling import Polling as WorkerPolling
from scheduler_svc import machine
from scheduler_svc.front.polling import Polling as FrontPolling
from scheduler_svc.polling import Polling


@pytest.mark.parametrize("kind", [Polling, WorkerPolling])
def test_a_loop_looks_again_only_after_work(kind: type[Polling] | type[WorkerPolling]) -> None:
    loop = kind(0.02)
    assert not loop.looks_again(5.0)
    loop.had_work(5.0)
    assert loop.looks_again(5.0)
    assert loop.looks_again(5.019)
    assert not loop.looks_again(5.021)


@pytest.mark.parametrize("kind", [Polling, WorkerPolling])
def test_a_loop_that_may_not_never_does(kind: type[Polling] | type[WorkerPolling]) -> None:
    loop = kind(0.0)
    loop.had_work(5.0)
    assert not loop.looks_again(5.0)


@pytest.mark.parametrize("count", [machine.usable_cores, polling.usable_cores])
def test_a_control_group_may_have_less_than_the_machine(count: Callable[[Path], int], tmp_path: Path) -> None:
    quota, own = tmp_path / "cpu.max", len(os.sched_getaffinity(0))
    assert count(quota) == own
    for content, cores in (
        ("max 100000\n", own),
        ("100000 100000\n", 1),
        (f"{own + 1}00000 100000\n", own),
        ("?\n", own),
    ):
        quota.write_text(content)
        assert count(quota) == cores


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
