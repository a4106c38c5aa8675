"""The worker's loop: events of the link in, step results out.

On a GPU a step is launched as soon as its plan is here, while the one before still runs. The loop attends to the link
and to the ends of steps itself, one thread for all that a token has to pass: as long as steps are in flight, and a
while after, it looks for what comes next without sleeping. On a CPU a step is done when it was launched, its result is
sent at once, and the link's own thread receives meanwhile.
"""

import queue
import time
from typing import Protocol

import structlog
import torch

from gpu_worker.batch_plan import BatchPlan, PageNames, StepResult
from gpu_worker.errors import DeviceLostError, HelloRefusedError, PlanRefusedError
from gpu_worker.link_events import Joined, Left, LinkEvent, Refused
from gpu_worker.model_runner import StepOutput
from gpu_worker.polling import Polling
from gpu_worker.published_pages import Inventory, PublishedPages
from gpu_worker.step_results import StepResults

CLEAN_EXIT, FAILED_EXIT = 0, 1
_MOST_SLEEP = 1.0
Events = queue.SimpleQueue[LinkEvent]


class Link(Protocol):
    """What the loop needs of SchedulerLink."""

    def greet(self, inventory: Inventory) -> int: ...

    def send(self, result: StepResult) -> None: ...

    def attend(self, seconds: float) -> None: ...


class Runner(Protocol):
    """What the loop needs of ModelRunner."""

    @property
    def device(self) -> torch.device: ...

    def reset(self) -> None: ...

    def launch(self, plan: BatchPlan) -> StepOutput: ...


class Worker:
    """Runs plans until it is told to stop."""

    def __init__(self, runner: Runner, link: Link, events: Events, polling: Polling | None = None) -> None:
        """``polling``: this loop attends to the link, which is one that is attended."""
        self._runner = runner
        self._link = link
        self._events = events
        self._published = PublishedPages()
        self._epoch: int | None = None
        self._log = structlog.get_logger()
        self._polling = polling
        self._results = StepResults(self._send, events.put, stands_in=polling is not None)

    def run(self) -> int:
        """Say hello and work; returns the process's exit code. Raises HelloRefusedError."""
        self._greet()
        while True:
            try:
                event = self._next_event()
            except DeviceLostError as error:
                self._log.error("device lost", reason=str(error))
                return FAILED_EXIT
            if isinstance(event, BatchPlan):
                if event.epoch == self._epoch and not self._run_plan(event):
                    return FAILED_EXIT
            elif isinstance(event, PageNames):
                if event.epoch == self._epoch:
                    self._published.apply(event)
            elif isinstance(event, Joined):
                self._join(event)
            elif isinstance(event, Left):
                self._log.warning("left the scheduler", reason=event.reason)
                self._greet()
            elif isinstance(event, Refused):
                raise HelloRefusedError(event.reason)
            else:
                self._log.info("stopping", reason=event.reason)
                return FAILED_EXIT if event.failure else CLEAN_EXIT

    def _next_event(self) -> LinkEvent:
        """What the link tells next; results are sent meanwhile. Raises DeviceLostError."""
        self._results.send_done()
        while self._polling is not None and self._events.empty():
            self._link.attend(self._patience(self._polling))
            self._results.send_done()
        return self._events.get()

    def _patience(self, polling: Polling) -> float:
        """Seconds to sleep if nothing comes."""
        now = time.monotonic()
        if self._results:
            polling.had_work(now)
            return 0.0  # on any machine: waiting for the device spins, too
        return 0.0 if polling.looks_again(now) else _MOST_SLEEP

    def _send(self, result: StepResult) -> None:
        self._link.send(result)
        if self._polling is not None:
            self._link.attend(0)  # before anything else is launched

    def send_done(self) -> None:
        """Send the results of steps that are done, during a launch. Raises DeviceLostError."""
        self._results.send_done()

    def _greet(self) -> None:
        """Drop all rows and begin a new epoch."""
        self._epoch = None
        self._runner.reset()
        self._link.greet(self._published.inventory())

    def _join(self, event: Joined) -> None:
        self._runner.reset()
        self._published.join(event.inventory_accepted, event.cache_identity)
        self._epoch = event.epoch
        self._log.info("joined", worker_id=event.worker_id)

    def _run_plan(self, plan: BatchPlan) -> bool:
        """False if the device is lost."""
        try:
            with self._results.launching():
                output = self._runner.launch(plan)
        except PlanRefusedError as error:
            self._epoch = None
            self._log.error("plan refused", step_id=plan.step_id, reason=str(error))
            self._results.put(StepResult(step_id=plan.step_id, epoch=plan.epoch, refusal=str(error)))
            return True
        except DeviceLostError as error:
            self._log.error("device lost", step_id=plan.step_id, reason=str(error))
            return False
        self._published.apply(plan)
        if output.failure is not None:
            self._log.error("step failed", step_id=plan.step_id, reason=output.failure)
        self._results.put(output)
        return True
