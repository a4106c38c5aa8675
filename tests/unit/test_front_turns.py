"""Readers are woken a few in each turn of the loop, in the order of asking."""

import asyncio

from scheduler_svc.front.turns import READERS_A_TURN, Turns


def test_few_are_woken_at_once_and_many_in_later_turns() -> None:
    async def run() -> None:
        turns, loop = Turns(), asyncio.get_running_loop()
        waiters = [loop.create_future() for _ in range(2 * READERS_A_TURN + 3)]
        for waiter in waiters:
            turns.wake(waiter)
        seen = []
        while not waiters[-1].done():
            seen.append([waiter.done() for waiter in waiters].count(True))
            await asyncio.sleep(0)
        assert seen == [READERS_A_TURN, 2 * READERS_A_TURN]
        await asyncio.sleep(0)
        assert turns.take()

    asyncio.run(run())


def test_readers_that_need_no_waking_take_room_too() -> None:
    async def run() -> None:
        turns, waiter = Turns(), asyncio.get_running_loop().create_future()
        assert all(turns.take() for _ in range(READERS_A_TURN))
        assert not turns.take()
        turns.wake(waiter)
        assert not waiter.done()
        await waiter

    asyncio.run(run())


def test_who_is_woken_otherwise_meanwhile_takes_no_room() -> None:
    async def run() -> None:
        turns, loop = Turns(), asyncio.get_running_loop()
        gone = [loop.create_future() for _ in range(3 * READERS_A_TURN)]
        last = loop.create_future()
        for waiter in (*gone, last):
            turns.wake(waiter)
        for waiter in gone:
            waiter.cancel()
        await asyncio.sleep(0)
        assert last.done()

    asyncio.run(run())
