"""The scheduler's end of the worker protocol, for tests: one socket, one worker, everything said in so many words.

Each waiting call answers with heartbeats meanwhile, as a scheduler does, and fails at its deadline.
"""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import zmq
from pagewire.internal.v1 import worker_pb2 as pb
from support.plan_driver import PlanMaker

from gpu_worker.batch_plan import BatchPlan, StepResult

SECONDS = 60.0
SESSION = 0x5E5510


class WireScheduler:
    """Binds at ``endpoint``; knows the worker from its hello."""

    def __init__(self, folder: Path, *, session: int = SESSION, heartbeats: bool = True) -> None:
        self.endpoint = f"ipc://{folder}/worker.sock"
        self.session = session
        self.heartbeats = heartbeats
        self.peer = b""
        self.epoch = 0
        self.hello = pb.Hello()
        self.received: list[pb.WorkerFrame] = []
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(self.endpoint)

    def close(self) -> None:
        self._socket.close()
        self._context.term()

    def __enter__(self) -> "WireScheduler":
        return self

    def __exit__(self, *ending: object) -> None:
        self.close()

    def send(
        self, kind: str, body: object, *, step_id: int = 0, session: int | None = None, epoch: int | None = None
    ) -> None:
        frame = pb.SchedulerFrame(
            session=self.session if session is None else session,
            epoch=self.epoch if epoch is None else epoch,
            step_id=step_id,
            **{kind: body},
        )
        self.send_bytes(frame.SerializeToString())

    def send_bytes(self, data: bytes) -> None:
        self._socket.send_multipart([self.peer, data])

    def await_hello(self) -> pb.Hello:
        """The next hello of an epoch not seen before."""
        seen = self.epoch
        frame = self.await_frame(lambda frame: frame.WhichOneof("body") == "hello" and frame.epoch != seen)
        self.epoch, self.hello = frame.epoch, frame.hello
        return frame.hello

    def welcome(self, first_step_id: int = 1, **fields: object) -> None:
        body = pb.Welcome(worker_id="worker-1", first_step_id=first_step_id, heartbeat_ms=100, **fields)
        self.send("welcome", body)

    def join(self) -> pb.Hello:
        hello = self.await_hello()
        self.welcome()
        return hello

    def maker(self, **options: int) -> PlanMaker:
        """A plan maker for the worker that said hello."""
        hello = self.hello
        options.setdefault("budget", hello.max_num_batched_tokens)
        return PlanMaker(num_rows=hello.max_num_seqs, num_pages=hello.num_pages, page_size=hello.page_size, **options)

    def send_plan(self, plan: BatchPlan) -> None:
        self.send("plan", plan_message(plan), step_id=plan.step_id)

    def await_result(self) -> StepResult:
        frame = self.await_frame(lambda frame: frame.WhichOneof("body") == "result" and frame.epoch == self.epoch)
        return read_result(frame)

    def await_frame(self, wanted: Callable[[pb.WorkerFrame], bool], seconds: float = SECONDS) -> pb.WorkerFrame:
        """The next frame that is wanted; the others are kept in ``received`` too."""
        deadline = time.monotonic() + seconds
        next_beat = 0.0
        while time.monotonic() < deadline:
            if self.heartbeats and self.peer and time.monotonic() >= next_beat:
                next_beat = time.monotonic() + 0.2
                self.send("heartbeat", pb.Heartbeat())
            if not self._socket.poll(50):
                continue
            self.peer, data = self._socket.recv_multipart()
            frame = pb.WorkerFrame.FromString(data)
            self.received.append(frame)
            if wanted(frame):
                return frame
        raise AssertionError(f"nothing within {seconds} s; received {[f.WhichOneof('body') for f in self.received]}")

    def run(self, maker: PlanMaker, max_in_flight: int = 2) -> None:
        """Serve everything submitted to ``maker``."""
        while not maker.is_idle:
            plan = maker.next_plan() if len(maker.in_flight) < max_in_flight else None
            if plan is not None:
                self.send_plan(plan)
            else:
                maker.commit(self.await_result())


def plan_message(plan: BatchPlan) -> pb.BatchPlan:
    """The message of a plan."""
    new = plan.new_rows
    return pb.BatchPlan(
        releases=_rows(plan.releases),
        new_rows=pb.NewRows(
            rows=_rows(new.rows),
            num_prompt_tokens=_bytes(new.num_prompt_tokens),
            num_token_ids=_bytes(new.num_token_ids),
            token_ids=_bytes(new.token_ids),
            num_cached_tokens=_bytes(new.num_cached_tokens),
            output_indices=_bytes(new.output_indices),
            seeds=new.seeds.astype("<u8").tobytes(),
            temperatures=new.temperatures.astype("<f4").tobytes(),
            top_ps=new.top_ps.astype("<f4").tobytes(),
            top_ks=_bytes(new.top_ks),
            min_ps=new.min_ps.astype("<f4").tobytes(),
        ),
        append_rows=_rows(plan.append_rows),
        append_pages=_bytes(plan.append_pages),
        copy_sources=_bytes(plan.copy_sources),
        copy_destinations=_bytes(plan.copy_destinations),
        chunk_rows=_rows(plan.chunk_rows),
        chunk_tokens=_bytes(plan.chunk_tokens),
        idle_rows=_rows(plan.idle_rows),
        published_pages=_bytes(plan.published_pages),
        published_hashes=plan.published_hashes,
        published_parents=_bytes(plan.published_parents),
        parent_hashes=plan.parent_hashes,
        evicted_pages=_bytes(plan.evicted_pages),
        num_scheduled_rows=plan.num_scheduled_rows,
        num_scheduled_tokens=plan.num_scheduled_tokens,
    )


def read_result(frame: pb.WorkerFrame) -> StepResult:
    body = frame.result
    return StepResult(
        step_id=frame.step_id,
        epoch=frame.epoch,
        rows=np.frombuffer(body.rows, dtype="<i4"),
        token_ids=np.frombuffer(body.token_ids, dtype="<i4"),
        statuses=body.statuses,
        step_us=body.step_us,
        failure=body.failure if body.HasField("failure") else None,
        refusal=body.refusal if body.HasField("refusal") else None,
    )


def _rows(column: np.ndarray) -> bytes:
    return column.astype("<u2").tobytes()


def _bytes(column: np.ndarray) -> bytes:
    return column.astype("<i4").tobytes()
