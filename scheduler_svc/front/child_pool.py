"""A few processes that do for a front what may go wrong: hostile input costs a process of the pool at the worst.

A process answers questions, one JSON object a line both ways, under hard limits of its own (child_limits.py). Processes
are started when they are needed, and anew after one was lost. Invariant: a question ends within `ANSWER_SECONDS`, with
an answer or a ChildLostError.
"""

import contextlib
import json
import queue
import selectors
import subprocess
import sys
import time
import weakref
from typing import Any

NUM_PROCESSES = 2
ANSWER_SECONDS = 10.0
"""By the clock; the process has its own limit of processor time, which a busy machine stretches."""
MAX_ANSWER_BYTES = 128 * 1024 * 1024
"""Characters of a text are bounded; in JSON each takes up to 6 bytes."""


class ChildLostError(Exception):
    """A process did not answer, or took more than it may."""


class Child:
    """One process."""

    def __init__(self, module: str, first_line: bytes) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._first_line = first_line

    def ask(self, line: bytes) -> Any:
        """The answer to one line.

        Raises: ChildLostError.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise ChildLostError
        try:
            stdin.write(self._first_line + line)
            stdin.flush()
            self._first_line = b""
            return json.loads(_read_line(stdout.fileno(), stdout))
        except (OSError, ValueError):
            raise ChildLostError from None

    def end(self) -> None:
        """Ends the process at once."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class ChildPool:
    """Processes of one module, told ``first`` before their first question. Thread-safe."""

    def __init__(self, module: str, first: Any) -> None:
        self._module = module
        self._first_line = json.dumps(first).encode() + b"\n"
        self._idle: queue.LifoQueue[Child | None] = queue.LifoQueue()
        for _ in range(NUM_PROCESSES):
            self._idle.put(None)
        weakref.finalize(self, _end_idle, self._idle)

    def close(self) -> None:
        """Ends the processes that are idle; a later question starts another."""
        _end_idle(self._idle)

    def ask(self, question: Any) -> Any:
        """The answer; blocks its thread meanwhile.

        Raises: ChildLostError.
        """
        line = json.dumps(question).encode() + b"\n"
        child = self._idle.get()
        try:
            if child is None:
                child = Child(self._module, self._first_line)
            return child.ask(line)
        except BaseException:
            if child is not None:
                child.end()
            child = None
            raise
        finally:
            self._idle.put(child)


def _end_idle(idle: "queue.LifoQueue[Child | None]") -> None:
    """Ends the processes that do nothing now; their places stay."""
    places: list[None] = []
    with contextlib.suppress(queue.Empty):
        while True:
            child = idle.get_nowait()
            places.append(None)
            if child is not None:
                child.end()
    for place in places:
        idle.put(place)


def _read_line(descriptor: int, stream: Any) -> bytes:
    """One line of a pipe.

    Raises: OSError if it ends, takes too long or is too long.
    """
    deadline = time.monotonic() + ANSWER_SECONDS
    pieces: list[bytes] = []
    size = 0
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while not pieces or not pieces[-1].endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            piece = stream.read1(1 << 20)
            size += len(piece)
            if not piece or size > MAX_ANSWER_BYTES:
                raise OSError
            pieces.append(piece)
    return b"".join(pieces)
