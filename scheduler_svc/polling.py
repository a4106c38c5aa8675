"""Whether a loop without work looks again at once or sleeps.

To wake a process takes the machine tens of microseconds, and what it does then, its caches cold, two to three times as
long as what it does hot. So a loop that has just had work looks for more for a while, where there are processors enough
that nobody needs this one (machine.py).
"""

import asyncio

POLLING_SECONDS = 0.02


class Polling:
    """Of one loop. ``seconds``: how long it looks after it had work; 0: never."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = 0.0

    def had_work(self, now: float) -> None:
        self._until = now + self._seconds

    def looks_again(self, now: float) -> bool:
        """Whether to look again at once."""
        return now < self._until


class EventLoopPolling:
    """Of an asyncio loop, which does not sleep while something is due at once."""

    def __init__(self, seconds: float) -> None:
        self._polling = Polling(seconds) if seconds else None
        self._turns = False

    def had_work(self) -> None:
        """Call it in the loop."""
        if self._polling is not None:
            loop = asyncio.get_running_loop()
            self._polling.had_work(loop.time())
            if not self._turns:
                self._turns = True
                loop.call_soon(self._turn, loop, self._polling)

    def _turn(self, loop: asyncio.AbstractEventLoop, polling: Polling) -> None:
        self._turns = polling.looks_again(loop.time())
        if self._turns:
            loop.call_soon(self._turn, loop, polling)
