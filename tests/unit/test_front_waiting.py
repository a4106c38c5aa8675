"""Waiting for a result no longer than for some time."""

import asyncio

import pytest

from scheduler_svc.front.waiting import within


@pytest.mark.parametrize("seconds", [None, 5.0])
async def test_a_cancellation_in_the_turn_of_the_result_is_not_forgotten(seconds: float | None) -> None:
    future = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(within(seconds, future))
    await asyncio.sleep(0)
    future.set_result(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_result_an_error_and_too_late() -> None:
    loop = asyncio.get_running_loop()
    assert await within(5.0, loop.run_in_executor(None, lambda: 7)) == 7
    failing = loop.create_future()
    failing.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await within(5.0, failing)
    for seconds in (0.001, 0.0, -1.0):
        late = loop.create_future()
        with pytest.raises(asyncio.TimeoutError):
            await within(seconds, late)
        assert late.cancelled()
