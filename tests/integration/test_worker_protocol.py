"""The worker's side of the protocol: epochs, step ids, refusals, heartbeats, what is dropped and what ends an epoch."""

import dataclasses
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pagewire.internal.v1 import worker_pb2 as pb
from support.plan_driver import Generation, PlanMaker
from support.tiny_models import TinyModel, greedy, make_model, random_prompt
from support.worker_wire import WireScheduler, plan_message

from gpu_worker import link_rounds, startup
from gpu_worker.batch_plan import BatchPlan, int32s
from gpu_worker.config import WorkerConfig
from gpu_worker.errors import HelloRefusedError
from gpu_worker.link_events import LinkEvent, Stop
from gpu_worker.polling import Polling
from gpu_worker.scheduler_link import SchedulerLink
from gpu_worker.worker import Worker

JOIN_SECONDS = 20


class WorkerThread:
    """A worker's loop and link in this process."""

    def __init__(self, parts: startup.Parts, endpoint: str, *, attends: bool = False) -> None:
        self.parts = parts
        self.events: queue.SimpleQueue[LinkEvent] = queue.SimpleQueue()
        self.link = SchedulerLink(endpoint, parts.card, self.events, is_attended=attends)
        self._polling = Polling(0.001) if attends else None
        self.ending: Any = None
        self._thread = threading.Thread(target=self._run)
        self.link.start()
        self._thread.start()

    def _run(self) -> None:
        try:
            self.ending = Worker(self.parts.runner, self.link, self.events, self._polling).run()
        except HelloRefusedError as error:
            self.ending = error

    def wait(self) -> Any:
        self._thread.join(JOIN_SECONDS)
        assert not self._thread.is_alive()
        return self.ending

    def stop(self) -> None:
        self.events.put(Stop(reason="the test ends"))
        self.link.wake()
        self.wait()
        self.link.close("the test ends")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_model(tmp_path_factory.mktemp("tiny"), num_hidden_layers=1)


@pytest.fixture(scope="module")
def parts(tiny: TinyModel) -> startup.Parts:
    config = WorkerConfig(
        model=tiny.path,
        scheduler="ipc:///unused",
        device="cpu",
        dtype="float32",
        kernels="reference",
        page_size=16,
        max_num_seqs=4,
        max_model_len=128,
        cpu_threads=1,
    )
    return startup.build(config, print)


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[WireScheduler]:
    with WireScheduler(tmp_path) as scheduler:
        yield scheduler


@pytest.fixture(params=[False, True], ids=["by its thread", "attended"])
def worker(request: pytest.FixtureRequest, parts: startup.Parts, wire: WireScheduler) -> Iterator[WorkerThread]:
    """With a link that has a thread of its own, as on a CPU, and with one that the loop attends to, as on a GPU."""
    thread = WorkerThread(parts, wire.endpoint, attends=request.param)
    yield thread
    thread.stop()


def serve_one(wire: WireScheduler, tiny: TinyModel, length: int = 17) -> None:
    """The worker is whole: a request on fresh rows comes out right."""
    maker = wire.maker(chunk=10)
    generation = Generation(prompt=random_prompt(length), max_tokens=5)
    maker.submit(generation)
    wire.run(maker)
    assert generation.output == greedy(tiny.reference, generation.prompt, 5)


def first_plan(wire: WireScheduler, length: int = 17) -> tuple[PlanMaker, BatchPlan]:
    maker = wire.maker()
    maker.submit(Generation(prompt=random_prompt(length), max_tokens=10))
    plan = maker.next_plan()
    assert plan is not None
    return maker, plan


def test_results_of_plans_in_flight_come_in_order(wire: WireScheduler, worker: WorkerThread, tiny: TinyModel) -> None:
    wire.join()
    serve_one(wire, tiny)
    steps = [frame.step_id for frame in wire.received if frame.WhichOneof("body") == "result"]
    assert steps == list(range(1, len(steps) + 1))


def test_the_hello_is_repeated_in_the_same_epoch_until_welcomed(wire: WireScheduler, worker: WorkerThread) -> None:
    wire.await_hello()
    again = wire.await_frame(lambda frame: frame.WhichOneof("body") == "hello")
    assert again.epoch == wire.epoch != 0
    assert (again.session, again.step_id) == (0, 0)
    wire.welcome()
    beat = wire.await_frame(lambda frame: frame.WhichOneof("body") == "heartbeat")
    assert (beat.session, beat.epoch, beat.step_id) == (wire.session, wire.epoch, 0)


def test_a_loop_without_work_sleeps(
    wire: WireScheduler, worker: WorkerThread, tiny: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.join()
    serve_one(wire, tiny)
    looks: list[float] = []
    attend = SchedulerLink.attend

    def counted(link: SchedulerLink, seconds: float) -> None:
        looks.append(seconds)
        attend(link, seconds)

    wire.await_frame(lambda frame: frame.WhichOneof("body") == "heartbeat")
    monkeypatch.setattr(SchedulerLink, "attend", counted)
    for _ in range(3):
        wire.await_frame(lambda frame: frame.WhichOneof("body") == "heartbeat")
    assert len(looks) <= 20


def test_a_retryable_refusal_is_tried_again_and_a_final_one_ends_it(wire: WireScheduler, parts: startup.Parts) -> None:
    worker = WorkerThread(parts, wire.endpoint)
    wire.await_hello()
    wire.send("refusal", pb.Refusal(reason="an older epoch is still here", retryable=True))
    wire.await_frame(lambda frame: frame.WhichOneof("body") == "hello")
    wire.send("refusal", pb.Refusal(reason="another model is served"))
    assert str(worker.wait()) == "another model is served"
    worker.link.close("the test ends")


def test_heartbeats_go_on_during_a_long_step(
    wire: WireScheduler, worker: WorkerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.join()
    model = worker.parts.runner.model
    forward, blocked, proceed = model.forward, threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Any:
        blocked.set()
        assert proceed.wait(JOIN_SECONDS)
        return forward(*arguments)

    monkeypatch.setattr(model, "forward", slow)
    maker, plan = first_plan(wire)
    wire.send_plan(plan)
    assert blocked.wait(JOIN_SECONDS)
    second = maker.next_plan()
    assert second is not None
    wire.send_plan(second)  # read ahead while the first runs

    def has_read_ahead(frame: pb.WorkerFrame) -> bool:
        return frame.WhichOneof("body") == "heartbeat" and frame.heartbeat.last_received_step_id == 2

    for _ in range(3):
        assert wire.await_frame(has_read_ahead).step_id == 0
    proceed.set()
    maker.commit(wire.await_result())
    maker.commit(wire.await_result())
    assert wire.await_frame(has_read_ahead).step_id == 2


def assert_refused(wire: WireScheduler, tiny: TinyModel, expected: str, step_id: int) -> None:
    """A refusal, then a hello of a new epoch with all rows dropped."""
    before = wire.epoch
    result = wire.await_result()
    assert (result.step_id, result.failure, len(result.rows)) == (step_id, None, 0)
    assert result.refusal is not None
    assert expected in result.refusal
    wire.join()
    assert wire.epoch != before
    serve_one(wire, tiny)


@pytest.mark.parametrize("step_id", [0, 2, 3, 2**60])
def test_a_first_plan_out_of_place_is_refused(
    wire: WireScheduler, worker: WorkerThread, tiny: TinyModel, step_id: int
) -> None:
    wire.join()
    _, plan = first_plan(wire)
    wire.send_plan(dataclasses.replace(plan, step_id=step_id))
    assert_refused(wire, tiny, f"step {step_id} came where 1 was due", step_id)


@pytest.mark.parametrize("sent", [1, 3], ids=["again", "gap"])
def test_a_later_plan_out_of_place_is_refused(
    wire: WireScheduler, worker: WorkerThread, tiny: TinyModel, sent: int
) -> None:
    wire.join()
    maker, plan = first_plan(wire)
    wire.send_plan(plan)
    maker.commit(wire.await_result())
    wire.send_plan(dataclasses.replace(plan, step_id=sent))
    assert_refused(wire, tiny, f"step {sent} came where 2 was due", sent)


def test_a_malformed_plan_is_refused_whole(wire: WireScheduler, worker: WorkerThread, tiny: TinyModel) -> None:
    wire.join()
    _, plan = first_plan(wire)
    message = plan_message(plan)
    message.chunk_tokens += b"\0"
    wire.send("plan", message, step_id=1)
    assert_refused(wire, tiny, "chunk_tokens: 5 bytes", 1)


def test_a_plan_that_contradicts_the_rows_is_refused_whole(
    wire: WireScheduler, worker: WorkerThread, tiny: TinyModel
) -> None:
    wire.join()
    maker, plan = first_plan(wire)
    wire.send_plan(plan)
    maker.commit(wire.await_result())
    wire.send_plan(BatchPlan(step_id=2, releases=int32s([3, 3])))
    assert_refused(wire, tiny, "releases: an id twice", 2)


def test_plans_behind_a_refused_one_are_dropped(wire: WireScheduler, worker: WorkerThread, tiny: TinyModel) -> None:
    wire.join()
    for step_id, rows in ((1, [3]), (2, []), (3, [])):
        wire.send_plan(BatchPlan(step_id=step_id, releases=int32s(rows)))
    assert_refused(wire, tiny, "releases: a row that is not active", 1)


def test_frames_of_strangers_are_dropped(wire: WireScheduler, worker: WorkerThread, tiny: TinyModel) -> None:
    wire.join()
    _, plan = first_plan(wire)
    wire.send_bytes(b"\xff\xff noise")
    wire.send_bytes(b"")
    wire.send("plan", plan_message(plan), step_id=1, session=wire.session + 1)
    wire.send("plan", plan_message(plan), step_id=1, epoch=wire.epoch + 1)
    wire.send("resync", pb.Resync(reason="meant for another"), epoch=wire.epoch + 1)
    wire.send("goodbye", pb.Goodbye(reason="from another"), session=wire.session + 1)
    serve_one(wire, tiny)


def say_resync(wire: WireScheduler) -> None:
    wire.send("resync", pb.Resync(reason="not known"))


def say_resync_of_a_new_session(wire: WireScheduler) -> None:
    wire.session += 7
    wire.send("resync", pb.Resync(reason="a new scheduler"))


def say_goodbye(wire: WireScheduler) -> None:
    wire.send("goodbye", pb.Goodbye(reason="stopping"))


def say_nothing(wire: WireScheduler) -> None:
    wire.heartbeats = False


@pytest.mark.parametrize("ending", [say_resync, say_resync_of_a_new_session, say_goodbye, say_nothing])
def test_an_epoch_ends_and_another_begins_with_empty_rows(
    wire: WireScheduler,
    worker: WorkerThread,
    tiny: TinyModel,
    monkeypatch: pytest.MonkeyPatch,
    ending: Callable[[WireScheduler], None],
) -> None:
    if ending is say_nothing:
        monkeypatch.setattr(link_rounds, "SILENCE_SECONDS", 0.5)
    wire.join()
    maker, plan = first_plan(wire)
    wire.send_plan(plan)
    maker.commit(wire.await_result())
    ending(wire)
    wire.await_hello()
    wire.heartbeats = True
    wire.welcome()
    serve_one(wire, tiny)


def test_a_resync_before_the_welcome_begins_a_new_epoch(
    wire: WireScheduler, worker: WorkerThread, tiny: TinyModel
) -> None:
    wire.await_hello()
    say_resync(wire)
    wire.join()
    serve_one(wire, tiny)


def test_a_second_welcome_changes_nothing(wire: WireScheduler, worker: WorkerThread, tiny: TinyModel) -> None:
    wire.join()
    wire.welcome()
    serve_one(wire, tiny)
    wire.welcome()  # late: the epoch is under way
    beat = wire.await_frame(lambda frame: frame.WhichOneof("body") == "heartbeat")
    assert beat.step_id > 0


def test_names_told_before_an_idle_time_are_in_the_inventory(wire: WireScheduler, worker: WorkerThread) -> None:
    wire.join()
    hashes = bytes(range(32))
    names = {"published_pages": int32s([3, 4]).tobytes(), "published_hashes": hashes}
    wire.send("names", pb.PageNames(**names, published_parents=int32s([-1, 3]).tobytes(), parent_hashes=bytes(16)))
    wire.send("names", pb.PageNames(evicted_pages=int32s([3]).tobytes()))
    say_resync(wire)
    hello = wire.await_hello()
    assert (hello.inventory.pages, hello.inventory.hashes) == (int32s([4]).tobytes(), hashes[16:])
    assert hello.inventory.parents == hashes[:16]
    wire.welcome()
    wire.send("names", pb.PageNames(published_pages=int32s([3]).tobytes()))
    wire.await_hello()  # what cannot be is answered by a new hello


def test_the_inventory_is_offered_and_forgotten_unless_it_is_taken(wire: WireScheduler, worker: WorkerThread) -> None:
    hello = wire.join()
    assert hello.inventory.pages == b""
    hashes, parents = bytes(range(48)), bytes(16) + bytes(range(32))
    publish = BatchPlan(
        step_id=1,
        published_pages=int32s([3, 9, 4]),
        published_hashes=hashes,
        published_parents=int32s([-1, 3, 9]),
        parent_hashes=bytes(16),
    )
    for plan in (publish, BatchPlan(step_id=2, evicted_pages=int32s([9]))):
        wire.send_plan(plan)
        wire.await_result()
    for number, accepted in enumerate((True, True, False)):
        say_resync(wire)
        hello = wire.await_hello()
        assert hello.inventory.identity == (b"identity %d" % (number - 1) if number else b"")
        assert hello.inventory.pages == int32s([3, 4]).tobytes()
        assert hello.inventory.hashes == hashes[:16] + hashes[32:]
        assert hello.inventory.parents == parents[:16] + parents[32:]
        wire.welcome(inventory_accepted=accepted, cache_identity=b"identity %d" % number)
        wire.await_frame(lambda frame: frame.WhichOneof("body") == "heartbeat")
    say_resync(wire)
    assert wire.await_hello().inventory.pages == b""


def test_a_failed_step_is_reported_and_the_loop_goes_on(
    wire: WireScheduler, worker: WorkerThread, tiny: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan behind the failed one was made before the failure was known: it fits all the same."""
    wire.join()
    maker, plan = first_plan(wire)

    def explode(*arguments: Any) -> Any:
        raise RuntimeError("a kernel failed")

    with monkeypatch.context() as patch:
        patch.setattr(worker.parts.runner.model, "forward", explode)
        second = maker.next_plan()
        assert second is not None
        wire.send_plan(plan)
        wire.send_plan(second)
        results = [wire.await_result(), wire.await_result()]
    assert [(result.step_id, result.failure) for result in results] == [
        (1, "RuntimeError: a kernel failed"),
        (2, "RuntimeError: a kernel failed"),
    ]
    assert not any(len(result.rows) for result in results)
    wire.send_plan(BatchPlan(step_id=3, releases=plan.chunk_rows))
    assert wire.await_result().failure is None
    fresh = wire.maker(first_step_id=4)
    generation = Generation(prompt=random_prompt(31), max_tokens=5)
    fresh.submit(generation)
    wire.run(fresh)
    assert generation.output == greedy(tiny.reference, generation.prompt, 5)


def test_leaving_says_goodbye(wire: WireScheduler, parts: startup.Parts) -> None:
    worker = WorkerThread(parts, wire.endpoint)
    wire.join()
    wire.await_frame(lambda frame: frame.WhichOneof("body") == "heartbeat")
    worker.stop()
    goodbye = wire.await_frame(lambda frame: frame.WhichOneof("body") == "goodbye")
    assert (goodbye.session, goodbye.epoch, worker.ending) == (wire.session, wire.epoch, 0)
