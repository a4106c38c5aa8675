"""Prefixes that callers want to stay cached: which pins there are, until when, and how much of the pages they may keep.

A pin is an intent. It names the full pages of a prefix; on every worker these pages are out of eviction from when they
are cached, now or later (page_pool), and a worker that joins gets the pins too. So a lost worker costs a pin its pages,
not its place.

All pins together name at most a share of the pages of the smallest worker, those of a tenant that is known by name at
most half of it; a page that two pins name is charged to both, so the number of pins is bounded too. Where one
request alone cannot have the pages it needs, pins let go of that worker, the last one first (supply, admission).
Invariant: a worker's pool knows no other pins than those here.
"""

from collections.abc import Iterable, Iterator, Sequence

from scheduler_svc.core.errors import RejectCode, RequestRejected
from scheduler_svc.core.types import NewPin, Pin, PinKey
from scheduler_svc.core.worker import Worker


class Pins:
    """By key, in the order in which they were made."""

    __slots__ = ("_next_expiry", "_pins", "_share")

    def __init__(self, share: float) -> None:
        """``share``: of a worker's pages, what pins may name at most."""
        self._share = share
        self._pins: dict[PinKey, NewPin] = {}
        self._next_expiry: float | None = None

    def __iter__(self) -> Iterator[PinKey]:
        """In their order; for checks."""
        return iter(self._pins)

    def add(self, pin: NewPin, workers: Sequence[Worker]) -> None:
        """Takes a pin; the workers hold what they have of it.

        Raises: RequestRejected: it keeps no page, is there already, or pins may not name so many pages.
        """
        key, count = (pin.tenant, pin.pin_id), len(pin.page_hashes)
        if not count:
            raise RequestRejected(RejectCode.INVALID, "prefix", "the prefix does not fill a page")
        if key in self._pins:
            raise RequestRejected(RejectCode.DUPLICATE, "pin_id", "there is such a pin")
        if not workers:
            raise RequestRejected(RejectCode.NO_WORKER, "", "no worker has joined yet")
        most = min(self._most(worker) for worker in workers)
        self._check(count, self._pins.values(), most, "pins")
        if pin.tenant:
            own = [other for other in self._pins.values() if other.tenant == pin.tenant]
            self._check(count, own, most // 2, "pins of one tenant")
        self._pins[key] = pin
        for worker in workers:
            worker.pool.pin(key, pin.page_hashes)
        self._see_expiry()

    def remove(self, key: PinKey, workers: Iterable[Worker]) -> bool:
        """Ends a pin; False if there is none of this key."""
        if self._pins.pop(key, None) is None:
            return False
        for worker in workers:
            worker.pool.unpin(key)
        self._see_expiry()
        return True

    def hold(self, worker: Worker) -> None:
        """A worker joins: it keeps the pages of all pins, as many as it may."""
        left = self._most(worker)
        for key, pin in self._pins.items():
            left -= len(pin.page_hashes)
            if left < 0:
                break
            worker.pool.pin(key, pin.page_hashes)

    def of(self, tenant: str, workers: Sequence[Worker]) -> list[Pin]:
        """A tenant's pins. Costs their pages on all workers."""
        return [
            Pin(
                pin_id=pin.pin_id,
                num_pages=max((worker.pool.num_pinned(key) for worker in workers), default=0),
                until=pin.until,
            )
            for key, pin in self._pins.items()
            if pin.tenant == tenant
        ]

    def next_expiry(self) -> float | None:
        """When the first of them ends."""
        return self._next_expiry

    def expire(self, now: float, workers: Iterable[Worker]) -> None:
        """Ends those whose time is over."""
        if self._next_expiry is None or now < self._next_expiry:
            return
        held = list(workers)
        for key in [key for key, pin in self._pins.items() if pin.until <= now]:
            self.remove(key, held)

    def _most(self, worker: Worker) -> int:
        return int(worker.pool.num_pages * self._share)

    def _check(self, count: int, pins: Iterable[NewPin], most: int, whose: str) -> None:
        taken = sum(len(pin.page_hashes) for pin in pins)
        if taken + count > most:
            message = f"{whose} name {taken} pages; with {count} more they would be over {most}"
            raise RequestRejected(RejectCode.PIN_QUOTA, "", message)

    def _see_expiry(self) -> None:
        self._next_expiry = min((pin.until for pin in self._pins.values()), default=None)
