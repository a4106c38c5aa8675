"""Waiting without sleeping blindly: until something holds, or a deadline fails the test."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], what: str, seconds: float = 10.0) -> None:
    """Raises AssertionError, naming ``what``, if it does not hold in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.002)
