"""Waiting for a result, but no longer than for some time.

Not asyncio.wait_for: cancelled in the turn in which the result comes, it forgets the cancellation (Python 3.11), and a
request would run on for a caller who is gone.
"""

import asyncio
from typing import TypeVar

Result = TypeVar("Result")


async def within(seconds: float | None, future: "asyncio.Future[Result]") -> Result:
    """The future's result; None: however long it takes. A future that nobody waits for any more is cancelled.

    Raises: asyncio.TimeoutError.
    """
    try:
        await asyncio.wait((future,), timeout=seconds)
        if not future.done():
            raise asyncio.TimeoutError
        return future.result()
    finally:
        future.cancel()
