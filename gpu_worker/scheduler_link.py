"""The worker's link to the scheduler: a socket, and a thread that keeps it alive.

The thread reads plans ahead while a step runs, sends results as they are put in its queue, and beats on its own clock,
so that a long step never looks like a dead worker. Others append to a queue and wake it through an event descriptor.

Of an attended link all of this is done by whoever calls ``attend``, often enough to need no waking, which saves the way
from thread to thread; the link's own thread then only beats, should the other one be busy for long.
"""

import collections
import os
import queue
import secrets
import threading

import structlog

from gpu_worker import codec
from gpu_worker.batch_plan import StepResult
from gpu_worker.curve import CurveKeys
from gpu_worker.link_events import LinkEvent, Stop
from gpu_worker.link_rounds import LONGEST_WAIT, Close, Greet, Rounds
from gpu_worker.published_pages import Inventory
from gpu_worker.worker_card import WorkerCard


class SchedulerLink:
    """Events come out of ``events`` in the order they happened; all methods may be called from any thread."""

    def __init__(
        self,
        endpoint: str,
        card: WorkerCard,
        events: "queue.SimpleQueue[LinkEvent]",
        keys: CurveKeys | None = None,
        *,
        is_attended: bool = False,
    ) -> None:
        """``is_attended``: somebody calls ``attend`` all the time."""
        self._endpoint = endpoint
        self._keys = keys
        self._card = card
        self._events = events
        self._outgoing: collections.deque[Greet | Close | StepResult] = collections.deque()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_attended = is_attended
        self._closing = threading.Event()
        self._rounds: Rounds | None = None
        self._thread = threading.Thread(target=self._run, name="scheduler-link", daemon=True)

    def start(self) -> None:
        """Connect; nothing is said before ``greet``."""
        self._rounds = Rounds(self._endpoint, self._keys, self._outgoing, self._wake_fd, self._events.put)
        self._thread.start()

    def attend(self, seconds: float) -> None:
        """Receive and send what there is; wait so long for it, or until a beat is due or ``wake`` is called."""
        if self._rounds is not None:
            self._rounds.wait(seconds)
            self._rounds.run_one()

    def wake(self) -> None:
        """Have ``attend`` return soon."""
        os.eventfd_write(self._wake_fd, 1)

    def greet(self, inventory: Inventory) -> int:
        """Begin a new epoch; returns it."""
        epoch = secrets.randbits(63) + 1
        self._put(Greet(hello=codec.encode_hello(epoch, self._card, inventory), epoch=epoch))
        return epoch

    def send(self, result: StepResult) -> None:
        """Send a result; one that refuses its plan ends the epoch. Never blocks.

        Of an attended link it goes out when somebody attends next.
        """
        self._outgoing.append(result)
        if not self._is_attended:
            self.wake()

    def close(self, reason: str) -> None:
        """Say goodbye and end the thread; what is queued goes out for at most half a second."""
        if not self._thread.is_alive():
            return
        self._put(Close(reason=reason))
        self._closing.set()
        self._thread.join(timeout=5)

    def _put(self, item: "Greet | Close | StepResult") -> None:
        self._outgoing.append(item)
        self.wake()

    def _run(self) -> None:
        rounds = self._rounds
        try:
            while rounds is not None and rounds.is_open:
                if self._is_attended:
                    self._closing.wait(rounds.seconds_to_beat)
                else:
                    rounds.wait(LONGEST_WAIT)
                rounds.run_one()
        except Exception as error:
            structlog.get_logger().exception("scheduler link failed")
            self._events.put(Stop(reason=f"the link's thread failed: {error}", failure=True))
