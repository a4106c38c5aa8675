"""Closed-loop streams on the pure core with simulated time: `python -m benchmarks.simulated_streams --target-ms 0,50`.

256 streams of 512 prompt and 128 output tokens, 768 in all, on one worker whose step takes what one of an 8B shape
takes on an H200. Prints a JSON line for each target: how long first tokens take, and how long running streams wait.
"""

import argparse
import heapq
import json
import random
import sys
from array import array
from collections.abc import Sequence
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

STEP_SECONDS, SECONDS_PER_ROW, SECONDS_PER_PROMPT_TOKEN = 0.0045, 28e-6, 22e-6
STREAMS, REQUESTS, PROMPT, OUTPUT = 256, 768, 512, 128
PAGE_SIZE = 32
_WORKER = WorkerId("w")
_ROOT = root_hash(b"simulation", "", "model", "")


class Streams:
    """One worker and the streams that it serves."""

    def __init__(self, target_seconds: float) -> None:
        self._placement = Placement()
        config = CoreConfig(max_num_batched_tokens=8192, max_num_seqs=STREAMS, target_step_seconds=target_seconds)
        self._core = Scheduler(config, self._placement)
        card = WorkerCard(
            worker_id=_WORKER,
            num_pages=16384,
            page_size=PAGE_SIZE,
            max_num_seqs=STREAMS,
            max_num_batched_tokens=8192,
            max_model_len=8192,
        )
        self._core.add_worker(card, 0.0)
        self._draw = random.Random(3)
        self._steps: list[tuple[float, int, StepResult, list[RequestKey]]] = []  # in flight, a heap
        self._num_planned = self._num_submitted = self._num_wanted = 0
        self._now = self._free_at = 0.0
        self._sent: dict[RequestKey, float] = {}
        self._last: dict[RequestKey, float] = {}
        self.first_tokens: list[float] = []
        self.gaps: list[float] = []

    def run(self, num_streams: int, num_requests: int) -> float:
        """Seconds until so many requests more have ended, each stream sending its next one when the last has."""
        began = self._now
        self._num_wanted += num_requests
        self.first_tokens, self.gaps = [], []
        for _ in range(num_streams):
            self._submit()
        self._plan()
        while self._steps:
            self._now, _, result, keys = heapq.heappop(self._steps)
            self._hear(keys)
            self._apply(self._core.commit(result, self._now).events)
            self._plan()
        return self._now - began

    def _submit(self) -> None:
        key = RequestKey(self._num_submitted)
        self._num_submitted += 1
        self._sent[key] = self._now
        prompt = array("i", [self._draw.randrange(40_000) for _ in range(PROMPT)])
        hashes = hash_pages(_ROOT, prompt, PAGE_SIZE)
        request = NewRequest(key=key, prompt=prompt, page_hashes=hashes, root_hash=_ROOT, max_tokens=OUTPUT)
        self._apply(self._core.submit(request, self._now))

    def _plan(self) -> None:
        worker = self._placement.workers[_WORKER]
        while len(worker.in_flight) < 2:
            plan, events = self._core.plan(_WORKER, self._now)
            self._apply(events)
            if plan is None:
                return
            seconds = STEP_SECONDS + SECONDS_PER_ROW * plan.num_scheduled_rows
            seconds += SECONDS_PER_PROMPT_TOKEN * sum(plan.chunk_tokens)
            self._free_at = max(self._now, self._free_at) + seconds
            rows = worker.in_flight[-1].sampling_rows
            keys = [worker.rows[Row(row)].request.key for row in rows]
            tokens = array("i", bytes(4 * len(rows)))
            result = StepResult(worker_id=_WORKER, step_id=plan.step_id, rows=rows, token_ids=tokens, seconds=seconds)
            self._num_planned += 1
            heapq.heappush(self._steps, (self._free_at, self._num_planned, result, keys))

    def _hear(self, keys: list[RequestKey]) -> None:
        for key in keys:
            if key in self._last:
                self.gaps.append(self._now - self._last[key])
            else:
                self.first_tokens.append(self._now - self._sent[key])
            self._last[key] = self._now

    def _apply(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Ended) and self._num_submitted < self._num_wanted:
                self._submit()


def measure(target_ms: int) -> dict[str, Any]:
    """A row about one target; the worker's pace is learnt before, from a few streams."""
    streams = Streams(target_ms / 1000)
    streams.run(16, 64)
    seconds = streams.run(STREAMS, REQUESTS)
    row: dict[str, Any] = {"target_ms": target_ms, "output_tokens_per_s": round(REQUESTS * OUTPUT / seconds)}
    for name, values in (("first_token", streams.first_tokens), ("gap", streams.gaps)):
        row |= {f"{name}_p{rank}_ms": round(percentile(values, rank) * 1000, 1) for rank in (50, 99)}
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target-ms", default="0,50,65,75,100", help="targets for a step, 0: none")
    for target in parser.parse_args().target_ms.split(","):
        print(json.dumps(measure(int(target))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
