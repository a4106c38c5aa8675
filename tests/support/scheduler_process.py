"""The real scheduler process with its fronts, and scripted workers as processes; free ports, a directory of its own."""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from pagewire_client.stack import free_ports
from support.conditions import wait_until

WORKER = Path(__file__).with_name("scripted_worker.py")


class SchedulerProcess:
    """``with SchedulerProcess() as scheduler``: listening, no worker yet. ``flags`` are added to the command line."""

    def __init__(self, *flags: str, directory: Path | None = None, port: int | None = None) -> None:
        self._owned = None if directory else Path(tempfile.mkdtemp(prefix="pagewire-test-"))
        self.directory = directory or self._owned
        ports = free_ports(3)
        self.port, self.internal_port, self.metrics_port = port or ports[0], ports[1], ports[2]
        self.ports = (self.port, self.internal_port, self.metrics_port)
        self.target = f"127.0.0.1:{self.port}"
        self.internal_target = f"127.0.0.1:{self.internal_port}"
        assert self.directory is not None
        self.worker_endpoint = f"ipc://{self.directory}/worker-{self.port}.sock"
        self.log_path = self.directory / f"scheduler-{self.port}.log"
        self.arguments = [
            *("--port", str(self.port), "--internal-port", str(self.internal_port)),
            *("--metrics-port", str(self.metrics_port)),
            *("--state-dir", str(self.directory), "--log-format", "json", "--front-processes", "1", *flags),
        ]
        self._workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "SchedulerProcess":
        try:
            self.start()
            self.wait_event("listening")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def start(self) -> None:
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "scheduler_svc", *self.arguments], stderr=log, stdin=subprocess.DEVNULL
            )

    def close(self) -> None:
        """Everything is gone afterwards, however it stood."""
        for process in [*self._workers, self.process]:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(10)
        if self._owned is not None:
            shutil.rmtree(self._owned, ignore_errors=True)

    def start_worker(
        self, *flags: str, outputs: Mapping[Sequence[int], Sequence[int]] | None = None
    ) -> "subprocess.Popen[bytes]":
        """A scripted worker; ``outputs`` as in ``prepared_script``."""
        named = {",".join(map(str, prompt)): list(ids) for prompt, ids in (outputs or {}).items()}
        command = [sys.executable, str(WORKER), "--scheduler", self.worker_endpoint, "--outputs", json.dumps(named)]
        worker = subprocess.Popen([*command, *flags], stdin=subprocess.DEVNULL)
        self._workers.append(worker)
        return worker

    def stop(self, seconds: float = 20.0) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        return self.process.wait(seconds)

    def log(self) -> list[dict[str, Any]]:
        """Events of the scheduler and its fronts; other lines as ``{"event": line}``."""
        return [_event(line) for line in self.log_path.read_text().splitlines()]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.log() if event.get("event") == name]

    def wait_event(self, name: str, count: int = 1, seconds: float = 20.0) -> dict[str, Any]:
        """The newest event of a name, once there are so many; fails at once if the process ends before."""

        def is_there() -> bool:
            assert self.process.poll() is None or self.events(name), self.log_path.read_text()
            return len(self.events(name)) >= count

        wait_until(is_there, f"event {name}", seconds)
        return self.events(name)[-1]

    def run_to_end(self, seconds: float = 20.0) -> int:
        """The exit code of a start that is expected to fail."""
        self.start()
        deadline = time.monotonic() + seconds
        return self.process.wait(max(0.1, deadline - time.monotonic()))


def _event(line: str) -> dict[str, Any]:
    try:
        return dict(json.loads(line))
    except ValueError:
        return {"event": line}
