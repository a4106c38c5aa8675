"""An engine that runs under a Python of its own, driven over the lines of `child`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.line_process import LineProcess
from benchmarks.measure import Outcome
from benchmarks.workloads import Workload


class ChildEngine:
    """An offline engine in a child process; it starts when it is made and is ready when ``ready`` returns."""

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str], log: Path) -> None:
        self._lines = LineProcess(command, environment=environment, log=log)
        self.process = self._lines.process
        self.version, self.settings = "", ""

    def ready(self, limit_s: float = 900) -> None:
        """Waits for the engine to have started. Raises: EngineError."""
        if not self.version:
            hello = self._lines.answer(limit_s)
            self.version, self.settings = hello["version"], hello["settings"]

    def run(self, workload: Workload, limit_s: float = 3600) -> Outcome:
        """Runs all prompts of ``workload`` at once; the child's own clock counts.

        Raises:
            EngineError: the child died or took longer than ``limit_s``.
        """
        self.ready()
        requests = [[list(prompt), count] for prompt, count in workload.requests]
        self._lines.tell({"requests": requests, "temperature": workload.temperature})
        answer = self._lines.answer(limit_s)
        outputs = answer["outputs"]
        return Outcome(
            wall_s=answer["wall_s"],
            outputs=outputs,
            num_output_tokens=sum(map(len, outputs)),
            num_cached_tokens=answer["cached_tokens"],
        )

    def stop(self) -> None:
        """Ends the child and its descendants."""
        self._lines.stop()
