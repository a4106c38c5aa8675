"""What a child process writes to stderr, as lines of this process's log.

Its events are JSON already and are passed on as they are; whatever else comes is a library's (gRPC's core reports
handshakes that fail) and becomes the text of an event, so that every line of a JSON log is JSON. Read here and not in
the child, so that the last words of one that crashes arrive.
"""

import contextlib
import os
import sys
import time
from typing import Final

from scheduler_svc.log import SparseLog

_MOST_BYTES: Final = 1 << 16
"""Read at once; a line that is longer is cut."""
_MOST_CHARS: Final = 500
_MOST_LINES: Final = 20
"""A second; those that come faster are left out and counted."""


class ChildLines:
    """``read`` whenever the descriptor can be read; it is not closed here."""

    def __init__(self, descriptor: int, front: int) -> None:
        self.descriptor = descriptor
        self._front = front
        self._left = b""
        self._log = SparseLog(_MOST_LINES)
        os.set_blocking(descriptor, False)

    def read(self) -> bool:
        """Passes on what has come; False at its end."""
        try:
            content = os.read(self.descriptor, _MOST_BYTES)
        except BlockingIOError:
            return True
        *lines, self._left = (self._left + content).split(b"\n")
        if not content or len(self._left) > _MOST_BYTES:
            lines, self._left = [*lines, self._left], b""
        for line in lines:
            self._pass_on(line.decode(errors="replace").rstrip())
        return bool(content)

    def _pass_on(self, line: str) -> None:
        if line.startswith("{"):
            with contextlib.suppress(OSError):
                sys.stderr.write(f"{line}\n")
                sys.stderr.flush()
        elif line:
            self._log.warning("library_said", time.monotonic(), front=self._front, text=line[:_MOST_CHARS])
