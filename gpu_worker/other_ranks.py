"""The ranks of a worker beside rank 0: started by it, told every plan before it runs, ended with it.

For whoever starts a worker it is one process, rank 0. The others end when their link does, whatever ended rank 0. When
one of them ends, what is on its device is gone and collectives would wait for it for ever, so the whole worker ends: it
says goodbye to the scheduler, which has its requests computed anew by a worker that comes back or by another one.

Imports no torch: rank 0 starts the others before it loads it itself.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable

from gpu_worker.config import WorkerConfig
from gpu_worker.rank_link import RankLink

RESET = b""
_LOST_CODE, _UNFIT_CODE = 1, 2
_END_SECONDS = 5


class OtherRanks:
    """Ranks 1 and up. ``close`` ends them."""

    def __init__(self, config: WorkerConfig) -> None:
        self.meeting_fd = os.memfd_create("pagewire-ranks")
        """Where ``rank_group.ProcessGroup`` of all ranks meet."""
        self.say_goodbye: Callable[[str], None] = lambda reason: None
        """Called with the reason before this process ends because a rank did."""
        self._ending = threading.Lock()
        self._links: list[RankLink] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        for rank in range(1, config.tensor_parallel_size):
            self._start(rank, config)

    def tell(self, message: bytes) -> None:
        """Once a rank is gone nothing matters any more."""
        with contextlib.suppress(OSError):
            for link in self._links:
                link.send(message)

    def close(self) -> None:
        """Blocks for ever if the loss of a rank ends this process at the moment."""
        self._ending.acquire()
        for link in self._links:
            link.close()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            process.kill()
            process.wait()

    def _start(self, rank: int, config: WorkerConfig) -> None:
        ours, theirs = socket.socketpair()
        fds = (theirs.fileno(), self.meeting_fd)
        program = [sys.executable, "-m", "gpu_worker.rank", str(rank), *map(str, fds)]
        self._processes.append(subprocess.Popen(program, stdin=subprocess.DEVNULL, pass_fds=fds))
        theirs.close()
        link = RankLink(ours)
        self._links.append(link)
        link.send(config.model_dump_json().encode())
        threading.Thread(target=self._watch, args=(rank, link), name=f"rank-{rank}", daemon=True).start()

    def _watch(self, rank: int, link: RankLink) -> None:
        message = link.receive()
        if not self._ending.acquire(blocking=False):
            return
        reason = f"rank {rank} ended" if message is None else message.decode(errors="replace")
        print(f"pagewire worker: {reason}", file=sys.stderr, flush=True)
        self.say_goodbye(reason)
        for process in self._processes:
            process.send_signal(signal.SIGKILL)
        os._exit(_LOST_CODE if message is None else _UNFIT_CODE)
