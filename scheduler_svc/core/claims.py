"""Pages that a running request is going to compute, by their names, and the requests that wait for them.

Computing a page twice is waste; reading it before it is written is corruption. So a request claims the prompt pages it
will compute when it is admitted, and a request whose next page is claimed is parked until the claim ends: by the
page's publication, or with the claimer's end or preemption (then the first of the parked takes over). Others pass it.

Invariant: a claimer runs on this worker or has its last step in flight there, and a claimed name is among its own.
"""

from collections.abc import Iterator, Sequence
from heapq import heappush

from scheduler_svc.core.request import Request, State
from scheduler_svc.core.types import PageHash, RequestKey
from scheduler_svc.core.waiting import Parked


class Claims:
    """Claims on one worker."""

    __slots__ = ("_claimers", "_names", "_parked")

    def __init__(self) -> None:
        self._claimers: dict[PageHash, Request] = {}
        self._parked: dict[PageHash, Parked] = {}  # who waits for a claim, if anybody does
        self._names: dict[RequestKey, list[PageHash]] = {}  # what each claimed; some of it may have ended

    def __len__(self) -> int:
        return len(self._claimers)

    def claim(self, claimer: Request, hashes: Sequence[PageHash]) -> None:
        """Claims these names, except those that somebody has claimed already."""
        claimers = self._claimers
        mine = [page_hash for page_hash in hashes if page_hash not in claimers]
        if mine:
            self._names[claimer.key] = mine
            claimers.update(dict.fromkeys(mine, claimer))

    def blocker(self, hashes: Sequence[PageHash], start: int) -> PageHash | None:
        """The claim that a request has to wait for whose next page is ``hashes[start]``; None if that is not claimed.

        Of a run of names with one claimer it is the last: the claimer publishes them in order.
        """
        last: PageHash | None = None
        first_claimer: Request | None = None
        for index in range(start, len(hashes)):
            claimer = self._claimers.get(hashes[index])
            if claimer is None or (first_claimer is not None and claimer is not first_claimer):
                break
            last, first_claimer = hashes[index], claimer
        return last

    def claimer(self, page_hash: PageHash) -> Request:
        """Who computes a claimed page."""
        return self._claimers[page_hash]

    def park(self, request: Request, page_hash: PageHash) -> None:
        """Lets a waiting request wait for a claim's end."""
        parked = self._parked.setdefault(page_hash, {})
        heappush(parked.setdefault(request.account, []), (request.order, request))

    def end(self, page_hash: PageHash) -> Parked:
        """Ends a claim, whoever has it; returns whom it kept waiting."""
        if self._claimers.pop(page_hash, None) is None:
            return {}
        return self._parked.pop(page_hash, {})

    def end_all(self, claimer: Request) -> list[Parked]:
        """Ends all of a claimer's claims; returns whom each of them kept waiting."""
        claimers, names = self._claimers, self._names.pop(claimer.key, ())
        return [self.end(page_hash) for page_hash in names if claimers.get(page_hash) is claimer]

    def drain(self) -> list[Parked]:
        """Takes all out that are parked; the claims stay."""
        parked, self._parked = self._parked, {}
        return list(parked.values())

    def num_parked(self) -> int:
        """Requests that wait for a claim's end. Costs their number."""
        entries = (entry for parked in self._parked.values() for heap in parked.values() for entry in heap)
        return sum(1 for _, request in entries if request.state is State.WAITING)

    def items(self) -> Iterator[tuple[PageHash, Request, Parked]]:
        """Name, claimer and parked requests of every claim."""
        parked = self._parked
        return ((page_hash, claimer, parked.get(page_hash, {})) for page_hash, claimer in self._claimers.items())
