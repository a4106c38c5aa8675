"""The scheduler's compiled code, made if it is not there, for processes that tests start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_COMPILE_SECONDS = 600


def compile_or_skip() -> None:
    """Skips the test where nothing can be compiled."""
    done = run("-m", "scheduler_svc.compilation", timeout=_COMPILE_SECONDS)
    assert done.returncode == 0, done.stderr
    if "runs from its source" in done.stdout:
        pytest.skip(done.stdout.strip())


def run(*arguments: str, timeout: float = 100, **environment: str) -> "subprocess.CompletedProcess[str]":
    """A Python that imports what this one does, and runs the code it finds."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
