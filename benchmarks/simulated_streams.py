"""Streams on the pure core with simulated time: `python -m benchmarks.simulated_streams --workload longmix`.

One worker whose steps take what those of a model of that shape take on an H200 serves the workload. Prints a JSON line
for each target of a step: how long first tokens take, and how long running streams wait.
"""

import argparse
import heapq
import json
import random
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.measure import percentile
from scheduler_svc.core.page_hash import hash_pages, root_hash
from scheduler_svc.core.placement import Placement
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import (
    CoreConfig,
    Ended,
    Event,
    NewRequest,
    RequestKey,
    Row,
    StepResult,
    WorkerCard,
    WorkerId,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a step takes, in seconds."""

    step: float
    row: float
    prompt_token: float
    key: float
    """For each key that a prompt token attends to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Streams, each of which sends its next request when its last has ended, and long prompts that arrive meanwhile."""

    num_streams: int
    num_requests: int
    prompt: int
    output: int
    num_long: int = 0
    """Prompts of 8,192 tokens, 256 out, one each half second; of them only the first tokens are told."""


SHAPES = {
    "0.6b": Shape(step=0.0022, row=17e-6, prompt_token=1.8e-6, key=0.7e-9),
    "8b": Shape(step=0.0045, row=28e-6, prompt_token=21e-6, key=1.3e-9),
}
WORKLOADS = {
    "serve256": Work(num_streams=256, num_requests=768, prompt=512, output=128),
    "longmix": Work(num_streams=64, num_requests=64, prompt=128, output=1024, num_long=12),
}
WARM_UP = Work(num_streams=16, num_requests=64, prompt=512, output=128, num_long=1)
LONG, LONG_OUTPUT, LONG_SECONDS = 8192, 256, 0.5
PAGE_SIZE = 32
_WORKER = WorkerId("w")
_ROOT = root_hash(b"simulation", "", "model", "")


class Streams:
    """One worker and the streams that it serves."""

    def __init__(self, shape: Shape, target_seconds: float) -> None:
        self._shape = shape
        self._placement = Placement()
        config = CoreConfig(max_num_batched_tokens=8192, max_num_seqs=256, target_step_seconds=target_seconds)
        self._core = Scheduler(config, self._placement)
        card = WorkerCard(
            worker_id=_WORKER,
            num_pages=16384,
            page_size=PAGE_SIZE,
            max_num_seqs=256,
            max_num_batched_tokens=8192,
            max_model_len=8704,
        )
        self._core.add_worker(card, 0.0)
        self._draw = random.Random(3)
        self._steps: list[tuple[float, int, StepResult, list[RequestKey]]] = []  # in flight, a heap
        self._num_planned = self._num_submitted = self._num_left = 0
        self._now = self._free_at = 0.0
        self._work = WORKLOADS["serve256"]
        self._sent: dict[RequestKey, float] = {}
        self._last: dict[RequestKey, float] = {}
        self._long: set[RequestKey] = set()
        self.first_tokens: list[float] = []
        self.long_first_tokens: list[float] = []
        self.gaps: list[float] = []

    def run(self, work: Work) -> float:
        """Seconds until all its requests have ended."""
        began, self._work = self._now, work
        self.first_tokens, self.long_first_tokens, self.gaps = [], [], []
        self._num_left = work.num_requests
        arrivals = [began + LONG_SECONDS * number for number in range(work.num_long, 0, -1)]
        for _ in range(work.num_streams):
            self._submit_next()
        self._plan()
        while self._steps or arrivals:
            if arrivals and (not self._steps or arrivals[-1] < self._steps[0][0]):
                self._now = arrivals.pop()
                self._long.add(self._submit(LONG, LONG_OUTPUT))
            else:
                self._now, _, result, keys = heapq.heappop(self._steps)
                self._hear(keys)
                self._apply(self._core.commit(result, self._now).events)
            self._plan()
        return self._now - began

    def _submit_next(self) -> None:
        if self._num_left:
            self._num_left -= 1
            self._submit(self._work.prompt, self._work.output)

    def _submit(self, num_prompt: int, num_output: int) -> RequestKey:
        key = RequestKey(self._num_submitted)
        self._num_submitted += 1
        self._sent[key] = self._now
        prompt = array("i", [self._draw.randrange(40_000) for _ in range(num_prompt)])
        hashes = hash_pages(_ROOT, prompt, PAGE_SIZE)
        request = NewRequest(key=key, prompt=prompt, page_hashes=hashes, root_hash=_ROOT, max_tokens=num_output)
        self._apply(self._core.submit(request, self._now))
        return key

    def _plan(self) -> None:
        worker = self._placement.workers[_WORKER]
        while len(worker.in_flight) < 2:
            plan, events = self._core.plan(_WORKER, self._now)
            self._apply(events)
            if plan is None:
                return
            shape, record = self._shape, worker.in_flight[-1]
            seconds = shape.step + shape.row * plan.num_scheduled_rows + shape.prompt_token * sum(plan.chunk_tokens)
            seconds += shape.key * sum(count * (computed - count / 2) for _, count, computed in record.chunks)
            self._free_at = max(self._now, self._free_at) + seconds
            rows = record.sampling_rows
            keys = [worker.rows[Row(row)].request.key for row in rows]
            tokens = array("i", bytes(4 * len(rows)))
            result = StepResult(worker_id=_WORKER, step_id=plan.step_id, rows=rows, token_ids=tokens, seconds=seconds)
            self._num_planned += 1
            heapq.heappush(self._steps, (self._free_at, self._num_planned, result, keys))

    def _hear(self, keys: list[RequestKey]) -> None:
        for key in keys:
            if key not in self._last:
                first_tokens = self.long_first_tokens if key in self._long else self.first_tokens
                first_tokens.append(self._now - self._sent[key])
            elif key not in self._long:
                self.gaps.append(self._now - self._last[key])
            self._last[key] = self._now

    def _apply(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Ended) and event.key not in self._long:
                self._submit_next()


def measure(shape: str, workload: str, target_ms: int) -> dict[str, Any]:
    """A row about one target; the worker's pace is learnt before."""
    streams, work = Streams(SHAPES[shape], target_ms / 1000), WORKLOADS[workload]
    streams.run(WARM_UP)
    seconds = streams.run(work)
    num_tokens = work.num_requests * work.output + work.num_long * LONG_OUTPUT
    row: dict[str, Any] = {"shape": shape, "workload": workload, "target_ms": target_ms}
    row["output_tokens_per_s"] = round(num_tokens / seconds)
    for name, values in (("first_token", streams.first_tokens), ("gap", streams.gaps)):
        row |= {f"{name}_p{rank}_ms": round(percentile(values, rank) * 1000, 1) for rank in (50, 99)}
    row["gap_max_ms"] = round(max(streams.gaps) * 1000, 1)
    if streams.long_first_tokens:
        row["long_first_token_p50_ms"] = round(percentile(streams.long_first_tokens, 50) * 1000, 1)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--workload", choices=WORKLOADS, default="serve256")
    parser.add_argument("--target-ms", default="0,50,65,75,100", help="targets for a step, 0: none")
    arguments = parser.parse_args()
    for target in arguments.target_ms.split(","):
        print(json.dumps(measure(arguments.shape, arguments.workload, int(target))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
