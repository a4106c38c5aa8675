"""Workers that take the time a GPU would, on a simulated clock, around the real core: no tokens, only their numbers.

A worker runs its steps one after another, two in flight. A step takes a fixed time and some for each prompt token and
each row. Nothing is random here: the same requests give the same life.
"""

import heapq
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_svc.core.placement import Placement
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import CoreConfig, Ended, Event, NewRequest, StepResult, WorkerCard, WorkerId

STEP_SECONDS = 0.008
SECONDS_PER_PROMPT_TOKEN = 40e-6
SECONDS_PER_ROW = 20e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request and when it comes."""

    at: float
    request: NewRequest


class Fleet:
    """Workers around one core; ``run`` serves all arrivals."""

    def __init__(self, config: CoreConfig, placement: Placement, cards: Sequence[WorkerCard]) -> None:
        self.core = Scheduler(config, placement)
        self.ended: list[Ended] = []
        self.samples: list[tuple[float, dict[str, float]]] = []
        """What tenants were charged, by the time; see ``run``."""
        self._placement = placement
        self._free_at: dict[WorkerId, float] = {}
        self._idle: dict[WorkerId, None] = {}
        self._results: list[tuple[float, int, WorkerId, StepResult]] = []  # a heap by time
        self._num_planned = 0
        for card in cards:
            self.core.add_worker(card, 0.0)
            self._free_at[card.worker_id] = 0.0
            self._idle[card.worker_id] = None

    def run(self, arrivals: Sequence[Arrival], sample_seconds: float = 0.0) -> float:
        """Until the last request has ended; the time it took. ``sample_seconds`` apart, charges are noted."""
        now, next_sample, position = 0.0, 0.0, 0
        while position < len(arrivals) or self._results:
            comes_next = position < len(arrivals) and (
                not self._results or arrivals[position].at <= self._results[0][0]
            )
            if comes_next:
                now = arrivals[position].at
                self._take(self.core.submit(arrivals[position].request, now))
                position += 1
                for worker_id in list(self._idle):
                    self._plan(worker_id, now)
            else:
                now, _, worker_id, result = heapq.heappop(self._results)
                self._take(self.core.commit(result, now).events)
                self._plan(worker_id, now)
            if sample_seconds and now >= next_sample:
                self.samples.append((now, self.core.charges()))
                next_sample = now + sample_seconds
        return now

    def _plan(self, worker_id: WorkerId, now: float) -> None:
        self._idle.pop(worker_id, None)
        worker = self._placement.workers[worker_id]
        while len(worker.in_flight) < 2:
            plan, events = self.core.plan(worker_id, now)
            self._take(events)
            if plan is None:
                self._idle[worker_id] = None
                return
            num_prompt_tokens = sum(plan.chunk_tokens)
            seconds = STEP_SECONDS + SECONDS_PER_PROMPT_TOKEN * num_prompt_tokens
            seconds += SECONDS_PER_ROW * plan.num_scheduled_rows
            self._free_at[worker_id] = max(now, self._free_at[worker_id]) + seconds
            rows = worker.in_flight[-1].sampling_rows
            tokens = array("i", bytes(4 * len(rows)))
            result = StepResult(worker_id=worker_id, step_id=plan.step_id, rows=rows, token_ids=tokens)
            self._num_planned += 1
            heapq.heappush(self._results, (self._free_at[worker_id], self._num_planned, worker_id, result))

    def _take(self, events: Sequence[Event]) -> None:
        self.ended += [event for event in events if isinstance(event, Ended)]
