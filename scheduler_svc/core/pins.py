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

    __slots__ = ("_next_expiry", "_num_pages", "_pins", "_share")

    def __init__(self, share: float) -> None:
        """``share``: of a worker's pages, what pins may name at most."""
        self._share = share
        self._pins: dict[PinKey, NewPin] = {}
        self._num_pages: dict[str, int] = {}
        """What each tenant's pins name; no zeros."""
        self._next_expiry: float | None = None

    def __iter__(self) -> Iterator[PinKey]:
        """In their order; for checks."""
        return iter(self._pins)

    def add(self, pin: NewPin, workers: Sequence[Worker]) -> Pin:
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
        own = self._num_pages.get(pin.tenant, 0)
        _check(count, sum(self._num_pages.values()), most, "pins")
        if pin.tenant:
            _check(count, own, most // 2, "pins of one tenant")
        self._pins[key] = pin
        self._num_pages[pin.tenant] = own + count
        for worker in workers:
            worker.pool.pin(key, pin.page_hashes)
        if self._next_expiry is None or pin.until < self._next_expiry:
            self._next_expiry = pin.until
        return _seen(pin, workers)

    def remove(self, key: PinKey, workers: Iterable[Worker]) -> bool:
        """Ends a pin; False if there is none of this key."""
        if key not in self._pins:
            return False
        self._drop(key, workers)
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
        return [_seen(pin, workers) for pin in self._pins.values() if pin.tenant == tenant]

    def next_expiry(self) -> float | None:
        """When the first of them ends."""
        return self._next_expiry

    def expire(self, now: float, workers: Iterable[Worker]) -> None:
        """Ends those whose time is over."""
        if self._next_expiry is None or now < self._next_expiry:
            return
        held = list(workers)
        for key in [key for key, pin in self._pins.items() if pin.until <= now]:
            self._drop(key, held)
        self._see_expiry()

    def _most(self, worker: Worker) -> int:
        return int(worker.pool.num_pages * self._share)

    def _drop(self, key: PinKey, workers: Iterable[Worker]) -> None:
        pin = self._pins.pop(key)
        self._num_pages[pin.tenant] -= len(pin.page_hashes)
        if not self._num_pages[pin.tenant]:
            del self._num_pages[pin.tenant]
        for worker in workers:
            worker.pool.unpin(key)

    def _see_expiry(self) -> None:
        self._next_expiry = min((pin.until for pin in self._pins.values()), default=None)


def _seen(pin: NewPin, workers: Sequence[Worker]) -> Pin:
    held = (worker.pool.num_pinned((pin.tenant, pin.pin_id)) for worker in workers)
    return Pin(pin_id=pin.pin_id, num_pages=max(held, default=0), until=pin.until)


def _check(count: int, taken: int, most: int, whose: str) -> None:
    if taken + count > most:
        message = f"{whose} name {taken} pages; with {count} more they would be over {most}"
        raise RequestRejected(RejectCode.PIN_QUOTA, "", message)
