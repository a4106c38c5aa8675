"""A front dies with the scheduler process that started it."""

import asyncio
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
CHECK_SECONDS = 0.5


def die_with_parent() -> None:
    """Asks the kernel for a SIGTERM when the parent ends (Linux only; `wait_for_orphanhood` covers the rest)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


async def wait_for_orphanhood(parent: int) -> None:
    """Returns once `parent` is no longer the parent of this process."""
    while os.getppid() == parent:  # noqa: ASYNC110 (nobody tells; it has to be looked at)
        await asyncio.sleep(CHECK_SECONDS)
