"""`pagewire top` in front of the whole product, and how it reads distributions."""

import contextlib
import io
import os
import pty
import signal
import subprocess
import sys
from collections import deque

import pytest
from pagewire_client import AdminClient
from pagewire_client.cli.app import app
from pagewire_client.cli.top import frame, look, quantile
from pagewire_client.results import Distribution
from rich.console import Console
from support.scripted_rows import Limits
from support.scripted_stack import ScriptedStack, first_ids
from typer.testing import CliRunner

WITH_SIGINT = (
    "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "runpy.run_module('pagewire_client.cli', run_name='__main__')"
)
"""The command line; who runs tests in the background has them ignore the signal, which children inherit."""


def test_one_frame_tells_requests_rates_latencies_pages_and_workers() -> None:
    with ScriptedStack() as stack, stack.worker(Limits(), step_seconds=0.02, device="cuda:0 Imaginary"):
        running = [stack.client.stream([place, 1], max_tokens=400, token_ids=True) for place in range(3)]
        for stream in running:
            first_ids(stream)
        words = ["top", "--once", "--interval", "0.3", "--target", stack.scheduler.internal_target]
        result = CliRunner().invoke(app, words, env={"COLUMNS": "100"})
        with AdminClient(stack.scheduler.internal_target) as client:
            before = now = look(client)
            while now.load.num_output_tokens == before.load.num_output_tokens:
                first_ids(running[0])  # ends with an error if nothing more comes
                now = look(client)
        for stream in running:
            stream.cancel()
    assert result.exit_code == 0, result.output
    for told in ("3 running  0 waiting", "p50", "cuda:0 Imaginary", "worker-1", "% of 64"):
        assert told in result.output
    console = Console(width=100, file=io.StringIO())
    console.print(frame("host:1", before, now, deque([1.0, 5.0, 2.0])))
    assert "▂█▃" in console.file.getvalue()


def test_ctrl_c_is_its_end() -> None:
    """In a terminal of its own, by the program itself; it has begun when it has drawn a frame."""
    with ScriptedStack() as stack:
        words = [sys.executable, "-c", WITH_SIGINT, "top", "--target", stack.scheduler.internal_target]
        ours, theirs = pty.openpty()
        with subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as process:
            os.close(theirs)
            shown = b""
            while b"pagewire top" not in shown:
                shown += os.read(ours, 65536)
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(OSError):  # the terminal is gone when its program is
                while chunk := os.read(ours, 65536):
                    shown += chunk
            os.close(ours)
            assert process.wait(timeout=10) == 0
    assert b"Traceback" not in shown


def test_without_a_terminal_or_a_worker_it_says_so() -> None:
    with ScriptedStack() as stack:
        words = ["top", "--target", stack.scheduler.internal_target]
        assert CliRunner().invoke(app, words).exit_code == 2
        result = CliRunner().invoke(app, [*words, "--once", "--interval", "0.2"])
        assert "no worker has joined" in result.output


@pytest.mark.parametrize(("share", "value"), [(0.5, 1.5), (1.0, 4.0), (0.25, 1.0)])
def test_quantiles_lie_inside_their_part(share: float, value: float) -> None:
    before = Distribution(bounds=(1.0, 2.0, 4.0), counts=(5, 0, 0, 1), sum=0.0)
    now = Distribution(bounds=(1.0, 2.0, 4.0), counts=(7, 4, 2, 1), sum=0.0)
    assert quantile(before, now, share) == pytest.approx(value)
    assert quantile(now, now, share) is None
