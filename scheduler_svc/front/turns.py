"""Readers are woken a few in each turn of the loop, so that a turn is short however many of them there are.

grpc.aio accepts one call in every other turn of its loop. With a step's 256 messages written in one turn, a new call
would wait for as many steps as there are calls before it; in short turns it waits for none.
"""

import asyncio
from collections import deque

READERS_A_TURN = 8


class Turns:
    """Of one loop; who is not woken in this turn is in one of the next ones, in the order of asking."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._room = READERS_A_TURN
        self._is_counting = False

    def take(self) -> bool:
        """Whether this turn has room for one reader more, which takes it."""
        if not self._is_counting:
            self._is_counting = True
            asyncio.get_running_loop().call_soon(self._next)
        if not self._room:
            return False
        self._room -= 1
        return True

    def wake(self, waiter: "asyncio.Future[None]") -> None:
        """Sets the result of what a reader waits for, in its turn."""
        if waiter.done():
            return
        if self.take():
            waiter.set_result(None)
        else:
            self._waiting.append(waiter)

    def _next(self) -> None:
        """Another turn."""
        self._is_counting = False
        self._room = READERS_A_TURN
        while self._waiting and self._room:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self.take()
                waiter.set_result(None)
