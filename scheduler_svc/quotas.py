"""How many requests a tenant may begin in a minute. Pure: time is an argument.

A bucket a tenant: full it holds a minute's requests up to ``_BURST_SECONDS`` of them, each request takes one, and it
fills evenly. A full bucket is the same as none, so idle tenants cost nothing.
"""

from dataclasses import dataclass

_BURST_SECONDS = 10.0
_MOST_IDLE = 10_000


@dataclass(slots=True)
class _Bucket:
    level: float
    at: float
    per_second: float
    size: float

    def fill(self, now: float) -> None:
        self.level = min(self.size, self.level + (now - self.at) * self.per_second)
        self.at = now


class Quotas:
    """Of all tenants that have one."""

    def __init__(self) -> None:
        self._buckets: dict[str, _Bucket] = {}

    def take(self, tenant: str, per_minute: int, now: float) -> float:
        """Takes one request of a tenant; 0 if it may begin, else the seconds until it may. No limit: 0."""
        if not per_minute:
            return 0.0
        per_second = per_minute / 60
        size = max(1.0, per_second * _BURST_SECONDS)
        bucket = self._buckets.get(tenant)
        if bucket is None:
            self._forget_full(now)
            bucket = self._buckets[tenant] = _Bucket(size, now, per_second, size)
        bucket.per_second, bucket.size = per_second, size
        bucket.fill(now)
        if bucket.level < 1.0:
            return (1.0 - bucket.level) / per_second
        bucket.level -= 1.0
        return 0.0

    def give_back(self, tenant: str) -> None:
        """A request that was taken did not begin."""
        bucket = self._buckets.get(tenant)
        if bucket is not None:
            bucket.level = min(bucket.size, bucket.level + 1.0)

    def _forget_full(self, now: float) -> None:
        """Keeps the table small: those who have asked for nothing lately are let go."""
        if len(self._buckets) < _MOST_IDLE:
            return
        for tenant, bucket in list(self._buckets.items()):
            bucket.fill(now)
            if bucket.level >= bucket.size:
                del self._buckets[tenant]
