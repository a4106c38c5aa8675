"""The scheduler's core and a worker's model runner in one process, every plan and result through both codecs.

What a stack of processes computes, without its processes: for tests that compare many outputs of a real small model.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pagewire.internal.v1 import worker_pb2

from gpu_worker import codec as gpu_codec
from gpu_worker import startup
from gpu_worker.config import WorkerConfig
from gpu_worker.model_runner import ModelRunner, StepOutput
from scheduler_svc import worker_codec
from scheduler_svc.core.page_hash import hash_pages, root_hash
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import (
    BatchPlan,
    CoreConfig,
    Ended,
    NewRequest,
    RequestKey,
    SamplingParams,
    StepId,
    StepResult,
    WorkerCard,
    WorkerId,
)
from scheduler_svc.messages import WorkerResult

SESSION, EPOCH = 7, 9


def build_runner(path: Path, **options: Any) -> ModelRunner:
    """A runner on the CPU in float32 with pages of 16, unless told otherwise."""
    settings: dict[str, Any] = {
        "dtype": "float32",
        "device": "cpu",
        "kernels": "cpu",
        "page_size": 16,
        "max_num_seqs": 16,
        "max_model_len": 256,
        "cpu_threads": 1,
        **options,
    }
    return startup.build(WorkerConfig(model=path, scheduler="ipc:///unused", **settings), print).runner


@dataclass(slots=True)
class _Seat:
    """One worker: its runner and the steps it is busy with."""

    runner: ModelRunner
    launched: "deque[StepOutput]" = field(default_factory=deque)


class CoreRunner:
    """``submit`` and ``run``; keys count from 0. ``num_pages`` gives the core a smaller pool than the runner has."""

    def __init__(self, *runners: ModelRunner, num_pages: int = 0, depth: int = 2, **config: Any) -> None:
        self.core = Scheduler(CoreConfig(**{"max_num_batched_tokens": 512, "max_num_seqs": 16, **config}))
        self.outputs: list[list[int]] = []
        self.logprobs: list[list[Any]] = []
        """RowLogprobs messages of each request."""
        self.ended: dict[int, Ended] = {}
        self.plans: list[BatchPlan] = []
        self.depth = depth
        self._seats: dict[WorkerId, _Seat] = {}
        for number, runner in enumerate(runners, 1):
            runner.reset()
            self._join(WorkerId(f"w{number}"), runner, num_pages)

    def _join(self, worker_id: WorkerId, runner: ModelRunner, num_pages: int) -> None:
        limits = runner.limits
        card = WorkerCard(
            worker_id=worker_id,
            num_pages=min(num_pages or limits.num_pages, limits.num_pages),
            page_size=limits.page_size,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_model_len=limits.max_model_len,
            first_step_id=StepId(1),
        )
        self.page_size = limits.page_size
        self._seats[worker_id] = _Seat(runner)
        self._take(self.core.add_worker(card, 0.0))

    def submit(
        self, prompt: Sequence[int], max_tokens: int, *, caches: bool = True, stops: Sequence[int] = (), **sampling: Any
    ) -> int:
        """Its key."""
        token_ids, root = array("i", prompt), root_hash(b"key", "", "model", "")
        key = len(self.outputs)
        self.outputs.append([])
        self.logprobs.append([])
        request = NewRequest(
            key=RequestKey(key),
            prompt=token_ids,
            page_hashes=hash_pages(root, token_ids, self.page_size) if caches else (),
            root_hash=root if caches else b"",
            max_tokens=max_tokens,
            stop_token_ids=frozenset(stops),
            sampling=SamplingParams(**{"temperature": 0.0, **sampling}),
        )
        self._take(self.core.submit(request, 0.0))
        return key

    def step(self) -> bool:
        """A plan for every worker that has room and work, or else the oldest result; False if there was neither."""
        planned = [worker_id for worker_id in self._seats if self._plan(worker_id)]
        if planned:
            return True
        busy = [worker_id for worker_id, seat in self._seats.items() if seat.launched]
        for worker_id in busy:
            self._commit(worker_id)
        return bool(busy)

    def run(self) -> "CoreRunner":
        """Until everything has ended; then every page must be free or only cached."""
        while self.step():
            pass
        assert len(self.ended) == len(self.outputs)
        for pages in self.core.counts().pages.values():
            assert pages.num_held == 0
            assert pages.num_free + pages.num_cached == pages.num_pages
        return self

    def lose(self, worker_id: WorkerId) -> None:
        """A worker is gone, with the steps it was busy with."""
        del self._seats[worker_id]
        self._take(self.core.remove_worker(worker_id, 0.0))

    def _plan(self, worker_id: WorkerId) -> bool:
        seat = self._seats[worker_id]
        if len(seat.launched) >= self.depth:
            return False
        plan, events = self.core.plan(worker_id, 0.0)
        self._take(events)
        if plan is None:
            return False
        self.plans.append(plan)
        frame = gpu_codec.decode_frame(worker_codec.plan(SESSION, EPOCH, plan))
        assert frame is not None
        seat.launched.append(seat.runner.launch(gpu_codec.decode_plan(frame)))
        return True

    def _commit(self, worker_id: WorkerId) -> None:
        result = self._seats[worker_id].launched.popleft().wait()
        assert result.failure is None, result.failure
        message = worker_codec.read_worker_frame(gpu_codec.encode_result(SESSION, result))
        body = message.body
        assert isinstance(body, WorkerResult)
        committed = self.core.commit(
            StepResult(
                worker_id=worker_id,
                step_id=StepId(message.step_id),
                rows=body.rows,
                token_ids=body.token_ids,
                statuses=body.statuses,
                attachments=body.logprobs,
            ),
            0.0,
        )
        for key, token_id in zip(committed.keys, committed.token_ids, strict=True):
            self.outputs[key].append(token_id)
        for key, content in committed.attachments:
            self.logprobs[key].append(worker_pb2.RowLogprobs.FromString(content))
        self._take(committed.events)

    def _take(self, events: Sequence[Any]) -> None:
        for event in events:
            if isinstance(event, Ended):
                self.ended[event.key] = event
        self.core.check_invariants()


def recorded_logits(runner: ModelRunner, seen: list[torch.Tensor]) -> Any:
    """What to patch ``runner._kernels.sample`` with to see every step's logits."""
    original = runner._kernels.sample

    def record(logits: torch.Tensor, batch: Any) -> Any:
        seen.append(logits.float().clone())
        return original(logits, batch)

    return record
