"""What files say, read again when they changed.

The first reading must succeed. Later ones may fail (a file is being written, a certificate and its key do not belong
together yet): then what was read last stays in force, and the log says why, once for each state of the files.
"""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import structlog

CHECK_SECONDS = 0.5
"""Files are looked at at most so often."""

Content = TypeVar("Content")
_Stamp = tuple[tuple[int, int, int], ...]

log = structlog.get_logger("pagewire.front")


class FileError(Exception):
    """A file cannot be used; the message is one line that names flag and file."""


class ReloadedFile(Generic[Content]):
    """``read`` makes the content of the files at ``paths``. Thread-safe."""

    def __init__(self, paths: Sequence[Path], read: Callable[[], Content]) -> None:
        """Raises: FileError, as ``read`` does."""
        self._paths = tuple(paths)
        self._read = read
        self._lock = threading.Lock()
        self._stamp = self._stamp_now()
        self._content = read()
        self._next_check = 0.0

    def current(self) -> Content:
        """The newest content that could be read."""
        with self._lock:
            now = time.monotonic()
            if now >= self._next_check:
                self._next_check = now + CHECK_SECONDS
                self._look()
            return self._content

    def _look(self) -> None:
        stamp = self._stamp_now()
        if stamp is None or stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._content = self._read()
        except FileError as error:
            log.error("file_not_reloaded", reason=str(error))
        else:
            log.info("file_reloaded", paths=[str(path) for path in self._paths])

    def _stamp_now(self) -> "_Stamp | None":
        """Changes whenever a file does; None while one is not there."""
        try:
            found = [path.stat() for path in self._paths]
        except OSError:
            return None
        return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in found)


def read_bytes(flag: str, path: Path) -> bytes:
    """A file's content.

    Raises: FileError.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileError(f"{flag} {path}: {error.strerror}") from None
