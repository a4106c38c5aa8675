"""Streaming clients in processes of their own, so that the client is not what is measured.

Every process holds a share of the requests, each as one stream; all start at one moment of the system's clock.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.engine import EngineError
from benchmarks.line_process import LineProcess
from benchmarks.measure import Outcome, StreamTimes
from benchmarks.workloads import Workload

NUM_PROCESSES = 8
_MARGIN_SECONDS = 0.5
"""Until all processes have read their requests."""


class Clients:
    """Client processes of one server; they start at the first workload. ``kind`` is a key of `client_process.KINDS`."""

    def __init__(self, kind: str, target: Callable[[], str], model: str) -> None:
        self._kind, self._target, self._model = kind, target, model
        self._processes: list[LineProcess] = []
        self._log = Path(tempfile.gettempdir()) / f"pagewire-bench-clients-{os.getpid()}.log"

    def run(self, workload: Workload, limit_s: float = 600) -> Outcome:
        """Runs ``workload`` once.

        Raises:
            EngineError: a request failed, or was not answered in full.
        """
        processes = self._started()[: max(1, workload.num_clients or NUM_PROCESSES)]
        start = time.perf_counter() + _MARGIN_SECONDS + 2e-7 * sum(len(prompt) for prompt in workload.prompts)
        for number, process in enumerate(processes):
            process.tell(self._share(workload, number, len(processes), start))
        streams: dict[int, StreamTimes] = {}
        for process in processes:
            for index, sent, messages in process.answer(limit_s)["streams"]:
                streams[index] = StreamTimes(sent=sent, messages=[(moment, count) for moment, count in messages])
        in_order = [streams[index] for index in range(len(workload.requests))]
        for stream, (_, count) in zip(in_order, workload.requests, strict=True):
            if stream.num_tokens != count:
                raise EngineError(f"{self._kind}: received {stream.num_tokens} of {count} tokens")
        wall = max(stream.messages[-1][0] for stream in in_order) - start
        total = workload.num_output_tokens
        return Outcome(wall_s=wall, outputs=[[] for _ in in_order], num_output_tokens=total, streams=in_order)

    def stop(self) -> None:
        for process in self._processes:
            process.stop()

    def _share(self, workload: Workload, number: int, total: int, start: float) -> dict[str, Any]:
        """What one process does: every ``total``-th request; closed-loop clients are dealt out likewise."""
        indices = range(number, len(workload.requests), total)
        return {
            "target": self._target(),
            "model": self._model,
            "temperature": workload.temperature,
            "start": start,
            "num_clients": len(range(number, workload.num_clients, total)),
            "requests": [[index, list(workload.requests[index][0]), workload.requests[index][1]] for index in indices],
            "arrivals": [workload.arrivals[index] for index in indices] if workload.arrivals else [],
        }

    def _started(self) -> list[LineProcess]:
        if not self._processes:
            command = [sys.executable, "-m", "benchmarks.client_process", self._kind]
            for _ in range(NUM_PROCESSES):
                self._processes.append(LineProcess(command, environment=os.environ, log=self._log))
            for process in self._processes:
                process.answer(60)
        return self._processes
