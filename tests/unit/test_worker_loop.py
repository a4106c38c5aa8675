"""The loop of a worker on a GPU, whose steps end some time after they were launched; as what it did, in order."""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from gpu_worker.batch_plan import BatchPlan, StepResult
from gpu_worker.errors import DeviceLostError
from gpu_worker.link_events import Joined, LinkEvent, Stop
from gpu_worker.model_runner import StepOutput
from gpu_worker.polling import Polling
from gpu_worker.published_pages import Inventory
from gpu_worker.worker import FAILED_EXIT, Worker


@dataclass
class Device:
    """What has ended on it, by step."""

    done: set[int] = field(default_factory=set)
    lost: bool = False


@dataclass(frozen=True, kw_only=True)
class Step(StepOutput):
    device: Any = None

    @property
    def is_done(self) -> bool:
        return self.device.lost or self.plan.step_id in self.device.done

    def wait(self) -> StepResult:
        if self.device.lost:
            raise DeviceLostError("it fell off the bus")
        return StepResult(step_id=self.plan.step_id, epoch=self.plan.epoch)


class Scene:
    """Link and runner of a worker; each look at the link is the next act of a script."""

    device = torch.device("cpu")

    def __init__(self, *script: Callable[["Scene"], object]) -> None:
        self.did: list[str] = []
        self.on_device = Device()
        self.events: queue.SimpleQueue[LinkEvent] = queue.SimpleQueue()
        self._script = [*script, Scene.stop]
        self._unsent: list[int] = []
        self.has_sent = threading.Event()
        self.on_launch: Callable[[int], object] = lambda step_id: None

    def play(self) -> int:
        return Worker(self, self, self.events, Polling(0.0)).run()

    def plan(self, step_id: int) -> None:
        self.events.put(BatchPlan(step_id=step_id, epoch=1))

    def stop(self) -> None:
        self.events.put(Stop(reason="the script ends"))

    def greet(self, inventory: Inventory) -> int:
        joined = Joined(epoch=1, worker_id="w", inventory_accepted=False, cache_identity=b"")
        self.events.put(joined)
        return 1

    def send(self, result: StepResult) -> None:
        self._unsent.append(result.step_id)

    def attend(self, seconds: float) -> None:
        if self._unsent:
            self.did += [f"sent {step_id}" for step_id in self._unsent]
            self._unsent.clear()
            self.has_sent.set()
        elif self.events.empty():
            self.did.append("sleeps" if seconds else "looks")
            self._script.pop(0)(self)

    def reset(self) -> None:
        """There are no rows."""

    def launch(self, plan: BatchPlan) -> StepOutput:
        self.did.append(f"launches {plan.step_id}")
        self.on_launch(plan.step_id)
        return Step(plan=plan, sampled_rows=plan.chunk_rows, packed=None, device=self.on_device)


def ended(*step_ids: int) -> Callable[[Scene], object]:
    return lambda scene: scene.on_device.done.update(step_ids)


def test_results_go_in_order_as_steps_end_and_nobody_sleeps_meanwhile() -> None:
    scene = Scene(
        lambda scene: scene.plan(1),
        lambda scene: scene.plan(2),
        ended(2),  # cannot be, but were it so, its result would wait
        ended(1),
    )
    assert scene.play() == 0
    assert scene.did == [
        *("sleeps", "launches 1", "looks", "launches 2", "looks", "looks", "sent 1", "sent 2"),
        "sleeps",
    ]


def test_a_result_is_sent_before_the_next_step_is_launched() -> None:
    def both(scene: Scene) -> None:
        scene.on_device.done.add(1)
        scene.plan(2)

    scene = Scene(lambda scene: scene.plan(1), both)
    scene.play()
    assert scene.did[:5] == ["sleeps", "launches 1", "looks", "sent 1", "launches 2"]


def test_a_launch_that_takes_long_holds_no_result_back() -> None:
    scene = Scene(lambda scene: scene.plan(1), lambda scene: scene.plan(2), ended(2))

    def launch(step_id: int) -> None:
        if step_id == 2:
            scene.on_device.done.add(1)
            assert scene.has_sent.wait(10)

    scene.on_launch = launch
    assert scene.play() == 0
    assert scene.did[:5] == ["sleeps", "launches 1", "looks", "launches 2", "sent 1"]


def test_a_device_that_is_lost_ends_the_worker() -> None:
    scene = Scene(lambda scene: scene.plan(1), lambda scene: setattr(scene.on_device, "lost", True))
    assert scene.play() == FAILED_EXIT
    assert scene.did == ["sleeps", "launches 1", "looks"]
