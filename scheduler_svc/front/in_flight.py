"""How many calls are under way, so that a stopping front can wait for its own."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class InFlight:
    """Counts calls; an open health watch is none."""

    def __init__(self) -> None:
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._hurry = asyncio.Event()

    @property
    def is_idle(self) -> bool:
        """Whether no call is under way."""
        return not self._count

    @contextmanager
    def call(self) -> Iterator[None]:
        """The duration of one call."""
        self._count += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._idle.set()

    def hurry(self) -> None:
        """Whoever waits with patience waits no longer."""
        self._hurry.set()

    async def wait_patiently(self, seconds: float) -> bool:
        """Whether no call is under way within so long, unless somebody is in a hurry."""
        hurry = asyncio.ensure_future(self._hurry.wait())
        idle = asyncio.ensure_future(self._idle.wait())
        await asyncio.wait((hurry, idle), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        idle.cancel()
        return not self._count

    async def wait_idle(self, seconds: float) -> bool:
        """Whether no call is under way within so long."""
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        return True
