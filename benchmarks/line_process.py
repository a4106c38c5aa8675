"""A child process that answers one JSON object a line, in the order in which it is asked; see `peers.child`."""

import json
import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.engine import ROOT, EngineError, end, last_lines


class LineProcess:
    """Starts when it is made; its stderr is appended to ``log``."""

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str], log: Path) -> None:
        self._buffer = b""
        self._log = log
        with log.open("ab") as stderr:
            self.process: subprocess.Popen[str] = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=ROOT,
                env=dict(environment),
            )

    def tell(self, message: Mapping[str, Any]) -> None:
        """Raises: EngineError if the child has ended."""
        stdin = self.process.stdin
        if stdin is None or self.process.poll() is not None:
            raise EngineError(f"the process has ended; the end of {self._log}:\n{last_lines(self._log)}")
        stdin.write(json.dumps(message) + "\n")
        stdin.flush()

    def answer(self, limit_s: float) -> dict[str, Any]:
        """The next line. Raises: EngineError if the child ends or takes longer than ``limit_s``."""
        stdout = self.process.stdout
        if stdout is None:
            raise EngineError("the process has no output")
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                end(self.process)
                raise EngineError(f"no answer in {limit_s:.0f} s; the log is {self._log}")
            part = os.read(stdout.fileno(), 1 << 20)
            if not part:
                end(self.process)
                how = f"the process ended with {self.process.returncode}; the end of {self._log}"
                raise EngineError(f"{how}:\n{last_lines(self._log)}")
            self._buffer += part
        line, self._buffer = self._buffer.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineError(answer["error"])
        return answer

    def stop(self) -> None:
        """Ends the child and its descendants."""
        end(self.process)
