"""When waiting or running requests run out of time. A heap by time; entries of ended requests are dropped lazily."""

from heapq import heapify, heappop, heappush

from scheduler_svc.core.request import Request, State
from scheduler_svc.core.types import EndReason

_FEW = 64


class Expiry:
    """Deadlines and time limits of all live requests."""

    __slots__ = ("_heap", "_num_gone", "_num_pushed")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, EndReason, Request]] = []
        self._num_gone = 0
        self._num_pushed = 0

    def watch(self, request: Request) -> None:
        """Takes a new request's limits; of two at one time the deadline counts."""
        limits = ((request.new.deadline, EndReason.DEADLINE), (request.new.time_limit, EndReason.TIME_LIMIT))
        for time, reason in limits:
            if time is not None:
                self._num_pushed += 1  # makes entries unique, so that requests are never compared
                heappush(self._heap, (time, self._num_pushed, reason, request))

    def next(self) -> float | None:
        """The earliest time limit of a live request."""
        while self._heap:
            time, _, _, request = self._heap[0]
            if request.state is not State.ENDED:
                return time
            heappop(self._heap)
        return None

    def pop(self) -> tuple[Request, EndReason]:
        """Takes the entry out that ``next`` told of."""
        _, _, reason, request = heappop(self._heap)
        return request, reason

    def note_gone(self, request: Request) -> None:
        """A request has ended."""
        self._num_gone += (request.new.deadline is not None) + (request.new.time_limit is not None)
        if self._num_gone > _FEW and self._num_gone * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[3].state is not State.ENDED]
            heapify(self._heap)
            self._num_gone = 0
