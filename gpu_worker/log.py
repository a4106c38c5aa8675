"""Structured logs on stderr: events with ids, never prompts or token ids."""

import contextlib
import sys
from typing import Any, TextIO, cast

import structlog


def configure(log_format: str) -> None:
    """``text`` for people, ``json`` for machines."""
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr is not None and sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            *([structlog.processors.format_exc_info] if log_format == "json" else []),
            renderer,
        ],
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _LossyFile(sys.stderr))),
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
