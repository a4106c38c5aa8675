"""Waiting without sleeping blindly: until something holds, or a deadline fails the test."""

import time
from collections.abc import Callable

LONGEST_PAUSE = 0.02
"""What is asked may be another process, which needs the processor too."""


def wait_until(condition: Callable[[], object], what: str, seconds: float = 10.0) -> None:
    """Raises AssertionError, naming ``what``, if it does not hold in time."""
    deadline, pause = time.monotonic() + seconds, 0.002
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
