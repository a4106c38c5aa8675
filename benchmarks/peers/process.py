"""The parent's side of `child`: an engine of another Python, driven by lines of JSON."""

import json
import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.engine import ROOT, EngineError, end
from benchmarks.measure import Outcome
from benchmarks.workloads import Workload


class ChildEngine:
    """An offline engine in a child process; it starts when it is made."""

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str], log: Path, start_s: float = 900
    ) -> None:
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
        ready = self._answer(start_s)
        self.version: str = ready["version"]
        self.settings: str = ready["settings"]

    def run(self, workload: Workload, limit_s: float = 3600) -> Outcome:
        """Runs all prompts of ``workload`` at once; the child's own clock counts.

        Raises:
            EngineError: the child died or took longer than ``limit_s``.
        """
        request = {"prompts": [list(prompt) for prompt in workload.prompts], "max_tokens": workload.max_tokens}
        stdin = self.process.stdin
        if stdin is None or self.process.poll() is not None:
            raise EngineError(f"the engine has ended; its log is {self._log}")
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        answer = self._answer(limit_s)
        outputs = answer["outputs"]
        return Outcome(
            wall_s=answer["wall_s"],
            outputs=outputs,
            num_output_tokens=sum(map(len, outputs)),
            num_cached_tokens=answer["cached_tokens"],
        )

    def stop(self) -> None:
        """Ends the child and its descendants."""
        end(self.process)

    def _answer(self, limit_s: float) -> dict[str, Any]:
        stdout = self.process.stdout
        if stdout is None:
            raise EngineError("the engine has no output")
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                end(self.process)
                raise EngineError(f"no answer in {limit_s:.0f} s; the log is {self._log}")
            part = os.read(stdout.fileno(), 1 << 20)
            if not part:
                end(self.process)
                raise EngineError(f"the engine ended with {self.process.returncode}; its log is {self._log}")
            self._buffer += part
        line, self._buffer = self._buffer.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer
