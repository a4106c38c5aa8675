"""Pages that a running request is going to compute, by their names, and the requests that wait for them.

Computing a page twice is waste; reading it before it is written is corruption. So a request claims the prompt pages it
will compute when it is admitted, and a request whose next page is claimed is parked until the claim ends: by the
page's publication, or with the claimer's end or preemption (then the first of the parked takes over). Others pass it.

Invariant: a claimer runs on this worker or has its last step in flight there, and a claimed name is among its own.
"""

from collections.abc import Iterator, Sequence
from heapq import heappush

from scheduler_svc.core.request import Request
from scheduler_svc.core.types import PageHash, RequestKey
from scheduler_svc.core.waiting import Parked


class _Claim:
    __slots__ = ("claimer", "parked")

    def __init__(self, claimer: Request) -> None:
        self.claimer = claimer
        self.parked: Parked = {}


class Claims:
    """Claims on one worker."""

    __slots__ = ("_claims", "_open")

    def __init__(self) -> None:
        self._claims: dict[PageHash, _Claim] = {}
        self._open: dict[RequestKey, dict[PageHash, None]] = {}  # names a claimer has yet to publish, in order

    def claim(self, claimer: Request, hashes: Sequence[PageHash]) -> None:
        """Claims these names, except those that somebody has claimed already."""
        mine = {page_hash: None for page_hash in hashes if page_hash not in self._claims}
        if mine:
            self._open[claimer.key] = mine
            for page_hash in mine:
                self._claims[page_hash] = _Claim(claimer)

    def blocker(self, hashes: Sequence[PageHash], start: int, stop: int) -> PageHash | None:
        """The claim that a request has to wait for whose next page is ``hashes[start]``; None if that is not claimed.

        Of a run of names with one claimer it is the last: the claimer publishes them in order.
        """
        last: PageHash | None = None
        claimer: Request | None = None
        for index in range(start, stop):
            claim = self._claims.get(hashes[index])
            if claim is None or (claimer is not None and claim.claimer is not claimer):
                break
            last, claimer = hashes[index], claim.claimer
        return last

    def claimer(self, page_hash: PageHash) -> Request:
        """Who computes a claimed page."""
        return self._claims[page_hash].claimer

    def park(self, request: Request, page_hash: PageHash) -> None:
        """Lets a waiting request wait for a claim's end."""
        heappush(self._claims[page_hash].parked.setdefault(request.account, []), (request.order, request))

    def end(self, page_hash: PageHash) -> Parked:
        """Ends a claim, whoever has it; returns whom it kept waiting."""
        claim = self._claims.pop(page_hash, None)
        if claim is None:
            return {}
        mine = self._open[claim.claimer.key]
        del mine[page_hash]
        if not mine:
            del self._open[claim.claimer.key]
        return claim.parked

    def end_all(self, claimer: Request) -> list[Parked]:
        """Ends all of a claimer's claims; returns whom each of them kept waiting."""
        return [self._claims.pop(page_hash).parked for page_hash in self._open.pop(claimer.key, ())]

    def items(self) -> Iterator[tuple[PageHash, Request, Parked]]:
        """Name, claimer and parked requests of every claim."""
        return ((page_hash, claim.claimer, claim.parked) for page_hash, claim in self._claims.items())
