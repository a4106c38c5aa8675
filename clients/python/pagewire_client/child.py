"""One child process: started, watched, stopped.

Invariants: the child dies with the thread that started it (the kernel sends it SIGKILL, whatever happened to this
process); it has a session of its own, so that a terminal's Ctrl-C reaches only the parent, which stops its children
in order; its output is always drained, so that it never blocks on a full pipe.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from .config import child_environment

_TAIL_LINES = 40
# prctl(PR_SET_PDEATHSIG, SIGKILL), then the program itself. A parent that died before the call is seen by its
# changed id.
_DIE_WITH_PARENT = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run: a name for messages, the arguments (the first is the program's path), changes to the environment."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


class Child:
    """A running child. ``on_line`` gets every line it writes (stdout and stderr together), from a thread of its own."""

    def __init__(self, command: Command, on_line: Callable[[str], None] | None = None) -> None:
        self.name = command.name
        self.started_at = time.monotonic()
        self._on_line = on_line
        self._lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self._process = subprocess.Popen(
            wrapped(command.arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=child_environment(**command.environment),
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name=f"output of {self.name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Its exit code (negative: ended by that signal), None while it runs."""
        return self._process.poll()

    def last_lines(self, count: int = 12) -> list[str]:
        """The last lines it wrote."""
        if self.exit_code() is not None:
            self._reader.join(timeout=1.0)
        return list(self._lines)[-count:]

    def terminate(self) -> None:
        """Asks it to end (SIGTERM)."""
        self._process.terminate()

    def kill(self) -> None:
        """Ends it and its own children at once (SIGKILL)."""
        if self.exit_code() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def wait(self, seconds: float) -> bool:
        """Waits for its end; False if it still runs."""
        try:
            self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _read(self) -> None:
        stream: IO[bytes] | None = self._process.stdout
        if stream is None:
            return
        with stream:
            for raw in stream:
                line = raw.decode(errors="replace").rstrip("\r\n")
                self._lines.append(line)
                if self._on_line is not None:
                    self._on_line(line)


def wrapped(arguments: Sequence[str]) -> list[str]:
    """The arguments behind the wrapper that ties the child to its parent (Linux; elsewhere the arguments alone)."""
    if not sys.platform.startswith("linux"):
        return list(arguments)
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *arguments]


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
