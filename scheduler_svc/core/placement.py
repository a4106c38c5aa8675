"""Which worker a request waits for: the one with the least load that can hold all it may become.

A worker that would cut it short is taken only if no other is there. Load is counted in tokens of all requests placed
on a worker, running or waiting. Outputs of one request go where the first of them went, to share its prompt. A request
is placed when it is submitted and again when a worker comes or goes while it waits; without a worker that can hold it,
it is unplaced. Invariant: every live request that is not held is placed or unplaced.
"""

from collections.abc import Iterable

from scheduler_svc.core.errors import InvariantViolation
from scheduler_svc.core.request import Request, State
from scheduler_svc.core.types import RequestKey, WorkerId
from scheduler_svc.core.worker import Worker


class Placement:
    """All workers, and who waits where."""

    __slots__ = ("capacity", "page_size", "unplaced", "workers")

    def __init__(self) -> None:
        self.workers: dict[WorkerId, Worker] = {}
        self.unplaced: dict[RequestKey, Request] = {}
        """In the order of ``unplaced_since``."""
        self.capacity = 0
        """Most tokens of one request on any worker; without workers what it was last."""
        self.page_size = 0
        """Of all workers; 0 as long as none has joined."""

    def join(self, worker: Worker, now: float) -> None:
        """A worker comes: waiting requests spread over it too."""
        self.workers[worker.card.worker_id] = worker
        self.page_size = worker.page_size
        self._see_capacity()
        self._place_again(now)

    def leave(self, worker: Worker) -> None:
        """A worker goes; its requests wait already (in its queue)."""
        del self.workers[worker.card.worker_id]
        self._see_capacity()

    def place(self, request: Request, now: float) -> None:
        """Lets a waiting request wait where its family is, else for the least loaded worker that can hold it."""
        wanted = min(request.num_prompt + request.new.max_tokens, self.capacity)
        home = {member.worker_id for member in request.family if member is not request}
        best = min(
            (worker for worker in self.workers.values() if request.num_tokens < worker.capacity),
            key=lambda worker: (worker.capacity < wanted, worker.card.worker_id not in home, worker.load),
            default=None,
        )
        if best is None:
            if request.key not in self.unplaced:
                request.unplaced_since = now
                self.unplaced[request.key] = request
            return
        self.unplaced.pop(request.key, None)
        request.worker_id = best.card.worker_id
        request.load = request.num_tokens
        request.pages_needed = 0
        best.load += request.load
        best.stops.add(request.stop_token_ids)
        best.queue.push(request)

    def place_all(self, requests: Iterable[Request], now: float) -> None:
        """Places waiting requests in their order."""
        for request in sorted(requests, key=lambda request: request.order):
            self.place(request, now)

    def withdraw(self, request: Request) -> None:
        """Takes a request off its worker, or out of the unplaced, before it ends or is held."""
        if self.unplaced.pop(request.key, None) is not None or request.state is State.HELD:
            return
        worker = self.worker_of(request)
        worker.load -= request.load
        worker.stops.remove(request.stop_token_ids)
        worker.collect(request)
        worker.drop(request)
        worker.end_claims(request)
        if request.residence is not None:
            worker.vacate(request.residence)
        elif request.state is State.WAITING:
            worker.queue.note_gone(request)

    def collect(self, request: Request) -> None:
        """Completes a request's output by all tokens that have come."""
        if request.key not in self.unplaced and request.state is not State.HELD:
            self.worker_of(request).collect(request)

    def worker_of(self, request: Request) -> Worker:
        """The worker a placed request is on."""
        if request.worker_id is None:
            raise InvariantViolation(f"request {request.key} is on no worker")
        return self.workers[request.worker_id]

    def _see_capacity(self) -> None:
        if self.workers:
            self.capacity = max(worker.capacity for worker in self.workers.values())

    def _place_again(self, now: float) -> None:
        waiting = list(self.unplaced.values())
        for worker in self.workers.values():
            drained = worker.drain()
            for request in drained:
                worker.load -= request.load
                worker.stops.remove(request.stop_token_ids)
            waiting += drained
        self.place_all(waiting, now)
