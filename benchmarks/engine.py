"""What every engine offers to the benchmarks, and what their processes have in common."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from benchmarks.measure import Outcome, descendants
from benchmarks.workloads import Workload

ROOT = Path(__file__).resolve().parent.parent


class Engine(Protocol):
    """An engine that runs whole workloads. It starts at the first ``run`` it needs a process for."""

    name: str
    dtype: str
    model: str

    @property
    def version(self) -> str:
        """Its version; known once something has run."""

    @property
    def settings(self) -> str:
        """Settings a reader of the figures must know."""

    def roots(self) -> Sequence[int]:
        """Its processes whose parent is this one."""

    def run(self, workload: Workload) -> Outcome:
        """Runs ``workload`` once.

        Raises:
            EngineError: it cannot, or it failed.
        """

    def pause(self) -> None:
        """Keeps its processes from using the machine while another engine runs."""

    def resume(self) -> None:
        """Undoes ``pause``."""

    def stop(self) -> None:
        """Ends its processes."""


class EngineError(Exception):
    """An engine cannot start or cannot run a workload; the text says why."""


def signal_tree(roots: Sequence[int], number: int) -> None:
    """Sends a signal to processes and all their descendants."""
    for pid in descendants(roots):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def end(process: "subprocess.Popen[str]", patience_s: float = 20.0) -> None:
    """Ends a process group's leader by SIGTERM, and whatever of its descendants is left after ``patience_s``."""
    family = descendants([process.pid])
    signal_tree([process.pid], signal.SIGCONT)
    if process.stdin is not None:
        process.stdin.close()
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience_s)
    deadline = time.monotonic() + 5
    while any(map(_alive, family)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in filter(_alive, family):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def last_lines(log: Path, count: int = 25) -> str:
    """The end of a log, for an error's text."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-count:])
    except OSError:
        return ""


def say(text: str) -> None:
    """Progress, on stderr so that stdout stays a result."""
    print(text, file=sys.stderr, flush=True)
