"""What steps tell: where their time goes, how many tokens they hold, how long tokens keep callers waiting.

Counted once a step, never once a token: all rows that went on decoding have waited for the same time, since the
worker's result before. Rows that begin, or go on after a preemption, are looked at one by one; they are few.
"""

from collections import deque
from dataclasses import dataclass, field

from scheduler_svc.core.types import BatchPlan, Committed, StepId, StepResult, WorkerId
from scheduler_svc.histogram import FIRST_TOKEN_SECONDS, STEP_SECONDS, STEP_TOKENS, TOKEN_SECONDS, Histogram
from scheduler_svc.requests import Output, Requests


@dataclass(slots=True)
class _Worker:
    num_in_flight: int = 0
    last_step_id: StepId | None = None
    last_result_at: float | None = None
    cancels: deque[tuple[StepId, float]] = field(default_factory=deque)
    """Requests cancelled while steps were in flight: the last of those, and when."""


class StepMetrics:
    """Told of each plan and each result."""

    def __init__(self, requests: Requests) -> None:
        self.tokens = Histogram(STEP_TOKENS)
        self.seconds = {part: Histogram(STEP_SECONDS) for part in ("plan", "wire", "worker", "idle")}
        self.first_token = Histogram(FIRST_TOKEN_SECONDS)
        self.inter_token = Histogram(TOKEN_SECONDS)
        self.cancel_to_free = Histogram(STEP_SECONDS)
        self._requests = requests
        self._workers: dict[WorkerId, _Worker] = {}

    def planned(self, plan: BatchPlan, seconds: float, now: float) -> None:
        """A plan that took so long to make goes out."""
        worker = self._workers.setdefault(plan.worker_id, _Worker())
        if not worker.num_in_flight and worker.last_result_at is not None:
            self.seconds["idle"].observe(now - worker.last_result_at)
        worker.num_in_flight += 1
        worker.last_step_id = plan.step_id
        self.seconds["plan"].observe(seconds)
        self.tokens.observe(plan.num_scheduled_tokens)

    def committed(self, result: StepResult, committed: Committed, elapsed_seconds: float, now: float) -> None:
        """A result came, so long after its worker could begin; before its events are told to anyone."""
        worker = self._workers.setdefault(result.worker_id, _Worker())
        worker.num_in_flight = max(0, worker.num_in_flight - 1)
        if result.seconds:
            self.seconds["worker"].observe(result.seconds)
        self.seconds["wire"].observe(elapsed_seconds - result.seconds)
        for key in committed.keys[: committed.num_firsts]:
            output = self._requests.output(key)
            if output is not None:
                self._begin(output, now)
        num_decoding = len(committed.keys) - committed.num_firsts
        if num_decoding and worker.last_result_at is not None:
            self.inter_token.observe(now - worker.last_result_at, num_decoding)
        worker.last_result_at = now
        while worker.cancels and worker.cancels[0][0] <= result.step_id:
            self.cancel_to_free.observe(now - worker.cancels.popleft()[1])

    def cancelled(self, output: Output, now: float) -> None:
        """An output was ended from outside: its pages are free once no step in flight can write them."""
        worker = self._workers.get(WorkerId(output.worker_id))
        if output.running and worker is not None and worker.num_in_flight and worker.last_step_id is not None:
            worker.cancels.append((worker.last_step_id, now))
        else:
            self.cancel_to_free.observe(0.0)

    def lost(self, worker_id: WorkerId, now: float) -> None:
        """A worker is gone, with all its pages."""
        worker = self._workers.pop(worker_id, _Worker())
        for _, at in worker.cancels:
            self.cancel_to_free.observe(now - at)

    def _begin(self, output: Output, now: float) -> None:
        """An output's first token, or the first after a preemption."""
        request = output.request
        if output.has_token:
            if output.preempted_at is not None:
                self.inter_token.observe(now - output.preempted_at)
                output.preempted_at = None
            return
        output.has_token = True
        if not request.has_token:
            request.has_token = True
            self.first_token.observe(now - request.submitted_at)
