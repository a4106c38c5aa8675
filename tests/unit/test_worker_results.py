"""Results leave in the order of the steps, as soon as their step is done, also while the next one is launched."""

import queue
from typing import Any

import torch

from gpu_worker.batch_plan import BatchPlan, StepResult, empty_column
from gpu_worker.link_events import Joined, LinkEvent, Stop
from gpu_worker.model_runner import StepOutput
from gpu_worker.worker import CLEAN_EXIT, Worker


class Event:
    """As CUDA's, of a step that ends when a test says so."""

    def __init__(self) -> None:
        self.is_done = False

    def query(self) -> bool:
        return self.is_done


class Link:
    def __init__(self) -> None:
        self.sent: list[int] = []

    def greet(self, inventory: Any) -> int:
        return 0

    def send(self, result: StepResult) -> None:
        self.sent.append(result.step_id)

    def attend(self, seconds: float) -> None:
        raise AssertionError("this loop does not attend")


class Runner:
    """Waits in the launch of each step for the step before, as one with forms does."""

    device = torch.device("cpu")

    def __init__(self, link: Link) -> None:
        self._link = link
        self._done: Event | None = None
        self.worker: Worker | None = None
        self.sent_before_the_end: list[list[int]] = []

    def reset(self) -> None: ...

    def launch(self, plan: BatchPlan) -> StepOutput:
        if self._done is not None and self.worker is not None:
            self._done.is_done = True
            self.worker.send_done()
        self.sent_before_the_end.append([*self._link.sent])
        self._done = Event()
        done: Any = self._done
        return StepOutput(
            plan=plan, sampled_rows=empty_column(), packed=torch.empty(2, 0, dtype=torch.int32), done_event=done
        )


def test_a_launch_that_waits_lets_the_result_before_leave() -> None:
    events: queue.SimpleQueue[LinkEvent] = queue.SimpleQueue()
    link = Link()
    runner = Runner(link)
    runner.worker = worker = Worker(runner, link, events)
    events.put(Joined(epoch=1, worker_id="w", inventory_accepted=True, cache_identity=b""))
    for step_id in (1, 2, 3):
        events.put(BatchPlan(step_id=step_id, epoch=1))
    events.put(Stop(reason="the test ends"))
    assert worker.run() == CLEAN_EXIT
    assert runner.sent_before_the_end == [[], [1], [1, 2]]
