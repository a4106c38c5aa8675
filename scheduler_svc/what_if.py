"""What a traced life would have been under other limits: the same arrivals and outputs on simulated workers.

A step takes ``fixed + tokens x each`` seconds, fitted to the recorded steps by least squares. Requests get the outputs
they got; those that were cut off are cancelled when they were, and generate as much as they may until then. Workers
come and go as they did. The recorded limits are simulated too: two simulations are compared, and how far the first one
is from the recording shows how far to trust them. Requests that were refused are left out: nobody knows their outputs.
"""

from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from heapq import heappop, heappush
from statistics import median
from typing import Any

from scheduler_svc.core.errors import CoreError
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import (
    Admitted,
    BatchPlan,
    Committed,
    CoreConfig,
    Ended,
    EndReason,
    Event,
    Held,
    Preempted,
    RequestKey,
    StepId,
    StepResult,
    WorkerCard,
    WorkerId,
)
from scheduler_svc.expected_rows import ExpectedRows
from scheduler_svc.trace_format import BLANK

_CARD_LIMITS = ("max_num_seqs", "max_num_batched_tokens")


class Figures:
    """What callers feel of a life."""

    def __init__(self) -> None:
        self.outputs: dict[RequestKey, array[int]] = {}
        """Tokens of each request, as far as they are written."""
        self._arrived: dict[RequestKey, float] = {}
        self._first: dict[RequestKey, float] = {}
        self._num_preemptions = 0
        self._until = 0.0

    def submitted(self, key: RequestKey, now: float) -> None:
        """A request came."""
        self._arrived.setdefault(key, now)
        self.outputs.setdefault(key, array("i"))

    def committed(self, committed: Committed, now: float) -> None:
        """Tokens came."""
        for key, token_id in zip(committed.keys, committed.token_ids, strict=True):
            self.outputs[key].append(token_id)
            self._first.setdefault(key, now)
            self._until = now

    def note(self, events: Iterable[Event]) -> None:
        """Something happened."""
        self._num_preemptions += sum(1 for event in events if isinstance(event, Preempted))

    def report(self) -> dict[str, float]:
        """Rounded for people."""
        waits = sorted(at - self._arrived[key] for key, at in self._first.items())
        seconds = self._until - min(self._arrived.values(), default=0.0)
        num_tokens = sum(len(output) for output in self.outputs.values())
        return {
            "requests": len(self._arrived),
            "requests_with_output": len(waits),
            "output_tokens": num_tokens,
            "seconds": round(seconds, 3),
            "output_tokens_per_second": round(num_tokens / seconds, 2) if seconds > 0 else 0.0,
            "ttft_p50_ms": round(median(waits) * 1000, 2) if waits else 0.0,
            "ttft_p99_ms": round(waits[int(0.99 * (len(waits) - 1))] * 1000, 2) if waits else 0.0,
            "preemptions": self._num_preemptions,
        }


class History:
    """What a simulation needs of a recorded life."""

    def __init__(self) -> None:
        self.figures = Figures()
        self.arrivals: list[tuple[float, str, Any, Any]] = []
        """Calls that do not follow from the core's own answers: (now, name, subject, detail)."""
        self.stops: dict[RequestKey, int] = {}
        """Output tokens of requests that a stop string ended."""
        self._steps: list[tuple[int, float]] = []
        self._began: dict[WorkerId, deque[tuple[float, int]]] = {}
        self._free_at: dict[WorkerId, float] = {}

    def note(self, name: str, now: float, subject: Any, detail: Any, answer: Any) -> None:
        """One call and its answer, None if it was refused."""
        if answer is not None and name in ("submit", "cancel", "add_worker", "remove_worker"):
            self.arrivals.append((now, name, subject, detail))
        if name == "submit" and answer is not None:
            self.figures.submitted(subject.key, now)
        elif name == "commit" and answer is not None:
            self._note_done(subject.worker_id, now)
            self.figures.committed(answer, now)
        elif name == "plan" and answer is not None and answer[0] is not None:
            self._began.setdefault(subject, deque()).append((now, answer[0].num_scheduled_tokens))
        events = events_of(answer)
        self.figures.note(events)
        for event in events:
            if isinstance(event, Ended) and event.reason is EndReason.STOP_STRING:
                self.stops[event.key] = event.num_output_tokens

    def step_seconds(self) -> tuple[float, float]:
        """Seconds of a step, and of each of its tokens."""
        if not self._steps:
            return 0.0, 0.0
        mean_tokens = sum(tokens for tokens, _ in self._steps) / len(self._steps)
        mean_seconds = sum(seconds for _, seconds in self._steps) / len(self._steps)
        spread = sum((tokens - mean_tokens) ** 2 for tokens, _ in self._steps)
        shared = sum((tokens - mean_tokens) * (seconds - mean_seconds) for tokens, seconds in self._steps)
        each = min(max(shared / spread, 0.0), mean_seconds / mean_tokens) if spread else 0.0
        return mean_seconds - each * mean_tokens, each

    def _note_done(self, worker_id: WorkerId, now: float) -> None:
        if self._began.get(worker_id):
            began, num_tokens = self._began[worker_id].popleft()
            self._steps.append((num_tokens, now - max(began, self._free_at.get(worker_id, began))))
            self._free_at[worker_id] = now


class _Worker:
    def __init__(self) -> None:
        self.rows = ExpectedRows()
        self.keys: dict[int, RequestKey] = {}
        self.free_at = 0.0


class Simulation:
    """One life of a core among simulated workers."""

    def __init__(self, history: History, config: CoreConfig, lifted: Iterable[str] = ()) -> None:
        """``lifted``: limits that the workers have too and that shall be as in ``config``."""
        self.figures = Figures()
        self._history = history
        self._core = Scheduler(config)
        self._lifted = {name: getattr(config, name) for name in lifted if name in _CARD_LIMITS}
        self._fixed, self._each = history.step_seconds()
        self._workers: dict[WorkerId, _Worker] = {}
        self._due: list[tuple[float, int, str, Any, Any]] = []
        self._num_pushed = 0

    def run(self) -> dict[str, float]:
        """Lives until nothing is left to happen."""
        for now, name, subject, detail in self._history.arrivals:
            self._push(now, name, subject, detail)
        while True:
            expiry = self._core.next_expiry()
            if expiry is not None and (not self._due or expiry < self._due[0][0]):
                now = expiry
                self._take(self._core.expire(now), now)
            elif self._due:
                now, _, name, subject, detail = heappop(self._due)
                self._act(name, subject, detail, now)
            else:
                return self.figures.report()
            for worker_id, worker in self._workers.items():
                self._plan(worker_id, worker, now)

    def _act(self, name: str, subject: Any, detail: Any, now: float) -> None:
        core = self._core
        if name == "result":
            self._commit(subject, detail, now)
        elif name == "cancel":
            self._take(core.cancel(subject, detail, now), now)
        elif name == "remove_worker":
            self._workers.pop(subject, None)
            self._take(core.remove_worker(subject, now), now)
        elif name == "add_worker":
            card: WorkerCard = replace(subject, **self._lifted)
            self._take(core.add_worker(card, now), now)
            self._workers[card.worker_id] = _Worker()
        else:
            self.figures.submitted(subject.key, now)
            try:
                self._take(core.submit(subject, now), now)
            except CoreError:
                return  # refused, as the figures show

    def _plan(self, worker_id: WorkerId, worker: _Worker, now: float) -> None:
        while True:
            plan, events = self._core.plan(worker_id, now)
            if plan is None:
                self._take(events, now)
                return
            admitted = [event.key for event in events if isinstance(event, Admitted)]
            worker.keys.update(zip((row.row for row in plan.new_rows), admitted, strict=True))
            self._launch(worker, plan, now)
            self._take(events, now)

    def _launch(self, worker: _Worker, plan: BatchPlan, now: float) -> None:
        rows = worker.rows.apply(plan)
        worker.free_at = max(now, worker.free_at) + self._fixed + self._each * plan.num_scheduled_tokens
        keys = [worker.keys[row] for row in rows]
        self._push(worker.free_at, "result", (plan.worker_id, plan.step_id), (rows, keys))

    def _commit(self, step: tuple[WorkerId, StepId], work: "tuple[array[int], list[RequestKey]]", now: float) -> None:
        rows, keys = work
        token_ids = array("i", map(self._next_token, keys))
        result = StepResult(worker_id=step[0], step_id=step[1], rows=rows, token_ids=token_ids)
        committed = self._core.commit(result, now)
        self.figures.committed(committed, now)
        self._take(committed.events, now)
        for key in committed.keys:
            if self._history.stops.get(key) == len(self.figures.outputs[key]):
                self._take(self._core.stop(key, self._history.stops[key], now), now)

    def _next_token(self, key: RequestKey) -> int:
        """What it got at this place."""
        recorded, position = self._history.figures.outputs[key], len(self.figures.outputs[key])
        return recorded[position] if position < len(recorded) else BLANK

    def _take(self, events: Iterable[Event], now: float) -> None:
        events = list(events)
        self.figures.note(events)
        for event in events:
            if isinstance(event, Held):
                self._take(self._core.scanned(event.key, now), now)

    def _push(self, now: float, name: str, subject: Any, detail: Any) -> None:
        self._num_pushed += 1  # what was pushed first comes first
        heappush(self._due, (now, self._num_pushed, name, subject, detail))


def events_of(answer: Any) -> list[Event]:
    """The events of whatever the core answered; a count, names of pages and None have none."""
    if isinstance(answer, Committed):
        return list(answer.events)
    if isinstance(answer, tuple):
        return list(answer[1])
    return answer if isinstance(answer, list) else []


def compare(history: History, recorded: CoreConfig, changes: dict[str, int]) -> dict[str, dict[str, float]]:
    """The recording, its simulation, and the simulation under other limits."""
    return {
        "recorded": history.figures.report(),
        "simulated": Simulation(history, recorded).run(),
        "with changes": Simulation(history, replace(recorded, **changes), lifted=changes).run(),  # type: ignore[arg-type]
    }
