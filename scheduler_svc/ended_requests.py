"""Requests that have ended: readable by their ids for a while."""

from collections import OrderedDict

from scheduler_svc.requests import Request

KEEP_SECONDS = 600.0
KEEP_REQUESTS = 10_000
KEEP_BYTES = 64 * 1024 * 1024
_BYTES_A_REQUEST, _BYTES_AN_OUTPUT = 600, 600


class EndedRequests:
    """Ended requests, kept for a time within limits of number and size; oldest go first."""

    def __init__(
        self, seconds: float = KEEP_SECONDS, num_requests: int = KEEP_REQUESTS, num_bytes: int = KEEP_BYTES
    ) -> None:
        self._limits = (seconds, num_requests, num_bytes)
        self._kept: OrderedDict[tuple[str, str], tuple[float, Request]] = OrderedDict()
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, request: Request, now: float) -> None:
        """Takes a request that is over; it replaces an older one of its id."""
        if not request.request_id:
            return
        name = (request.tenant, request.request_id)
        self._drop(name)
        self._kept[name] = (now, request)
        self._num_bytes += _size(request)
        self.expire(now)

    def get(self, tenant: str, request_id: str, now: float) -> Request | None:
        self.expire(now)
        found = self._kept.get((tenant, request_id))
        return None if found is None else found[1]

    def expire(self, now: float) -> None:
        seconds, num_requests, num_bytes = self._limits
        while self._kept:
            oldest = next(iter(self._kept))
            is_old = now - self._kept[oldest][0] > seconds
            if not (is_old or len(self._kept) > num_requests or self._num_bytes > num_bytes):
                return
            self._drop(oldest)

    def _drop(self, name: tuple[str, str]) -> None:
        found = self._kept.pop(name, None)
        if found is not None:
            self._num_bytes -= _size(found[1])


def _size(request: Request) -> int:
    """Bytes it takes to keep, about; what it is resumed from is counted by who resumes it."""
    return len(request.tenant) + len(request.request_id) + _BYTES_A_REQUEST + _BYTES_AN_OUTPUT * len(request.outputs)
