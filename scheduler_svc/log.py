"""Structured logs on stderr: events with ids, never prompts or tokens."""

import contextlib
import sys
from typing import TextIO, cast

import structlog

LEAST_SECONDS = 1.0


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
    """A text file whose failures count for nothing: a full disk or a reader that went away must not end a service."""

    def __init__(self, file: TextIO | None) -> None:
        """``file`` is None in a process that was started without one."""
        self._file = file

    def write(self, text: str) -> int:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.write(text)
        return len(text)

    def flush(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.flush()


class SparseLog:
    """Logs each kind of event at most once a second, with the number left out since."""

    def __init__(self) -> None:
        self._log = structlog.get_logger()
        self._last: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def warning(self, event: str, now: float, **ids: object) -> None:
        if now - self._last.get(event, -LEAST_SECONDS) < LEAST_SECONDS:
            self._left_out[event] = self._left_out.get(event, 0) + 1
            return
        self._last[event] = now
        self._log.warning(event, left_out=self._left_out.pop(event, 0), **ids)
