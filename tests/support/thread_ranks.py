"""The ranks of one worker as threads of this process, with collectives over shared memory; sums go by rank."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F

from gpu_worker import startup
from gpu_worker.batch_plan import BatchPlan
from gpu_worker.config import WorkerConfig
from gpu_worker.model_runner import ModelRunner, StepOutput

SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "device": "cpu",
    "page_size": 16,
    "max_num_seqs": 4,
    "max_model_len": 128,
    "cpu_threads": 1,
}
"""Of a worker with a tiny model."""

T = TypeVar("T")
_PATIENCE_SECONDS = 60


class ThreadGroup:
    """One rank's view; all ranks share the list and the barrier."""

    def __init__(self, rank: int, parts: list[torch.Tensor], barrier: threading.Barrier) -> None:
        self.rank = rank
        self.size = len(parts)
        self._parts = parts
        self._barrier = barrier

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        parts = self._exchange(part)
        total = parts[0].clone()
        for other in parts[1:]:
            total += other
        return total

    def join(self, part: torch.Tensor, width: int) -> torch.Tensor:
        return torch.cat(self._exchange(F.pad(part, (0, width - part.shape[1]))), dim=1)

    def least(self, number: int) -> int:
        return min(int(each) for each in self._exchange(torch.tensor(number)))

    def _exchange(self, part: torch.Tensor) -> list[torch.Tensor]:
        self._parts[self.rank] = part
        self._barrier.wait(_PATIENCE_SECONDS)
        parts = [each.clone() for each in self._parts]
        self._barrier.wait(_PATIENCE_SECONDS)
        return parts


class ThreadRanks:
    """Stands for a runner: every rank runs every plan, and all must sample the same. A context manager."""

    def __init__(self, num_ranks: int, path: Path, **options: Any) -> None:
        settings = SETTINGS | options
        config = WorkerConfig(model=path, scheduler="ipc:///unused", tensor_parallel_size=num_ranks, **settings)
        parts, self._barrier = [torch.empty(0)] * num_ranks, threading.Barrier(num_ranks)
        self._pool = ThreadPoolExecutor(num_ranks)
        self._groups = [ThreadGroup(rank, parts, self._barrier) for rank in range(num_ranks)]
        self.built = self._on_all(lambda rank: startup.build(config, print, self._groups[rank]))
        self.runners: list[ModelRunner] = [each.runner for each in self.built]
        self.limits = self.runners[0].limits

    def launch(self, plan: BatchPlan) -> StepOutput:
        outputs = self._on_all(lambda rank: self.runners[rank].launch(plan))
        first, *others = [output.wait() for output in outputs]
        for other in others:
            assert other.token_ids.tolist() == first.token_ids.tolist()
            assert [each.logprobs.tolist() for each in other.logprobs] == [
                each.logprobs.tolist() for each in first.logprobs
            ]
        return outputs[0]

    def reset(self) -> None:
        for runner in self.runners:
            runner.reset()

    def _on_all(self, call: Callable[[int], T]) -> list[T]:
        """The barrier breaks where a rank fails, so that the others do not wait for it."""

        def guarded(rank: int) -> T:
            try:
                return call(rank)
            except BaseException:
                self._barrier.abort()
                raise

        futures = [self._pool.submit(guarded, rank) for rank in range(len(self._groups))]
        errors = [error for future in futures if (error := future.exception()) is not None]
        for error in errors:
            if not isinstance(error, threading.BrokenBarrierError):
                raise error
        return [future.result() for future in futures]

    def __enter__(self) -> "ThreadRanks":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
