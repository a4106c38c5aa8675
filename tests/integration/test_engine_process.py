"""The scheduler as a process with its front: start, stop, crash and what others see of it."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pagewire.internal.v1 import front_pb2
from support.conditions import wait_until
from support.raw_front import RawFront
from support.scheduler_process import SchedulerProcess
from support.scripted_worker import ScriptedWorker, expected

from scheduler_svc import run_dir

PROMPT = list(range(20))


@pytest.fixture
def scheduler() -> Iterator[SchedulerProcess]:
    with SchedulerProcess("--drain-seconds", "20") as running:
        yield running


def raw_front(scheduler: SchedulerProcess) -> RawFront:
    """A second front beside the real one."""
    return RawFront(f"ipc://{scheduler.directory}/front-{scheduler.port}.sock")


def test_drain_then_stop(scheduler: SchedulerProcess) -> None:
    assert scheduler.directory is not None
    sockets = list(scheduler.directory.glob("*.sock"))
    assert len(sockets) == 2
    assert [path for path in sockets if path.stat().st_mode & 0o077] == []
    with raw_front(scheduler) as front, ScriptedWorker(scheduler.worker_endpoint, steps_before_hold=3) as worker:
        front.wait_ready()
        key = front.submit(PROMPT, max_tokens=20)
        front.wait_tokens(key, 1)
        scheduler.process.terminate()
        front.wait(lambda: front.service.draining, "the drain is told")
        late = front.submit(PROMPT)
        front.wait_over(late)
        worker.options.steps_before_hold = None
        front.wait_over(key)
        assert front.requests[key].output() == expected(PROMPT, 20)
        assert front.requests[late].rejected.reason == "DRAINING"
        assert scheduler.process.wait(15) == 0
        assert worker.rows.violations == []
    assert list(scheduler.directory.glob("*.sock")) == []
    assert scheduler.events("stopped")
    assert scheduler.events("core_failed") == []


def test_a_second_signal_ends_what_runs(scheduler: SchedulerProcess) -> None:
    with raw_front(scheduler) as front, ScriptedWorker(scheduler.worker_endpoint, steps_before_hold=3):
        front.wait_ready()
        key = front.submit(PROMPT, max_tokens=20)
        front.wait_tokens(key, 1)
        scheduler.process.send_signal(signal.SIGINT)
        front.wait(lambda: front.service.draining, "the drain is told")
        scheduler.process.send_signal(signal.SIGINT)
        front.wait_over(key, seconds=5)
        assert front.requests[key].ended.reason == front_pb2.END_REASON_SHUTDOWN
        assert scheduler.process.wait(15) == 0


def test_a_crashed_front_is_started_again_and_all_die_with_the_scheduler(scheduler: SchedulerProcess) -> None:
    first = scheduler.wait_event("front_ready")
    os.kill(first["pid"], signal.SIGKILL)
    second = scheduler.wait_event("front_ready", count=2)
    assert second["pid"] != first["pid"]
    assert len(scheduler.events("listening")) == 1
    with socket.create_connection(("127.0.0.1", scheduler.port), timeout=5):
        pass
    scheduler.process.kill()
    scheduler.process.wait(5)
    wait_until(lambda: not psutil.pid_exists(second["pid"]), "the front is gone", 5)
    # What the killed scheduler left is replaced.
    scheduler.start()
    scheduler.wait_event("listening", count=2)
    with raw_front(scheduler) as front, ScriptedWorker(scheduler.worker_endpoint):
        front.wait_ready()
        key = front.submit(PROMPT, max_tokens=5)
        front.wait_over(key)
        assert front.requests[key].output() == expected(PROMPT, 5)
    _refuses_a_twin(scheduler)


def _refuses_a_twin(scheduler: SchedulerProcess) -> None:
    """A second scheduler of the same port and directory stops with one line, and the first goes on."""
    twin = SchedulerProcess(directory=scheduler.directory, port=scheduler.port)
    twin.log_path = twin.log_path.with_suffix(".twin")
    assert twin.run_to_end() == 2
    lines = twin.log_path.read_text().splitlines()
    assert len(lines) == 1
    assert f"worker-{scheduler.port}.sock" in lines[0]
    assert scheduler.process.poll() is None
    assert scheduler.stop() == 0


def test_a_port_in_use_is_one_line_and_code_2() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        scheduler = SchedulerProcess(port=port)
        try:
            assert scheduler.run_to_end() == 2
            told = [line for line in scheduler.log_path.read_text().splitlines() if not line.startswith("{")]
            assert len(told) == 1
            assert str(port) in told[0]
        finally:
            scheduler.close()


def test_a_run_directory_with_a_long_name_works(tmp_path: Path) -> None:
    directory = tmp_path / ("x" * 120)
    directory.mkdir(mode=0o700)
    with SchedulerProcess(directory=directory) as scheduler:
        worker_endpoint = run_dir.shortened(scheduler.worker_endpoint)
        assert worker_endpoint != scheduler.worker_endpoint
        assert scheduler.events("listening")[0]["worker_endpoint"] == worker_endpoint
        with ScriptedWorker(worker_endpoint) as worker:
            wait_until(lambda: worker.is_joined, "joined")
        assert scheduler.stop() == 0
    assert not Path(worker_endpoint.removeprefix("ipc://")).exists()


def test_a_stopped_scheduler_does_not_blame_its_worker(scheduler: SchedulerProcess) -> None:
    with raw_front(scheduler) as front, ScriptedWorker(scheduler.worker_endpoint, step_seconds=0.02) as worker:
        front.wait_ready()
        key = front.submit(PROMPT, max_tokens=60)
        front.wait_tokens(key, 2)
        worker.options.silence_seconds = 60.0
        scheduler.process.send_signal(signal.SIGSTOP)
        until = time.monotonic() + 4
        wait_until(lambda: time.monotonic() > until, "longer than a worker may be silent")
        scheduler.process.send_signal(signal.SIGCONT)
        front.wait_over(key)
        assert front.requests[key].output() == expected(PROMPT, 60)
        assert worker.num_joins == 1
