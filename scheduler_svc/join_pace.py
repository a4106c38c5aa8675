"""How soon a worker that keeps failing may join again.

A worker that is lost right after it joined, again and again, waits longer each time: its hellos are not answered until
then. The first such loss costs no wait, since a single lost frame can cause it. A worker that answers a step is
forgiven, and one that connects anew is another worker.
"""

from dataclasses import dataclass

from scheduler_svc.router import Peer

_QUICK_SECONDS = 1.0
_FIRST_WAIT_SECONDS = 0.2
_LONGEST_WAIT_SECONDS = 5.0
_MOST_DOUBLINGS = 10


@dataclass(slots=True, kw_only=True)
class _Fruitless:
    """A peer that joined and has answered nothing since."""

    joined_at: float
    num_quick: int = 0
    """How often in a row it said hello within a second of joining."""
    until: float | None = None
    """Until when it waits; None while it is joined."""


class JoinPace:
    """Of all workers, by their connections."""

    def __init__(self) -> None:
        self._peers: dict[Peer, _Fruitless] = {}

    def wait(self, peer: Peer, now: float) -> float:
        """Seconds until this peer, which is not joined and says hello, may join."""
        each = self._peers.get(peer)
        if each is None:
            return 0.0
        if each.until is None:
            each.num_quick = each.num_quick + 1 if now - each.joined_at < _QUICK_SECONDS else 0
            doublings = min(each.num_quick - 2, _MOST_DOUBLINGS)
            wait = 0.0 if doublings < 0 else min(_LONGEST_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2**doublings)
            each.until = now + wait
        return each.until - now

    def joined(self, peer: Peer, now: float) -> None:
        each = self._peers.setdefault(peer, _Fruitless(joined_at=now))
        each.joined_at, each.until = now, None

    def forgive(self, peer: Peer) -> None:
        """The peer is gone, or has answered a step."""
        self._peers.pop(peer, None)
