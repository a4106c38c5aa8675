"""Whether the front's event loop sleeps or looks again at once: it does the latter for a while after it had work.

Why, and on which machines: the scheduler's polling.py, which decides how long.
"""

import asyncio


class Polling:
    """Of one event loop, which does not sleep while something is due at once. 0 ``seconds``: it always sleeps."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = 0.0
        self._turns = False

    def had_work(self) -> None:
        """Call it in the loop."""
        if self._seconds:
            loop = asyncio.get_running_loop()
            self._until = loop.time() + self._seconds
            if not self._turns:
                self._turns = True
                loop.call_soon(self._turn, loop)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turns = loop.time() < self._until
        if self._turns:
            loop.call_soon(self._turn, loop)
