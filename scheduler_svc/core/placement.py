"""Which worker a request waits for: the one that will have computed its prompt soonest, as far as one can tell.

A worker's cost for a request, in tokens to compute, is

    backlog    what requests that wait there are expected to compute before they begin to answer
    + misses   what the request itself must compute: its tokens less those of its longest cached prefix; twice, because
               that delays the request and is work which another worker would not have
    + load     a step's budget times how full the worker is, in rows or in slots, whichever is fuller

so a long prefix outweighs some load and a short one does not. A prefix counts as cached, too, on the worker that a
request with the same prefix was placed on last (``homes``), before anything of it is computed: requests that come
together stay together, and a family of prompts moves only when its worker is busier by more than the prefix is worth.

A worker that would cut a request short is taken only if no other is there. Outputs of one request go where the first of
them went, to share its prompt. Requests are placed when they are submitted,
when a worker comes or goes while they wait, and when another worker has nothing to begin while theirs cannot begin them
soon (``rebalance``); without a worker that can hold it, a request is unplaced.

Invariant: every live request that is not held is placed or unplaced. Cost: the number of workers, and the logarithm of
the prompt's pages for each that has its first page.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from scheduler_svc.core.errors import InvariantViolation
from scheduler_svc.core.request import Request, State
from scheduler_svc.core.types import PageHash, RequestKey, WorkerId
from scheduler_svc.core.worker import Worker

MAX_HOMES: Final = 65_536
"""Names remembered; the oldest are forgotten."""
MOST_MOVED: Final = 64
"""Requests that one call of ``rebalance`` moves at most."""


class Placement:
    """All workers, and who waits where."""

    __slots__ = ("_homes", "capacity", "page_size", "unplaced", "workers")

    def __init__(self) -> None:
        self.workers: dict[WorkerId, Worker] = {}
        self.unplaced: dict[RequestKey, Request] = {}
        """In the order of ``unplaced_since``."""
        self.capacity = 0
        """Most tokens of one request on any worker; without workers what it was last."""
        self.page_size = 0
        """Of all workers; 0 as long as none has joined."""
        self._homes: OrderedDict[PageHash, WorkerId] = OrderedDict()

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

    def choose(self, request: Request) -> tuple[Worker, int] | None:
        """The worker to wait for, and the prompt tokens expected to be cached there; None if none can hold it."""
        able = [worker for worker in self.workers.values() if request.num_tokens < worker.capacity]
        wanted = _wanted(request, self.capacity)
        able = [worker for worker in able if worker.capacity >= wanted] or able
        if request.family:
            home = {member.worker_id for member in request.family if member is not request}
            able = [worker for worker in able if worker.card.worker_id in home] or able
        hits = self._num_cached_tokens(request, able)
        costs = [(_cost(worker, request, hit), index) for index, (worker, hit) in enumerate(hits)]
        return hits[min(costs)[1]] if costs else None

    def place(self, request: Request, now: float) -> None:
        """Lets a waiting request wait for a worker, if one can hold it."""
        chosen = self.choose(request)
        if chosen is not None:
            self.put(request, *chosen)
        elif request.key not in self.unplaced:
            request.unplaced_since = now
            self.unplaced[request.key] = request

    def put(self, request: Request, worker: Worker, num_cached_tokens: int) -> None:
        """Lets a waiting request wait for this worker."""
        self.unplaced.pop(request.key, None)
        request.worker_id = worker.card.worker_id
        request.load = request.backlog = request.num_tokens - num_cached_tokens
        request.pages_needed = 0
        worker.load += request.load
        worker.backlog += request.backlog
        worker.num_placed += 1
        worker.stops.add(request.stop_token_ids)
        worker.queue.push(request)
        if len(self.workers) > 1:
            self._settle(request.hashes or (), worker.card.worker_id)

    def place_all(self, requests: Iterable[Request], now: float) -> None:
        """Places waiting requests in their order."""
        for request in sorted(requests, key=lambda request: request.order):
            self.place(request, now)

    def rebalance(self, worker: Worker) -> list[Request]:
        """A worker that has room and nothing to begin takes over what waits where it cannot begin soon, in its order.

        Only what it can begin at once, so nothing moves back and forth, and no outputs that share a prompt. What moved.
        """
        moved: list[Request] = []
        if worker.num_rows_left <= 0 or worker.prefilling or worker.queue.peek() is not None:
            return moved
        donor = max((other for other in self.workers.values() if other.is_stuck()), key=_backlog, default=None)
        room, budget = worker.pool.num_available - worker.num_spare_pages, worker.max_tokens_per_step
        while donor is not None and donor.is_stuck() and budget > 0 and len(moved) < worker.num_rows_left:
            request = donor.queue.peek()
            if request is None or len(moved) == MOST_MOVED or len(request.family) > 1:
                break
            if _wanted(request, donor.capacity) > worker.capacity:
                break
            room -= worker.num_pages_for(request.num_tokens)
            if room < 0:
                break
            donor.queue.pop()
            self._take_off(donor, request)
            self.put(request, *self._num_cached_tokens(request, [worker])[0])
            budget -= request.load
            moved.append(request)
        return moved

    def withdraw(self, request: Request) -> None:
        """Takes a request off its worker, or out of the unplaced, before it ends or is held."""
        if self.unplaced.pop(request.key, None) is not None or request.state is State.HELD:
            return
        worker = self.worker_of(request)
        self._take_off(worker, request)
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

    def _take_off(self, worker: Worker, request: Request) -> None:
        worker.load -= request.load
        worker.begin(request)
        worker.num_placed -= 1
        worker.stops.remove(request.stop_token_ids)

    def _see_capacity(self) -> None:
        if self.workers:
            self.capacity = max(worker.capacity for worker in self.workers.values())

    def _place_again(self, now: float) -> None:
        waiting = list(self.unplaced.values())
        for worker in self.workers.values():
            drained = worker.drain()
            for request in drained:
                self._take_off(worker, request)
            waiting += drained
        self.place_all(waiting, now)

    def _num_cached_tokens(self, request: Request, workers: Sequence[Worker]) -> list[tuple[Worker, int]]:
        """For each worker how many of a request's leading tokens are cached there, or soon will be."""
        limit = (request.num_tokens - 1) // self.page_size if workers else 0
        names = (request.hashes or ())[:limit]
        home, num_at_home = self._home_of(names)
        hits = []
        for worker in workers:
            num_pages = worker.pool.cache.num_leading(names) if names else 0
            if worker.card.worker_id == home:
                num_pages = max(num_pages, num_at_home)
            hits.append((worker, num_pages * self.page_size))
        return hits

    def _home_of(self, names: Sequence[PageHash]) -> tuple[WorkerId | None, int]:
        """Where a request with the longest common prefix was placed last, and its pages, to a power of two."""
        for index in _marks(len(names)) if self._homes else ():
            home = self._homes.get(names[index])
            if home is not None:
                return home, index + 1
        return None, 0

    def _settle(self, names: Sequence[PageHash], worker_id: WorkerId) -> None:
        homes = self._homes
        for index in _marks(len(names)):
            homes[names[index]] = worker_id
            homes.move_to_end(names[index])
        while len(homes) > MAX_HOMES:
            homes.popitem(last=False)


def _marks(num_pages: int) -> Iterable[int]:
    """Indices of the pages that stand for a chain, descending: the last one, and those that end 1, 2, 4... pages."""
    marks = [num_pages - 1] if num_pages else []
    marks += [(1 << power) - 1 for power in range(num_pages.bit_length() - 1, -1, -1) if (1 << power) < num_pages]
    return marks


def _backlog(worker: Worker) -> int:
    return worker.backlog


def _wanted(request: Request, most: int) -> int:
    """Tokens it may become."""
    return min(request.num_prompt + request.new.max_tokens, most)


def _cost(worker: Worker, request: Request, num_cached_tokens: int) -> float:
    rows = worker.num_placed / worker.num_rows
    slots = worker.load / worker.num_slots
    num_misses = request.num_tokens - num_cached_tokens
    return worker.backlog + 2 * num_misses + max(rows, slots) * worker.max_tokens_per_step
