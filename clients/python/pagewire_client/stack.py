"""A local stack: one scheduler and its workers as child processes.

Decides when the stack is ready (its health says SERVING), when a start has failed (a child ended: at once, with its
last lines), when a worker hangs or is started again, and the order of the stop: the scheduler first, which drains
while the workers still compute, then the workers. Knows nothing of flags beyond those it must set itself.

Invariants: every child is started by one thread that lives as long as the stack, because a child dies with the
thread that started it; after ``stop`` no child runs and the private directory is gone.
"""

from __future__ import annotations

import atexit
import contextlib
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from .child import Child, Command, describe_exit
from .client import Client
from .config import visible_gpus
from .errors import ServerError, StackError
from .hung_workers import HungWorkers, joined_pids
from .installed import check_installed
from .restarts import Restarts
from .results import HealthStatus

if TYPE_CHECKING:
    from typing_extensions import Self

_POLL_SECONDS = 0.05


class _Worker:
    """A worker's command, its present child, and when it is due to start again."""

    def __init__(self, command: Command, restarts: Restarts) -> None:
        self.command = command
        self.restarts = restarts
        self.child: Child | None = None
        self.restart_at: float | None = None


class LocalStack:
    """A scheduler and workers on this machine; a context manager.

    ``target`` is where clients connect, ``internal_target`` where ``Client.load`` asks. ``on_line`` gets (child name,
    line) for all the children write, ``on_event`` one line for every exit and restart after the start. At a stop the
    scheduler has ``drain_seconds``, then each worker ``stop_seconds``, before it is killed.
    """

    def __init__(
        self,
        *,
        scheduler: Command,
        workers: Sequence[Command],
        target: str,
        internal_target: str,
        private_directory: Path | None = None,
        start_seconds: float = 300.0,
        drain_seconds: float = 40.0,
        stop_seconds: float = 10.0,
        make_restarts: Callable[[], Restarts] = Restarts,
        hung: HungWorkers | None = None,
        on_line: Callable[[str, str], None] | None = None,
        on_event: Callable[[str], None] | None = None,
    ) -> None:
        self.target = target
        self.internal_target = internal_target
        self._scheduler_command = scheduler
        self._workers = [_Worker(command, make_restarts()) for command in workers]
        self._private_directory = private_directory
        self._start_seconds = start_seconds
        self._drain_seconds = drain_seconds
        self._stop_seconds = stop_seconds
        self._on_line = on_line
        self._on_event = on_event
        self._scheduler: Child | None = None
        self.hung = hung or HungWorkers(lambda: joined_pids(internal_target))
        self._settled = threading.Event()  # ready, or failed to become so
        self._stopping = threading.Event()
        self._hurry = threading.Event()
        self._ended = threading.Event()
        self._error: StackError | None = None
        self._thread = threading.Thread(target=self._run, name="pagewire stack", daemon=True)

    def start(self) -> None:
        """Starts everything; returns when it is ready. Raises: StackError, with the last lines of a child
        that ended."""
        atexit.register(self.stop)
        self._thread.start()
        try:
            self._settled.wait()
        except BaseException:
            self.stop()
            raise
        if self._error is not None:
            self.stop()
            raise self._error

    def wait(self, seconds: float | None = None) -> bool:
        """Waits for the stack's end; False if it still runs. Raises: StackError if it broke down."""
        ended = self._ended.wait(seconds)
        if ended and self._error is not None:
            raise self._error
        return ended

    def stop(self) -> None:
        """Drains and stops everything. Interrupted (Ctrl-C again) it kills what still runs. Safe to call twice."""
        atexit.unregister(self.stop)
        self._stopping.set()
        if self._thread.ident is None:
            self._remove_directory()
            return
        try:
            self._ended.wait()
        except BaseException:
            self._hurry.set()
            self._ended.wait()
            raise

    def client(self) -> Client:
        """A client of this stack."""
        return Client(self.target, internal_target=self.internal_target)

    def pids(self) -> dict[str, int]:
        """Process id of every child that runs, by name."""
        children = [self._scheduler, *(worker.child for worker in self._workers)]
        return {child.name: child.pid for child in children if child is not None and child.exit_code() is None}

    def exit_codes(self) -> dict[str, int]:
        """Exit code of every child that has ended, by name (negative: ended by that signal)."""
        children = [self._scheduler, *(worker.child for worker in self._workers)]
        codes = {child.name: child.exit_code() for child in children if child is not None}
        return {name: code for name, code in codes.items() if code is not None}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    # From here on everything runs in the stack's own thread.

    def _run(self) -> None:
        ready = False
        try:
            self._scheduler = self._spawn(self._scheduler_command)
            for worker in self._workers:
                worker.child = self._spawn(worker.command)
            ready = self._await_ready()
            self._settled.set()
            self._supervise()
        except StackError as error:
            self._error = error
        except OSError as error:
            self._error = StackError(f"cannot start a process: {error}")
        finally:
            self._stop_children(drain=ready)
            self._remove_directory()
            self._ended.set()
            self._settled.set()

    def _spawn(self, command: Command) -> Child:
        on_line = self._on_line
        if on_line is None:
            return Child(command)
        return Child(command, lambda line: on_line(command.name, line))

    def _await_ready(self) -> bool:
        """Returns True when ready, False when asked to stop before."""
        deadline = time.monotonic() + self._start_seconds
        with contextlib.ExitStack() as cleanup:
            client: Client | None = None
            while not self._stopping.wait(_POLL_SECONDS):
                self._check_children()
                if time.monotonic() > deadline:
                    raise StackError(f"not ready after {self._start_seconds:g} s\n{self._tails()}")
                if client is None and _accepts(self.target):
                    client = cleanup.enter_context(Client(self.target))
                if client is not None and _serving(client):
                    return True
        return False

    def _check_children(self) -> None:
        for child in (self._scheduler, *(worker.child for worker in self._workers)):
            if child is not None and child.exit_code() is not None:
                raise self._ended_early(child)

    def _supervise(self) -> None:
        while not self._stopping.wait(_POLL_SECONDS):
            if self._scheduler is not None and (code := self._scheduler.exit_code()) is not None:
                if code == 0:  # an operator had it drain
                    self._tell("scheduler ended by itself: everything stops")
                    return
                raise self._ended_early(self._scheduler)
            self._kill_hung()
            for worker in self._workers:
                self._restart_if_crashed(worker)

    def _kill_hung(self) -> None:
        """One that hangs is started again like one that crashed."""
        living = [w.child for w in self._workers if w.child is not None and w.child.exit_code() is None]
        hung = self.hung.find([child.pid for child in living], time.monotonic())
        for child in living:
            if child.pid in hung:
                self._tell(f"{child.name} (pid {child.pid}) does nothing and does not come back; it is killed")
                child.kill()
                child.wait(5.0)

    def _restart_if_crashed(self, worker: _Worker) -> None:
        now = time.monotonic()
        if worker.restart_at is not None:
            if now >= worker.restart_at:
                worker.restart_at = None
                worker.child = self._spawn(worker.command)
                self._tell(f"{worker.command.name} started again (pid {worker.child.pid})")
            return
        child = worker.child
        if child is None or (code := child.exit_code()) is None:
            return
        if code == 0:  # an operator let it go
            worker.child = None
            self._tell(f"{child.name} ended by itself; it is not started again")
            return
        delay = worker.restarts.delay_after(now - child.started_at)
        if delay is None:
            raise self._ended_early(child, note=f", crash {worker.restarts.num_quick_crashes} in a row; giving up")
        self._tell(f"{child.name} ended ({describe_exit(code)}); starting it again in {delay:g} s")
        worker.restart_at = now + delay

    def _stop_children(self, *, drain: bool) -> None:
        workers = [worker.child for worker in self._workers if worker.child is not None]
        scheduler = [self._scheduler] if self._scheduler is not None else []
        if drain:
            self._end(scheduler, self._drain_seconds)
            self._end(workers, self._stop_seconds)
        else:
            self._end([*scheduler, *workers], self._stop_seconds)

    def _end(self, children: Sequence[Child], seconds: float) -> None:
        """SIGTERM, wait, SIGKILL."""
        for child in children:
            child.terminate()
        deadline = time.monotonic() + seconds
        for child in children:
            while not child.wait(_POLL_SECONDS) and not self._hurry.is_set() and time.monotonic() < deadline:
                pass
        for child in children:
            child.kill()
            child.wait(5.0)

    def _remove_directory(self) -> None:
        if self._private_directory is not None:
            shutil.rmtree(self._private_directory, ignore_errors=True)

    def _tell(self, text: str) -> None:
        if self._on_event is not None:
            self._on_event(text)

    def _ended_early(self, child: Child, note: str = "") -> StackError:
        """The error for a child that ended; with its last lines, unless somebody has seen them already."""
        code = child.exit_code()
        lines = child.last_lines() if self._on_line is None else []
        how = describe_exit(code) if code is not None else "no exit code"
        return StackError("\n".join([f"{child.name} ended ({how}{note})", *lines]), exit_code=code)

    def _tails(self) -> str:
        children = [self._scheduler, *(worker.child for worker in self._workers)]
        return "\n".join(f"{c.name}: {line}" for c in children if c is not None for line in c.last_lines(4))


def private_stack(
    model: str | Path,
    *,
    scheduler_arguments: Sequence[str] = (),
    worker_arguments: Sequence[str] = (),
    num_workers: int = 1,
    num_ranks: int = 1,
    start_seconds: float = 300.0,
    on_line: Callable[[str, str], None] | None = None,
    on_event: Callable[[str], None] | None = None,
) -> LocalStack:
    """A stack for this process alone: free loopback ports, a private directory. Not started yet.

    Raises: StackError if the services are not installed.
    """
    check_installed("scheduler", "worker")
    directory = Path(tempfile.mkdtemp(prefix="pagewire-"))
    port, internal_port, metrics_port = free_ports(3)
    endpoint = f"ipc://{directory}/worker.sock"
    ports = ["--port", str(port), "--internal-port", str(internal_port), "--metrics-port", str(metrics_port)]
    places = ["--worker-endpoint", endpoint, "--state-dir", str(directory)]
    return LocalStack(
        scheduler=scheduler_command(["--host", "127.0.0.1", *ports, *places, *RESTART_PATIENCE, *scheduler_arguments]),
        workers=worker_commands(str(model), ["--scheduler", endpoint, *worker_arguments], num_workers, num_ranks),
        target=f"127.0.0.1:{port}",
        internal_target=f"127.0.0.1:{internal_port}",
        private_directory=directory,
        start_seconds=start_seconds,
        on_line=on_line,
        on_event=on_event,
    )


def scheduler_command(arguments: Sequence[str]) -> Command:
    """The scheduler with these arguments."""
    return Command(name="scheduler", arguments=(sys.executable, "-m", "scheduler_svc", *arguments))


# A launcher starts a crashed worker again, which takes some 5 to 20 s: its requests wait for it instead of failing.
RESTART_PATIENCE = ("--worker-lost-seconds", "60")


def worker_commands(model: str, arguments: Sequence[str], num_workers: int, num_ranks: int = 1) -> list[Command]:
    """Workers of one model. Several on a machine with GPUs take one a rank each, in turn."""
    gpus = visible_gpus()
    commands = []
    for i in range(num_workers):
        own = [gpus[(i * num_ranks + rank) % len(gpus)] for rank in range(num_ranks) if gpus]
        environment = {"CUDA_VISIBLE_DEVICES": ",".join(dict.fromkeys(own))} if own and num_workers > 1 else {}
        name = "worker" if num_workers == 1 else f"worker {i}"
        program = (sys.executable, "-m", "gpu_worker", model, *arguments)
        commands.append(Command(name=name, arguments=program, environment=environment))
    return commands


def free_ports(count: int) -> list[int]:
    """Loopback ports nobody listens on now."""
    with contextlib.ExitStack() as cleanup:
        sockets = [cleanup.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


def _accepts(target: str) -> bool:
    """Whether something listens. Asked before gRPC is, whose reconnects back off for seconds."""
    host, _, port = target.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=1.0):
            return True
    except OSError:
        return False


def _serving(client: Client) -> bool:
    try:
        return client.health(timeout=2.0) is HealthStatus.SERVING
    except ServerError:
        return False
