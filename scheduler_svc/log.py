"""Structured logs on stderr: events with ids, never prompts or tokens."""

import contextlib
import sys
from collections import deque
from typing import TextIO, cast

import structlog

LEAST_SECONDS = 1.0
MOST_COMINGS = 20
"""Joins (and losses) logged a second: enough for all workers and fronts of a deployment to start at once."""


def configure(log_format: str) -> None:
    """``text`` for people, ``json`` for machines."""
    renderer: structlog.typing.Processor
    if log_format == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=False)
    processors: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if log_format == "json":
        processors.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*processors, renderer],
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _LossyFile(sys.stderr))),
        cache_logger_on_first_use=False,
    )


class _LossyFile:
    """A text file whose failures count for nothing: a full disk or a reader that went away must not end a service.

    A line goes out whole: several processes write into one pipe.
    """

    def __init__(self, file: TextIO | None) -> None:
        """``file`` is None in a process that was started without one."""
        self._file = file
        self._line = ""

    def write(self, text: str) -> int:
        self._line += text
        if text.endswith("\n"):
            line, self._line = self._line, ""
            if self._file is not None:
                with contextlib.suppress(OSError):
                    self._file.write(line)
        return len(text)

    def flush(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.flush()


class SparseLog:
    """Logs each kind of event at most ``most`` times a second, with the number left out since."""

    def __init__(self, most: int = 1) -> None:
        self._log = structlog.get_logger()
        self._most = most
        self._recent: dict[str, deque[float]] = {}
        self._left_out: dict[str, int] = {}

    def info(self, event: str, now: float, **ids: object) -> None:
        self._write("info", event, now, ids)

    def warning(self, event: str, now: float, **ids: object) -> None:
        self._write("warning", event, now, ids)

    def _write(self, level: str, event: str, now: float, ids: dict[str, object]) -> None:
        recent = self._recent.setdefault(event, deque(maxlen=self._most))
        if len(recent) == self._most and now - recent[0] < LEAST_SECONDS:
            self._left_out[event] = self._left_out.get(event, 0) + 1
            return
        recent.append(now)
        left_out = self._left_out.pop(event, 0)
        if left_out:
            ids = {**ids, "left_out": left_out}
        getattr(self._log, level)(event, **ids)
