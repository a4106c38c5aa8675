"""`pagewire serve` as users run it: restarts a crashed worker, dies with its scheduler, drains at SIGTERM."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pytest
from pagewire_client import Client, Delta, HealthStatus, ServerError, UnavailableError
from pagewire_client.stack import free_ports
from support.conditions import wait_until
from support.reference_outputs import Reference
from support.scripted_stack import first_ids
from support.stack import FLOAT32, MARK, START_SECONDS, accepts, kill_marked, marked_pids, new_mark


class Serve:
    """A running `pagewire serve`; leaving the block ends it and fails if a process is left."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.mark = new_mark()
        port, internal_port, metrics_port = free_ports(3)
        ports = ["--port", str(port), "--internal-port", str(internal_port), "--metrics-port", str(metrics_port)]
        command = [sys.executable, "-m", "pagewire_client.cli", "serve", str(model), *ports]
        self.target = f"127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [*command, "--state-dir", str(folder / "state"), "--worker-lost-seconds", "30", *FLOAT32],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, MARK: self.mark},
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.client = Client(self.target, internal_target=f"127.0.0.1:{internal_port}", timeout=60)

    def await_ready(self) -> None:
        """Waits for the table it prints when it serves."""
        wait_until(lambda: self._says("pagewire is ready"), "pagewire serve is ready", START_SECONDS)

    def pid_of(self, module: str) -> int:
        """The one process of this stack that runs a module."""
        found = [pid for pid in marked_pids(self.mark) if module in _arguments(pid)]
        assert len(found) == 1, (module, found)
        return found[0]

    def wait(self, seconds: float) -> int:
        """Its exit code."""
        return self.process.wait(seconds)

    def _says(self, text: str) -> bool:
        assert self.process.poll() is None, "\n".join(self.lines)
        return any(text in line for line in self.lines)

    def _read(self) -> None:
        if self.process.stdout is not None:
            with self.process.stdout as output:
                self.lines.extend(output)

    def __enter__(self) -> "Serve":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(20)
            wait_until(lambda: not marked_pids(self.mark), "all processes gone", 10)
        except BaseException as error:
            error.add_note("".join(self.lines)[-4000:])
            raise
        finally:
            kill_marked(self.mark)
            self._reader.join(5)
            if value is not None:
                value.add_note("".join(self.lines)[-4000:])


@pytest.fixture
def serve(gguf: Path, tmp_path: Path) -> Iterator[Serve]:
    with Serve(gguf, tmp_path) as running:
        running.await_ready()
        yield running


def test_a_killed_worker_is_restarted_and_its_stream_goes_on(serve: Serve, long_reference: list[Reference]) -> None:
    expected = long_reference[0]
    options = {"temperature": 0.0, "max_tokens": expected.case.max_tokens, "token_ids": True}
    with serve.client.stream(expected.case.text, **options) as stream:
        ids = list(first_ids(stream, 3))
        killed = serve.pid_of("gpu_worker")
        os.kill(killed, signal.SIGKILL)
        ids += [token for event in stream if isinstance(event, Delta) for token in event.token_ids]
    assert tuple(ids) == expected.output_ids
    assert serve.pid_of("gpu_worker") != killed
    assert serve.client.health() is HealthStatus.SERVING


def test_a_killed_scheduler_takes_everything_with_it(serve: Serve) -> None:
    with serve.client.stream("The sea", temperature=0.0, max_tokens=500, ignore_eos=True, token_ids=True) as stream:
        first_ids(stream, 1)
        os.kill(serve.pid_of("scheduler_svc "), signal.SIGKILL)
        with pytest.raises(ServerError):
            for _ in stream:
                pass
    assert serve.wait(20) == 1
    wait_until(lambda: not marked_pids(serve.mark), "all processes gone", 10)


def test_sigterm_lets_running_streams_end(serve: Serve, long_reference: list[Reference]) -> None:
    expected = long_reference[0]
    options = {"temperature": 0.0, "max_tokens": expected.case.max_tokens, "token_ids": True}
    with serve.client.stream(expected.case.text, **options) as stream:
        ids = list(first_ids(stream, 3))
        serve.process.terminate()
        wait_until(lambda: not serves(serve), "new requests are refused", 10)
        ids += [token for event in stream if isinstance(event, Delta) for token in event.token_ids]
    assert tuple(ids) == expected.output_ids
    assert serve.wait(30) == 0


def serves(serve: Serve) -> bool:
    """Whether a new request is taken."""
    if not accepts(serve.target):
        return False
    with Client(serve.target) as client, contextlib.suppress(UnavailableError):
        return client.health(timeout=5) is HealthStatus.SERVING
    return False


def _arguments(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""
