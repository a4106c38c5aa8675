"""Front processes that fail, hang or cannot be started; in their place stand programs of a line."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from structlog.testing import capture_logs
from support.conditions import wait_until

from scheduler_svc.children import FrontFailed, Fronts

PROGRAM = """\
import os, sys, time
said = open(sys.argv[1]).read()
os.write(int(sys.argv[-1]), said.encode())
sys.exit(2) if said.startswith("error") else time.sleep(60)
"""


class Watched:
    """Fronts with what a loop does for them; ``says`` is what the next one to start says."""

    def __init__(self, says: Path) -> None:
        self._says = says
        self._ready: dict[int, Callable[[], None]] = {}
        self.now = 0.0
        self.say("ready")
        self.fronts = Fronts(
            [["-c", PROGRAM, str(says)]],
            watch=self._ready.__setitem__,
            unwatch=lambda descriptor: self._ready.pop(descriptor, None) and None,
            on_ready=lambda: None,
        )

    def say(self, line: str) -> None:
        self._says.write_text(line + "\n")

    def turn(self, *hung: int) -> bool:
        """True, always."""
        self.now += 0.1
        for read in list(self._ready.values()):
            read()
        self.fronts.check(self.now, hung)
        return True

    def wait_ready(self) -> int:
        wait_until(self.is_ready, "a front is ready", 20)
        return self.fronts.pids[0]

    def is_ready(self) -> bool:
        if self.fronts.num_alive == 0:
            self.turn()
        elif self._ready:
            for read in list(self._ready.values()):
                read()
        return self.fronts.num_alive == 1 and not self._ready


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    found = Watched(tmp_path / "says")
    yield found
    found.fronts.kill()


def test_one_that_hangs_is_ended_and_another_started(watched: Watched) -> None:
    watched.fronts.start(watched.now)
    pid = watched.wait_ready()
    with capture_logs() as log:
        watched.turn(pid + 1, pid)
        wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, "it has ended")
        watched.turn()
        assert watched.wait_ready() != pid
    assert [entry["event"] for entry in log] == ["front_hangs", "front_ended", "front_ready"]


def test_what_fails_at_the_first_start_is_told_and_later_tried_again(watched: Watched) -> None:
    watched.say("error: no such file")
    watched.fronts.start(watched.now)
    with pytest.raises(FrontFailed, match=r"^no such file$"):
        watched.wait_ready()
    watched.fronts.kill()


def test_a_start_that_fails_later_is_a_crash(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    watched.fronts.start(watched.now)
    pid = watched.wait_ready()
    watched.say("error: no such file")
    psutil.Process(pid).kill()
    with capture_logs() as log:

        def reasons() -> list[str]:
            return [entry["reason"] for entry in log if entry["event"] == "front_failed"]

        wait_until(lambda: watched.turn() and reasons() == ["no such file"], "it fails")
        watched.say("ready")
        wait_until(lambda: watched.turn() and watched.fronts.num_alive == 0, "it has ended")

        def spawn(*arguments: object, **options: object) -> None:
            raise OSError(24, "Too many open files")

        with monkeypatch.context() as patched:
            patched.setattr(subprocess, "Popen", spawn)
            wait_until(lambda: watched.turn() and reasons()[1:], "it cannot be started")
        assert reasons()[1] == "cannot be started: Too many open files"
        watched.wait_ready()
    monkeypatch.setattr(subprocess, "Popen", spawn)
    psutil.Process(watched.fronts.pids[0]).kill()
    watched.now += 60  # so it did not end quickly
    with pytest.raises(FrontFailed, match="crashed 6 times in a row"):
        wait_until(lambda: not watched.turn(), "it gives up")
