"""A joined worker: what it was sent in this epoch, and what of its answers is believed.

Step ids are contiguous. A result must be the next one and name the rows its plan made sample, with ids of the
vocabulary. Nothing here sends: the methods say what is wrong, the link acts.
"""

from array import array
from collections import deque
from dataclasses import dataclass, field

from scheduler_svc.columns import ids_are_below
from scheduler_svc.core.types import StepId, WorkerId
from scheduler_svc.expected_rows import ExpectedRows
from scheduler_svc.liveness import StepClock
from scheduler_svc.messages import WorkerHello, WorkerResult
from scheduler_svc.router import Peer

_STATUS_FINE = 0
_LAST_STATUS = 2


@dataclass(slots=True, kw_only=True)
class PlanInFlight:
    """A plan whose result has not come."""

    step_id: StepId
    expected: "array[int]"
    num_tokens: int
    since: float
    """When the worker could begin with it."""
    said_done: bool = False
    """A heartbeat called it done."""


@dataclass(slots=True, kw_only=True)
class JoinedWorker:
    """From its welcome until it is lost."""

    worker_id: WorkerId
    peer: Peer
    epoch: int
    hello: WorkerHello
    last_heard: float
    last_sent: float
    first_step_id: StepId
    next_step_id: int
    """Of the result that is due."""
    is_warm: bool
    """Its inventory was taken."""
    confirmed: bool = False
    """It has spoken as this worker: it knows that it is welcome."""
    in_flight: "deque[PlanInFlight]" = field(default_factory=deque)
    outgoing: "deque[bytes]" = field(default_factory=deque)
    """The last of those in flight: they wait for room in its queue."""
    names: "deque[bytes]" = field(default_factory=deque)
    """They belong before all that is outgoing: a worker has all its plans when it has nothing to do."""
    expected_rows: ExpectedRows = field(default_factory=ExpectedRows)
    steps: StepClock = field(default_factory=StepClock)

    def fault(self, step_id: StepId, body: WorkerResult) -> str:
        """Why the result cannot be believed; empty if it can."""
        if step_id != self.next_step_id:
            return f"the result of step {self.next_step_id} is missing, {step_id} came"
        if len(self.in_flight) <= len(self.outgoing):
            return f"a result of step {step_id}, which was never sent"
        if body.failure is not None:
            return f"step {step_id} failed and has rows" if body.rows else ""
        if body.rows != self.in_flight[0].expected:
            return f"the rows of step {step_id} are not those that were planned"
        if body.statuses and max(body.statuses) > _LAST_STATUS:
            return f"a status of step {step_id} has no meaning"
        if not ids_exist(body, self.hello.vocab_size):
            return f"a token id of step {step_id} is not in the vocabulary"
        return ""

    def loss(self, done: int, received: int, now: float, timeout_seconds: float) -> str:
        """What a heartbeat shows to be lost on the way; empty if nothing.

        A worker sends a result before it calls the step done: if the result is not here by the next heartbeat, it was
        lost. A worker that is idle receives at once: if it has not seen the plan for long, that was lost.
        """
        num_sent = len(self.in_flight) - len(self.outgoing)
        if max(done, received) >= self.next_step_id + num_sent:
            return f"it speaks of step {max(done, received)}, which was never sent"
        if not num_sent:
            return ""
        head = self.in_flight[0]
        if done >= head.step_id and head.said_done:
            return f"the result of step {head.step_id} was lost"
        if received < head.step_id and now - head.since > timeout_seconds:
            return f"the plan of step {head.step_id} was lost"
        head.said_done = done >= head.step_id
        return ""

    def delay(self, now: float, timeout_seconds: float) -> str:
        """What takes too long: a word of it, or its step; empty if nothing does."""
        if now - self.last_heard > timeout_seconds:
            return f"nothing heard for {now - self.last_heard:.1f} s"
        if self.in_flight and not self.outgoing:
            head = self.in_flight[0]
            if now - head.since > self.steps.allowed(head.num_tokens):
                return f"step {head.step_id} takes longer than {now - head.since:.1f} s"
        return ""


def ids_exist(body: WorkerResult, vocab_size: int) -> bool:
    """Whether the ids of rows without a fault are ids of the vocabulary."""
    token_ids = body.token_ids
    if ids_are_below(token_ids, vocab_size):
        return True
    if not body.statuses:
        return False
    pairs = zip(token_ids, body.statuses, strict=True)
    return all(status != _STATUS_FINE or 0 <= token_id < vocab_size for token_id, status in pairs)
