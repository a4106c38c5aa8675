"""transformers' continuous batching, offline workloads only, in a process of its own."""

import os
import signal
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from benchmarks.engine import EngineError, say, signal_tree
from benchmarks.measure import Outcome
from benchmarks.peers.process import ChildEngine
from benchmarks.workloads import Workload


class Transformers:
    """Started by the first workload."""

    name = "transformers"

    def __init__(self, model: str, dtype: str, *, on_cpu: bool = True) -> None:
        self.model, self.dtype = model, dtype
        self.version = version("transformers")
        self.settings = "continuous batching"
        self.log = Path(tempfile.gettempdir()) / f"pagewire-bench-transformers-{os.getpid()}.log"
        self._on_cpu = on_cpu
        self._child: ChildEngine | None = None

    def roots(self) -> list[int]:
        return [self._child.process.pid] if self._child else []

    def run(self, workload: Workload) -> Outcome:
        if workload.is_served:
            raise EngineError("transformers has no server for streams")
        return self._started().run(workload)

    def pause(self) -> None:
        if self._on_cpu:
            signal_tree(self.roots(), signal.SIGSTOP)

    def resume(self) -> None:
        if self._on_cpu:
            signal_tree(self.roots(), signal.SIGCONT)

    def stop(self) -> None:
        self.resume()
        if self._child is not None:
            self._child.stop()

    def _started(self) -> ChildEngine:
        if self._child is None:
            say(f"starting transformers (log: {self.log})")
            module = "benchmarks.peers.transformers_child"
            command = [sys.executable, "-m", module, "--model", self.model, "--dtype", self.dtype]
            command += [] if self._on_cpu else ["--gpu"]
            self._child = ChildEngine(command, environment=os.environ, log=self.log)
        return self._child
