"""When a draining server refuses requests, and when it ends those that still run. Pure: time is an argument.

    serving ──▶ leaving: health says so, requests are taken ──▶ draining: they are refused ──▶ over: what runs ends

Balancers look at health now and then; the notice is the time they have to look elsewhere before anybody is refused.
"""


class Drain:
    """Of one process; beginning it again can only shorten it."""

    def __init__(self) -> None:
        self.until: float | None = None
        """When it is over; None while nobody drains."""
        self._refuse_at = 0.0

    def begin(self, now: float, notice_seconds: float, seconds: float) -> None:
        """Or begin again: neither time is ever put off."""
        refuse_at = now + notice_seconds
        until = refuse_at + seconds
        self._refuse_at = refuse_at if self.until is None else min(refuse_at, self._refuse_at)
        self.until = until if self.until is None else min(until, self.until)

    def refuses(self, now: float) -> bool:
        return self.until is not None and now >= self._refuse_at

    def is_over(self, now: float) -> bool:
        return self.until is not None and now >= self.until

    def next_due(self, now: float) -> float | None:
        """When something changes next."""
        return self.until if self.until is None or self.refuses(now) else self._refuse_at

    def ms_left(self, now: float) -> int:
        """What running requests have left; 0 if nobody drains."""
        return 0 if self.until is None else max(0, int((self.until - now) * 1000))
