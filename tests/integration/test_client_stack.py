"""The local stack with fake services: readiness, failures, restarts, the order of the stop, no orphans."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pagewire_client import HealthStatus, StackError
from pagewire_client.child import Child, Command, describe_exit
from pagewire_client.hung_workers import HungWorkers
from pagewire_client.restarts import Restarts
from pagewire_client.stack import LocalStack, free_ports
from support.conditions import wait_until

SERVICE = Path(__file__).parents[1] / "support" / "fake_service.py"


def command(name: str, *arguments: object) -> Command:
    return Command(name=name, arguments=(sys.executable, str(SERVICE), *(str(argument) for argument in arguments)))


class Place:
    """A stack of fakes in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.log = directory / "log"
        self.log.touch()
        self.crashes = directory / "crashes"
        self.crashes.touch()
        self.private = directory / "private"
        self.private.mkdir()
        self.events: list[str] = []
        self.lines: list[tuple[str, str]] = []
        (self.port,) = free_ports(1)

    def stack(self, *, scheduler: Command | None = None, worker: Command | None = None, **more: Any) -> LocalStack:
        parts: dict[str, Any] = {
            "scheduler": scheduler or command("scheduler", "scheduler", self.port, self.log),
            "workers": [worker or command("worker", "worker", self.log, self.crashes, 7)],
            "target": f"127.0.0.1:{self.port}",
            "internal_target": f"127.0.0.1:{self.port}",
            "private_directory": self.private,
            "make_restarts": lambda: Restarts(first_backoff_seconds=0.01),
            "on_line": lambda name, line: self.lines.append((name, line)),
            "on_event": self.events.append,
        }
        return LocalStack(**{**parts, **more})

    def noted(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_ready_then_stopped_in_order(place: Place) -> None:
    with place.stack() as stack:
        wait_until(lambda: "worker started" in place.noted(), "the worker started")
        with stack.client() as client:
            assert client.health() is HealthStatus.SERVING
        pids = stack.pids()
        assert sorted(pids) == ["scheduler", "worker"]
        assert not stack.wait(0.01)
    assert place.noted()[-2:] == ["scheduler stopped", "worker stopped"]
    assert stack.exit_codes() == {"scheduler": 0, "worker": 0}
    assert not any(psutil.pid_exists(pid) for pid in pids.values())
    assert not place.private.exists()
    assert ("scheduler", "scheduler listening") in place.lines
    stack.stop()


def test_a_child_that_ends_fails_the_start_at_once(place: Place) -> None:
    began = time.monotonic()
    worker = command("worker", "fail", 2, "error: --dtype int3: must be auto or float32")
    stack = place.stack(worker=worker, on_line=None)
    with pytest.raises(StackError) as caught:
        stack.start()
    assert time.monotonic() - began < 10
    assert caught.value.exit_code == 2
    assert "worker ended (exit code 2)" in str(caught.value)
    assert "--dtype int3" in str(caught.value)
    assert not place.private.exists()


def test_lines_already_shown_are_not_repeated(place: Place) -> None:
    with pytest.raises(StackError) as caught:
        place.stack(worker=command("worker", "fail", 1, "once")).start()
    assert str(caught.value) == "worker ended (exit code 1)"
    wait_until(lambda: ("worker", "once") in place.lines, "it was told")


def interrupt_when(condition: Callable[[], bool]) -> threading.Thread:
    """Sends this process a Ctrl-C, as a terminal would, once a condition holds."""

    def watch() -> None:
        wait_until(condition, "it is time for Ctrl-C")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """Ctrl-C raises, also where whoever started the tests made it ignored (a background job of a script)."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
def test_an_interrupted_start_leaves_nothing(place: Place) -> None:
    never_ready = command("scheduler", "worker", place.log, place.crashes, 0)
    stack = place.stack(scheduler=never_ready)
    watcher = interrupt_when(lambda: place.noted().count("worker started") == 2)
    with pytest.raises(KeyboardInterrupt):
        stack.start()
    watcher.join()
    assert stack.exit_codes() == {"scheduler": 0, "worker": 0}
    assert not place.private.exists()


@pytest.mark.usefixtures("_interruptible")
def test_an_interrupted_stop_kills(place: Place) -> None:
    stack = place.stack(worker=command("worker", "deaf", place.log), stop_seconds=60.0)
    stack.start()
    wait_until(lambda: "deaf started" in place.noted(), "the deaf one started")
    watcher = interrupt_when(lambda: "scheduler" in stack.exit_codes())
    with pytest.raises(KeyboardInterrupt):
        stack.stop()
    watcher.join()
    assert stack.exit_codes() == {"scheduler": 0, "worker": -signal.SIGKILL}


def test_a_start_that_takes_too_long_fails(place: Place) -> None:
    scheduler = command("scheduler", "worker", place.log, place.crashes, 0)
    with pytest.raises(StackError, match="not ready after"):
        place.stack(scheduler=scheduler, start_seconds=0.5).start()


def test_a_program_that_is_not_there_fails_the_start(place: Place) -> None:
    missing = Command(name="worker", arguments=("/nonexistent/program",))
    with pytest.raises(StackError, match="worker ended"):
        place.stack(worker=missing).start()


def test_a_killed_worker_is_started_again(place: Place) -> None:
    with place.stack() as stack:
        wait_until(lambda: "worker started" in place.noted(), "the worker started")
        first = stack.pids()["worker"]
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: stack.pids().get("worker", first) != first, "another worker")
        wait_until(lambda: place.noted().count("worker started") == 2, "it started")
    assert place.events[0].startswith("worker ended (signal SIGKILL); starting it again in 0 s")
    assert stack.exit_codes()["worker"] == 0


def test_a_worker_that_crashes_again_and_again_ends_the_stack(place: Place) -> None:
    with place.stack() as stack:
        wait_until(lambda: "worker started" in place.noted(), "the worker started")
        place.crashes.write_text("1\n2\n3\n4\n5\n6\n")
        os.kill(stack.pids()["worker"], signal.SIGKILL)
        with pytest.raises(StackError, match=r"exit code 7, crash 5 in a row; giving up"):
            stack.wait(30)
    assert place.noted().count("worker started") == 5
    assert place.noted()[-1] == "scheduler stopped"


def test_a_lost_scheduler_ends_the_stack(place: Place) -> None:
    with place.stack() as stack:
        wait_until(lambda: "worker started" in place.noted(), "the worker started")
        os.kill(stack.pids()["scheduler"], signal.SIGKILL)
        with pytest.raises(StackError, match="scheduler ended"):
            stack.wait(30)
    assert place.noted()[-1] == "worker stopped"


def test_a_scheduler_that_was_drained_ends_the_stack_well(place: Place) -> None:
    with place.stack() as stack:
        wait_until(lambda: "worker started" in place.noted(), "the worker started")
        os.kill(stack.pids()["scheduler"], signal.SIGTERM)
        assert stack.wait(30)
    assert place.noted()[-1] == "worker stopped"


def test_a_child_that_does_not_stop_is_killed(place: Place) -> None:
    stack = place.stack(worker=command("worker", "deaf", place.log), stop_seconds=0.3)
    stack.start()
    wait_until(lambda: "deaf started" in place.noted(), "the deaf one started")
    pid = stack.pids()["worker"]
    stack.stop()
    assert not psutil.pid_exists(pid)
    assert stack.exit_codes()["worker"] == -signal.SIGKILL


def test_a_stack_that_was_never_started_can_be_stopped(place: Place) -> None:
    place.stack().stop()
    assert not place.private.exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs prctl, which only Linux has")
def test_children_die_with_their_parent(place: Place) -> None:
    program = f"""
        import sys
        from pagewire_client.child import Child, Command
        arguments = (sys.executable, {str(SERVICE)!r}, "deaf", {str(place.log)!r})
        print(Child(Command(name="deaf", arguments=arguments)).pid, flush=True)
        sys.stdin.read()
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        wait_until(lambda: "deaf started" in place.noted(), "the deaf one started")
        assert psutil.pid_exists(pid)
        parent.kill()
        wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, "gone")


def test_a_child_tells_its_last_lines() -> None:
    child = Child(command("child", "fail", 3, "one\ntwo\nthree"))
    assert child.wait(15)
    assert child.exit_code() == 3
    assert child.last_lines(2) == ["two", "three"]


def test_exits_in_words() -> None:
    assert describe_exit(2) == "exit code 2"
    assert describe_exit(-9) == "signal SIGKILL"
    assert describe_exit(-200) == "signal 200"


def test_a_worker_that_hangs_is_killed_and_started_again(place: Place) -> None:
    """It is stopped, the scheduler names it no more, and it does not come back."""
    named: set[int] = set()
    with place.stack(hung=HungWorkers(lambda: named, patience_seconds=0.0, ask_seconds=0.0)) as stack:
        first = stack.pids()["worker"]
        os.kill(first, signal.SIGSTOP)
        named.add(first)
        wait_until(lambda: first in stack.hung.joined, "it has joined")
        named.clear()
        wait_until(lambda: stack.pids().get("worker", first) != first, "another worker")
    assert place.events[0] == f"worker (pid {first}) does nothing and does not come back; it is killed"
    assert "SIGKILL" in place.events[1]


def test_who_hangs_is_told_by_who_joined_and_is_gone() -> None:
    answers: list[set[int] | None] = [{1}, {1, 2}, {2}, {2}, None, {2}, {2}, {2, 3}]
    hung = HungWorkers(lambda: answers.pop(0), patience_seconds=10.0)
    found = [hung.find([1, 2, 3], 6.0 * number) for number in range(8)]
    assert found == [[], [], [], [], [], [], [], [1]]
    assert hung.find([1, 2, 3], 43.0) == []


def test_restarts_back_off_and_end() -> None:
    restarts = Restarts()
    assert [restarts.delay_after(1.0) for _ in range(5)] == [0.0, 0.5, 1.0, 2.0, None]
    restarts = Restarts()
    restarts.delay_after(1.0)
    restarts.delay_after(1.0)
    assert restarts.delay_after(31.0) == 0.0
    assert restarts.delay_after(1.0) == 0.0
