"""A real stack for a test: one scheduler and workers as processes, each under the test's control.

Unlike `pagewire serve` nothing is restarted by itself: a test says when a worker starts, stops or dies. Every process
started carries a mark in its environment, its own children inherit it, so that ``stop`` can tell whether anything is
left wherever it was re-parented to.
"""

import contextlib
import os
import signal
import socket
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from pagewire_client import Client, HealthStatus, Load, UnavailableError
from pagewire_client.child import Child, Command
from pagewire_client.stack import free_ports, scheduler_command, worker_commands
from support.conditions import wait_until

MARK = "PAGEWIRE_TEST_MARK"
START_SECONDS = 60.0
STOP_SECONDS = 15.0


def accepts(target: str) -> bool:
    """Whether something listens; asked before gRPC is, whose reconnects back off for seconds."""
    host, _, port = target.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1):
            return True
    except OSError:
        return False


def new_mark() -> str:
    """A value of the mark nobody used."""
    return uuid.uuid4().hex


def marked_pids(mark: str) -> list[int]:
    """Living processes started with this mark, zombies not counted."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def kill_marked(mark: str) -> None:
    """Ends whatever carries the mark."""
    for pid in marked_pids(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


FLOAT32 = ("--dtype", "float32", "--device", os.environ.get("PAGEWIRE_TEST_DEVICE", "cpu"))
"""Worker flags under which outputs are promised to be equal, on any machine."""
ONE_THREAD = (*FLOAT32, "--cpu-threads", "1")
"""The same without measuring threads at the start, for tests that start many workers on a busy machine."""


class Stack:
    """A scheduler and a worker of ``model``; a context manager that waits until it serves.

    Leaving the block stops everything and fails if a process is left.
    """

    def __init__(
        self,
        model: Path,
        *,
        scheduler: Sequence[str] = (),
        worker: Sequence[str] = (),
    ) -> None:
        self.mark = new_mark()
        self._folder = tempfile.TemporaryDirectory(prefix="pagewire-e2e-")
        port, internal_port, metrics_port = free_ports(3)
        endpoint = f"ipc://{self._folder.name}/worker.sock"
        ports = ["--port", str(port), "--internal-port", str(internal_port), "--metrics-port", str(metrics_port)]
        places = ["--worker-endpoint", endpoint, "--state-dir", self._folder.name]
        self.target = f"127.0.0.1:{port}"
        self._scheduler_command = self._marked(scheduler_command([*ports, *places, *scheduler]))
        self._worker_command = self._marked(worker_commands(str(model), ["--scheduler", endpoint, *worker], 1)[0])
        self._lines: list[str] = []
        self._children: list[Child] = []
        self.client = Client(self.target, internal_target=f"127.0.0.1:{internal_port}", timeout=60)

    @property
    def log(self) -> str:
        """Everything the processes wrote so far."""
        return "\n".join(self._lines)

    @property
    def scheduler(self) -> Child:
        """The scheduler."""
        return self._children[0]

    @property
    def workers(self) -> list[Child]:
        """The workers that run, stopped ones included, in the order they were started."""
        return [child for child in self._children[1:] if child.exit_code() is None]

    def start(self) -> None:
        """Starts everything and waits until it serves. Raises: AssertionError, RuntimeError when a process ended."""
        try:
            self._children.append(self._spawn(self._scheduler_command))
            self.start_worker()
            self.await_serving()
        except BaseException as error:
            self._end()
            error.add_note(self.log[-4000:])
            raise

    def stop(self) -> None:
        """Stops everything. Raises: AssertionError when a process is left."""
        left = self._end()
        assert not left, f"processes left behind: {left}\n{self.log[-4000:]}"

    def start_worker(self) -> Child:
        """One more worker; does not wait for it."""
        child = self._spawn(self._worker_command)
        self._children.append(child)
        return child

    def kill_worker(self) -> None:
        """SIGKILL to the last worker; returns when it is gone."""
        worker = self.workers[-1]
        os.kill(worker.pid, signal.SIGKILL)
        assert worker.wait(5), "a killed worker is still there"

    def replace_scheduler(self, number: int = signal.SIGKILL) -> None:
        """Ends the scheduler by a signal, and starts another one in its place; returns when that serves."""
        os.kill(self.scheduler.pid, number)
        assert self.scheduler.wait(15), "the scheduler is still there"
        self._children[0] = self._spawn(self._scheduler_command)
        self.await_serving()

    def ensure_one_worker(self) -> None:
        """Exactly one worker runs and serves, whatever an earlier test left."""
        for worker in self.workers[1:]:
            worker.kill()
            worker.wait(5)
        if not self.workers:
            self.start_worker()
        os.kill(self.workers[0].pid, signal.SIGCONT)
        self.await_serving()
        wait_until(lambda: self.load().num_workers == 1, "one worker")

    def health(self) -> HealthStatus | None:
        """The health of the whole server; None while nothing answers."""
        try:
            return self.client.health(timeout=5)
        except UnavailableError:
            return None

    def await_serving(self, seconds: float = START_SECONDS) -> None:
        """Waits for SERVING."""

        def serving() -> bool:
            for child in self._children:
                code = child.exit_code()
                if code is not None and code != -signal.SIGKILL:
                    raise RuntimeError(f"{child.name} ended with {code}")
            return accepts(self.target) and self.health() is HealthStatus.SERVING

        wait_until(serving, "the stack serves", seconds)

    def load(self) -> Load:
        """Counts now."""
        return self.client.load(timeout=10)

    def await_idle(self, seconds: float = 10.0) -> Load:
        """Waits until no request is left and every page is free or only cached; returns the counts then."""

        def idle() -> bool:
            load = self.load()
            requests = load.num_requests_running + load.num_requests_waiting
            return requests == 0 and load.num_held_pages == 0

        wait_until(idle, "nothing running, nothing waiting, no page held", seconds)
        load = self.load()
        assert load.num_free_pages + load.num_cached_pages == load.num_pages, load
        return load

    def _spawn(self, command: Command) -> Child:
        return Child(command, lambda line: self._lines.append(f"{command.name}: {line}"))

    def _marked(self, command: Command) -> Command:
        return replace(command, environment={**command.environment, MARK: self.mark})

    def _end(self) -> list[int]:
        """Stops everything; the processes that were left, before they are killed."""
        self.client.close()
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGCONT)
            child.terminate()
        for child in self._children:
            if not child.wait(STOP_SECONDS):
                child.kill()
                child.wait(5)
        try:
            wait_until(lambda: not marked_pids(self.mark), "all processes gone", 5)
        except AssertionError:
            return marked_pids(self.mark)
        finally:
            kill_marked(self.mark)
            self._folder.cleanup()
        return []

    def __enter__(self) -> "Stack":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        if value is not None:
            self._end()
            value.add_note(self.log[-4000:])
            return
        self.stop()


@contextlib.contextmanager
def attached_log(stack: Stack) -> Iterator[None]:
    """Adds the end of the processes' log to an error raised inside."""
    try:
        yield
    except Exception as error:
        error.add_note(stack.log[-4000:])
        raise
