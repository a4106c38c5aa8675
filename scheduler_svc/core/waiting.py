"""Requests that wait for a worker, in the order in which they will be admitted.

A heap by (priority, arrival). Requests that were parked elsewhere (claims.py) come back as a heap of their own: only
its head is put in, the rest follows one by one, so that ten thousand of them cost a step no more than one. An entry
whose request waits no more is dropped when it reaches the head, or when half of all entries are of that kind.
"""

from heapq import heappop, heappush, heapreplace

from scheduler_svc.core.request import Order, Request, State

Heap = list[tuple[Order, Request]]

_FEW = 64


class WaitingQueue:
    """First come first served within a priority."""

    __slots__ = ("_heap", "_num_entries", "_num_gone")

    def __init__(self) -> None:
        self._heap: list[tuple[Order, Request, Heap]] = []
        self._num_entries = 0
        self._num_gone = 0

    def push(self, request: Request) -> None:
        """Puts a request at its place."""
        heappush(self._heap, (request.order, request, []))
        self._num_entries += 1

    def merge(self, heap: Heap) -> None:
        """Puts all requests of a heap at their places; takes the list over. Costs no more than one ``push``."""
        self._num_entries += len(heap)
        if heap:
            order, request = heappop(heap)
            heappush(self._heap, (order, request, heap))

    def peek(self) -> Request | None:
        """The request to admit next."""
        heap = self._heap
        while heap:
            request = heap[0][1]
            if request.state is State.WAITING:
                return request
            self.pop()
        return None

    def pop(self) -> None:
        """Takes the head out."""
        self._num_entries -= 1
        rest = self._heap[0][2]
        if rest:
            order, request = heappop(rest)
            heapreplace(self._heap, (order, request, rest))
        else:
            heappop(self._heap)

    def note_gone(self) -> None:
        """A waiting request has ended where it was."""
        self._num_gone += 1
        if self._num_gone > _FEW and self._num_gone * 2 > self._num_entries:
            for request in self.drain():
                self.push(request)

    def requests(self) -> list[Request]:
        """All that wait here, in no particular order."""
        waiting = [request for _, request, _ in self._heap]
        for _, _, rest in self._heap:
            waiting += [request for _, request in rest]
        return [request for request in waiting if request.state is State.WAITING]

    def drain(self) -> list[Request]:
        """Takes all out."""
        waiting = self.requests()
        self._heap = []
        self._num_entries = 0
        self._num_gone = 0
        return waiting
