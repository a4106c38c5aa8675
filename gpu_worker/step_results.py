"""Results of launched steps on their way to the link, in the order of the steps.

The worker's loop sends them as steps end. A launch can keep it for as long as a step takes (it allocates memory, which
may wait for the device): then a thread sends them a little later, so that the scheduler plans on and no reader waits
for the launch.
"""

import collections
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpu_worker.batch_plan import StepResult
from gpu_worker.errors import DeviceLostError
from gpu_worker.link_events import LinkEvent, Stop
from gpu_worker.model_runner import StepOutput

_LATE_SECONDS = 0.002
"""How often the thread looks while steps are in flight."""


class StepResults:
    """``send`` and ``put_event`` may be called from any thread. With ``stands_in`` there is the thread."""

    def __init__(
        self, send: Callable[[StepResult], None], put_event: Callable[[LinkEvent], None], *, stands_in: bool
    ) -> None:
        self._send = send
        self._put_event = put_event
        self._steps: collections.deque[StepOutput | StepResult] = collections.deque()
        self._lock = threading.Lock()
        self._is_launching = False
        self._in_flight = threading.Event()
        if stands_in:
            threading.Thread(target=self._stand_in, name="step-results", daemon=True).start()

    def __bool__(self) -> bool:
        """Whether there is a step whose result is not sent."""
        return bool(self._steps)

    def put(self, step: StepOutput | StepResult) -> None:
        self._steps.append(step)
        if not self._in_flight.is_set():
            self._in_flight.set()

    def send_done(self) -> None:
        """Of the steps that are done. Raises DeviceLostError."""
        with self._lock:
            while self._steps:
                step = self._steps[0]
                if isinstance(step, StepOutput):
                    if not step.is_done:
                        return
                    step = step.wait()
                self._send(step)
                self._steps.popleft()

    @contextmanager
    def launching(self) -> Iterator[None]:
        """Meanwhile the thread sends what is done."""
        self._is_launching = True
        try:
            yield
        finally:
            self._is_launching = False

    def _stand_in(self) -> None:
        while True:
            self._in_flight.wait()
            time.sleep(_LATE_SECONDS)
            try:
                if self._is_launching:
                    self.send_done()
            except DeviceLostError as error:
                self._put_event(Stop(reason=f"device lost: {error}", failure=True))
                return
            self._in_flight.clear()
            if self._steps:
                self._in_flight.set()
