"""Requests that wait for a worker, in the order in which they will be admitted.

Whose turn it is among tenants their accounts say (accounts.py); a tenant's own requests stand in a line, by the keys of
the policy. A line is a heap. Requests that were parked elsewhere (claims.py) come back as a heap of their own: only its
head is put in, the rest follows one by one, so that ten thousand of them cost a step no more than one. An entry whose
request waits no more is dropped when it reaches the head, or when half of a line's entries are of that kind.

Cost of the head: the lines whose tenants were charged since and are next, nearly always one.
"""

from heapq import heappop, heappush, heapreplace
from math import inf

from scheduler_svc.core.accounts import Account
from scheduler_svc.core.request import Order, Request, State

Heap = list[tuple[Order, Request]]
Parked = dict[Account, Heap]
"""Requests that wait for one thing, by tenant."""

_FEW = 64


class WaitingQueue:
    """The lines of all tenants."""

    __slots__ = ("_lines", "_turns")

    def __init__(self) -> None:
        self._lines: dict[Account, _Line] = {}
        self._turns: list[tuple[float, int, _Line]] = []  # a heap by (counter, account); counters may have grown since

    def push(self, request: Request) -> None:
        """Puts a request at its place."""
        line = self._line(request.account)
        line.last_order = max(line.last_order, request.order)
        line.merge([(request.order, request)])

    def merge(self, parked: Parked) -> None:
        """Puts all these requests at their places; takes the heaps over. Costs no more than one ``push`` a tenant."""
        for account, heap in parked.items():
            self._line(account).merge(heap)

    def peek(self) -> Request | None:
        """The request to admit next."""
        turns = self._turns
        while turns:
            counter, number, line = turns[0]
            request = line.peek()
            if request is None:
                heappop(turns)
                del self._lines[line.account]
            elif line.account.counter > counter:
                heapreplace(turns, (line.account.counter, number, line))
            else:
                return request
        return None

    def is_last(self, request: Request) -> bool:
        """Whether it would come after all that its tenant has in line."""
        line = self._lines.get(request.account)
        return line is not None and line.last_order < request.order

    @property
    def num_lines(self) -> int:
        """Tenants that may have requests here."""
        return len(self._lines)

    def pop(self) -> None:
        """Takes out what ``peek`` gave."""
        self._turns[0][2].pop()

    def note_gone(self, request: Request) -> None:
        """A waiting request has ended where it was."""
        line = self._lines.get(request.account)
        if line is not None:
            line.note_gone()

    def requests(self) -> list[Request]:
        """All that wait here; within a tenant in no particular order."""
        return [request for line in self._lines.values() for request in line.requests()]

    def before(self, request: Request) -> tuple[int, int] | None:
        """Requests of its tenant that come before a waiting one, and those of other tenants that wait; None if it is in
        no line here. Costs the number of all."""
        own = self._lines.get(request.account)
        waiting = [] if own is None else own.requests()
        if request not in waiting:
            return None
        num_others = len(self.requests()) - len(waiting)
        return sum(1 for other in waiting if other.order < request.order), num_others

    def drain(self) -> list[Request]:
        """Takes all out."""
        waiting = self.requests()
        self._lines = {}
        self._turns = []
        return waiting

    def _line(self, account: Account) -> "_Line":
        line = self._lines.get(account)
        if line is None:
            line = self._lines[account] = _Line(account)
            heappush(self._turns, (account.counter, account.number, line))
        return line


class _Line:
    """One tenant's requests."""

    __slots__ = ("_heap", "_num_entries", "_num_gone", "account", "last_order")

    def __init__(self, account: Account) -> None:
        self.account = account
        self.last_order: Order = (-inf, -inf, 0)
        """The greatest of those that were pushed by themselves."""
        self._heap: list[tuple[Order, Request, Heap]] = []
        self._num_entries = 0
        self._num_gone = 0

    def merge(self, heap: Heap) -> None:
        self._num_entries += len(heap)
        order, request = heappop(heap)
        heappush(self._heap, (order, request, heap))

    def peek(self) -> Request | None:
        heap = self._heap
        while heap:
            request = heap[0][1]
            if request.state is State.WAITING:
                return request
            self.pop()
        return None

    def pop(self) -> None:
        self._num_entries -= 1
        rest = self._heap[0][2]
        if rest:
            order, request = heappop(rest)
            heapreplace(self._heap, (order, request, rest))
        else:
            heappop(self._heap)

    def note_gone(self) -> None:
        self._num_gone += 1
        if self._num_gone > _FEW and self._num_gone * 2 > self._num_entries:
            waiting = self.requests()
            self._heap = []
            self._num_entries = self._num_gone = 0
            for request in waiting:
                self.merge([(request.order, request)])

    def requests(self) -> list[Request]:
        waiting = [request for _, request, _ in self._heap]
        for _, _, rest in self._heap:
            waiting += [request for _, request in rest]
        return [request for request in waiting if request.state is State.WAITING]
