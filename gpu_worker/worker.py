"""The worker's loop: events of the link in, step results out.

On a GPU a step is launched as soon as its plan is here, while the one before still runs; a thread waits for each step's
end in turn and sends its result. On a CPU a step is done when it was launched, and its result is sent at once.
"""

import queue
import threading
from typing import Protocol

import structlog
import torch

from gpu_worker.batch_plan import BatchPlan, PageNames, StepResult
from gpu_worker.errors import DeviceLostError, HelloRefusedError, PlanRefusedError
from gpu_worker.model_runner import StepOutput
from gpu_worker.published_pages import Inventory, PublishedPages
from gpu_worker.scheduler_link import Joined, Left, LinkEvent, Refused, Stop

CLEAN_EXIT, FAILED_EXIT = 0, 1
Events = queue.SimpleQueue[LinkEvent]


class Link(Protocol):
    """What the loop needs of SchedulerLink."""

    def greet(self, inventory: Inventory) -> int: ...

    def send(self, result: StepResult) -> None: ...


class Runner(Protocol):
    """What the loop needs of ModelRunner."""

    @property
    def device(self) -> torch.device: ...

    def reset(self) -> None: ...

    def launch(self, plan: BatchPlan) -> StepOutput: ...


class Worker:
    """Runs plans until it is told to stop."""

    def __init__(self, runner: Runner, link: Link, events: Events) -> None:
        self._runner = runner
        self._link = link
        self._events = events
        self._published = PublishedPages()
        self._epoch: int | None = None
        self._log = structlog.get_logger()
        self._outputs = _OutputThread(link, events) if runner.device.type == "cuda" else None

    def run(self) -> int:
        """Say hello and work; returns the process's exit code. Raises HelloRefusedError."""
        self._greet()
        while True:
            event = self._events.get()
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
            output = self._runner.launch(plan)
        except PlanRefusedError as error:
            self._epoch = None
            self._log.error("plan refused", step_id=plan.step_id, reason=str(error))
            self._send(StepResult(step_id=plan.step_id, epoch=plan.epoch, refusal=str(error)))
            return True
        except DeviceLostError as error:
            self._log.error("device lost", step_id=plan.step_id, reason=str(error))
            return False
        self._published.apply(plan)
        if output.failure is not None:
            self._log.error("step failed", step_id=plan.step_id, reason=output.failure)
        self._send(output)
        return True

    def _send(self, step: StepOutput | StepResult) -> None:
        """Results leave in step order, whoever sends them."""
        if self._outputs is not None:
            self._outputs.put(step)
        else:
            self._link.send(step.wait() if isinstance(step, StepOutput) else step)


class _OutputThread:
    """Waits for launched steps in order and sends their results, so that the loop never waits for the device."""

    def __init__(self, link: Link, events: Events) -> None:
        self._link = link
        self._events = events
        self._steps: queue.SimpleQueue[StepOutput | StepResult] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="step-output", daemon=True).start()

    def put(self, step: StepOutput | StepResult) -> None:
        self._steps.put(step)

    def _run(self) -> None:
        while True:
            step = self._steps.get()
            try:
                self._link.send(step.wait() if isinstance(step, StepOutput) else step)
            except DeviceLostError as error:
                self._events.put(Stop(reason=f"device lost: {error}", failure=True))
                return
