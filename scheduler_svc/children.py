"""The front processes: started, awaited, started again after a crash, stopped.

What keeps a front from its first start ends the scheduler; later it counts as a crash, for the other fronts serve on.
A front dies with this process whatever ends it: the kernel kills it. It is in a session of its own, so that a
terminal's Ctrl-C reaches this process alone, which stops the fronts when their requests have ended.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import structlog

from scheduler_svc.child_lines import ChildLines

_QUICK_SECONDS = 10.0
_MAX_QUICK_CRASHES = 5
_FIRST_PAUSE_SECONDS = 0.2
_MAX_READY_BYTES = 4096
# prctl(PR_SET_PDEATHSIG, SIGKILL), then the program. A parent that died before the call shows by its changed id.
_DIE_WITH_PARENT = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class FrontFailed(Exception):  # noqa: N818 - what happened
    """A front cannot be started; the message is one line for the operator."""


@dataclass(slots=True)
class _Front:
    number: int
    process: "subprocess.Popen[bytes]"
    started_at: float
    ready_fd: int | None
    lines: ChildLines | None = None
    """What it writes to stderr, if that does not go where ours goes."""
    said: bytes = b""
    num_quick_crashes: int = 0


class Fronts:
    """``command`` gives the arguments of front ``number`` behind the interpreter; it gets ``--ready-fd`` added.

    ``watch`` and ``unwatch`` have a descriptor looked after by the loop. All methods are called from the loop's thread.
    """

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        *,
        watch: Callable[[int, Callable[[], None]], None],
        unwatch: Callable[[int], None],
        on_ready: Callable[[], None],
        reads_lines: bool = False,
    ) -> None:
        """``reads_lines``: what fronts write to stderr passes through here (child_lines)."""
        self._commands = commands
        self._reads_lines = reads_lines
        self._watch = watch
        self._unwatch = unwatch
        self._on_ready = on_ready
        self._fronts: dict[int, _Front] = {}
        self._due: dict[int, tuple[float, int]] = {}
        """Fronts to start again: when, and after how many quick crashes."""
        self._ready: set[int] = set()
        self._stopping = False
        self._log = structlog.get_logger()

    @property
    def pids(self) -> list[int]:
        return [front.process.pid for front in self._fronts.values()]

    @property
    def num_alive(self) -> int:
        return len(self._fronts)

    def start(self, now: float) -> None:
        """Raises: FrontFailed."""
        for number in range(len(self._commands)):
            self._start(number, now)

    def check(self, now: float, hung: Collection[int] = ()) -> None:
        """Looks for fronts that ended, starts those again whose pause is over, ends those whose process is ``hung``.

        Raises: FrontFailed: one ended before it was ever ready, or crashes again and again.
        """
        for front in list(self._fronts.values()):
            code = front.process.poll()
            if code is not None:
                self._ended(front, code, now)
            elif front.process.pid in hung:
                self._log.error("front_hangs", front=front.number, pid=front.process.pid)
                front.process.kill()
        for number, (at, num_quick_crashes) in list(self._due.items()):
            if now >= at and not self._stopping:
                del self._due[number]
                self._start(number, now, num_quick_crashes)

    def terminate(self) -> None:
        """Asks all to end; none is started again."""
        self._stopping = True
        for front in self._fronts.values():
            front.process.terminate()

    def hurry(self) -> None:
        """Has those that were asked to end do so at once."""
        if self._stopping:
            self.terminate()

    def kill(self) -> None:
        """Ends those that are left, at once."""
        self._stopping = True
        for front in list(self._fronts.values()):
            front.process.kill()
            front.process.wait()
            self._forget(front)

    def _start(self, number: int, now: float, num_quick_crashes: int = 0) -> None:
        try:
            front = self._spawn(number, now)
        except OSError as error:  # no descriptor, process or memory is left
            self._failed(number, f"cannot be started: {error.strerror}")
            self._start_later(number, num_quick_crashes + 1, now)
            return
        self._fronts[number] = front
        front.num_quick_crashes = num_quick_crashes
        if front.process.stderr is not None:
            front.lines = ChildLines(front.process.stderr.fileno(), number)
            self._watch(front.lines.descriptor, lambda: self._read_lines(front))

    def _spawn(self, number: int, now: float) -> _Front:
        """Raises: OSError."""
        read_end, write_end = os.pipe()
        program = [sys.executable, *self._commands[number], "--ready-fd", str(write_end)]
        tied = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *program]
        try:
            process = subprocess.Popen(
                tied,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE if self._reads_lines else None,
                pass_fds=[write_end],
                start_new_session=True,
            )
        except OSError:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        front = _Front(number=number, process=process, started_at=now, ready_fd=read_end)
        self._watch(read_end, lambda: self._read_ready(front))
        return front

    def _read_lines(self, front: _Front) -> None:
        if front.lines is not None and not front.lines.read():
            self._close_lines(front)

    def _close_lines(self, front: _Front) -> None:
        if front.lines is not None and front.process.stderr is not None:
            self._unwatch(front.lines.descriptor)
            front.lines = None
            front.process.stderr.close()

    def _read_ready(self, front: _Front) -> None:
        """One line: ready, or why not. The end of the pipe without a line is told by the process's end."""
        if front.ready_fd is None:
            return
        content = os.read(front.ready_fd, _MAX_READY_BYTES)
        front.said += content
        if content and b"\n" not in front.said:
            return
        self._close_ready(front)
        if front.said.strip() == b"ready":
            self._log.info("front_ready", front=front.number, pid=front.process.pid)
            if front.number not in self._ready:
                self._ready.add(front.number)
                if len(self._ready) == len(self._commands):
                    self._on_ready()
        elif front.said:
            self._failed(front.number, front.said.decode(errors="replace").strip().removeprefix("error:").strip())

    def _ended(self, front: _Front, code: int, now: float) -> None:
        if front.ready_fd is not None and not self._stopping:
            self._read_ready(front)
        self._forget(front)
        if self._stopping:
            return
        self._log.error("front_ended", front=front.number, pid=front.process.pid, code=code)
        if front.number not in self._ready:
            raise FrontFailed(f"front {front.number} ended with code {code} before it was ready")
        quick = front.num_quick_crashes + 1 if now - front.started_at < _QUICK_SECONDS else 1
        self._start_later(front.number, quick, now)

    def _failed(self, number: int, reason: str) -> None:
        """Raises: FrontFailed if the front never was ready."""
        if number not in self._ready:
            raise FrontFailed(reason)
        self._log.error("front_failed", front=number, reason=reason)

    def _start_later(self, number: int, num_quick_crashes: int, now: float) -> None:
        """Raises: FrontFailed."""
        if num_quick_crashes > _MAX_QUICK_CRASHES:
            raise FrontFailed(f"front {number} crashed {num_quick_crashes} times in a row")
        self._due[number] = (now + _FIRST_PAUSE_SECONDS * 2 ** (num_quick_crashes - 1), num_quick_crashes)

    def _forget(self, front: _Front) -> None:
        self._close_ready(front)
        self._read_lines(front)
        self._close_lines(front)
        self._fronts.pop(front.number, None)

    def _close_ready(self, front: _Front) -> None:
        if front.ready_fd is not None:
            self._unwatch(front.ready_fd)
            os.close(front.ready_fd)
            front.ready_fd = None
