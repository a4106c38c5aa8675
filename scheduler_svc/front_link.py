"""The link to the fronts: who is there, what each asks, and what waits to be told.

A front is known by the id it drew at its start. When its connection ends, it falls silent or another id speaks from its
connection, it is dead: its requests end. Should it come back all the same, it hears of their endings. Sending never
waits for a front and never drops what belongs to a living request.
"""

from dataclasses import dataclass, field

from scheduler_svc import front_codec
from scheduler_svc.core.value import value
from scheduler_svc.liveness import OwnStalls
from scheduler_svc.log import MOST_COMINGS, SparseLog
from scheduler_svc.messages import PROTOCOL_VERSION, FrameError, FrontMessage, Service, only_part
from scheduler_svc.outbox import Outbox
from scheduler_svc.output_key import MAX_FRONTS
from scheduler_svc.router import Peer, Router, Sent

_HUNG_SECONDS = 15.0
_FORGET_SECONDS = 30.0
_HINT_SECONDS = 0.2


@value(frozen=True, slots=True, kw_only=True)
class FrontSaid:
    """A frame of a front that is believed."""

    message: FrontMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontLost:
    """A front is dead: its requests end."""

    front_id: int
    reason: str


FrontLinkEvent = FrontSaid | FrontLost


@dataclass(slots=True, kw_only=True)
class _Front:
    front_id: int
    number: int
    """What its outputs' keys begin with, see output_key."""
    peer: Peer | None
    pid: int
    last_heard: float
    last_sent: float
    outbox: Outbox = field(default_factory=Outbox)


class FrontLink:
    """``receive`` and ``check`` return what happened, in order; ``flush`` sends what waits."""

    def __init__(
        self, router: Router, *, session: int, heartbeat_seconds: float, timeout_seconds: float, now: float
    ) -> None:
        self.num_faults = 0
        self._router = router
        self._session = session
        self._heartbeat_seconds = heartbeat_seconds
        self._timeout_seconds = timeout_seconds
        self._stalls = OwnStalls(now)
        self._fronts: dict[int, _Front] = {}
        self._by_peer: dict[Peer, _Front] = {}
        self._by_number: dict[int, _Front] = {}
        self._hints: dict[Peer, float] = {}
        self._service: Service | None = None
        self._events: list[FrontLinkEvent] = []
        self._sparse = SparseLog()
        self._comings = SparseLog(MOST_COMINGS)

    def receive(self, now: float, limit: int) -> tuple[list[FrontLinkEvent], int]:
        """What up to ``limit`` waiting frames say, and how many frames there were."""
        num_frames = 0
        for peer, parts in self._router.receive(limit):
            if parts is not None:
                num_frames += 1
                self._read(peer, parts, now)
                continue
            self._hints.pop(peer, None)
            if peer in self._by_peer:
                self._lose(self._by_peer[peer], "its connection ended", now)
        return self._take_events(), num_frames

    def check(self, now: float) -> list[FrontLinkEvent]:
        """Gives up silent fronts; call it when nothing waits to be received."""
        lost = self._stalls.lost(now)
        for front in list(self._fronts.values()):
            front.last_heard = min(now, front.last_heard + lost)
            silent = now - front.last_heard
            if front.peer is not None and silent > self._timeout_seconds:
                self._lose(front, f"nothing heard for {silent:.1f} s", now)
            elif front.peer is None and silent > _FORGET_SECONDS:
                del self._fronts[front.front_id], self._by_number[front.number]
        return self._take_events()

    def hung_pids(self, now: float) -> set[int]:
        """Processes of fronts that were given up long ago and do not come back."""
        return {
            front.pid
            for front in self._fronts.values()
            if front.peer is None and now - front.last_heard > _HUNG_SECONDS
        }

    def outbox(self, front_id: int) -> Outbox:
        """What waits for a front; of one that is forgotten, a box that nobody empties."""
        front = self._fronts.get(front_id)
        return Outbox() if front is None else front.outbox

    def outbox_of(self, number: int) -> Outbox:
        """The same by the front's number."""
        front = self._by_number.get(number)
        return Outbox() if front is None else front.outbox

    def number_of(self, front_id: int) -> int:
        """What the keys of this front's outputs begin with."""
        return self._fronts[front_id].number

    def set_service(self, service: Service) -> None:
        """Tells all fronts if it changed."""
        if service != self._service:
            self._service = service
            for front in self._fronts.values():
                front.outbox.set_service(service)

    def flush(self, now: float) -> None:
        """One frame for each front that has something waiting, a heartbeat for the others."""
        for front in self._fronts.values():
            if front.peer is None:
                continue
            while front.outbox:
                if not self._send(front, front.outbox.take(self._session), now):
                    break
            if now - front.last_sent >= self._heartbeat_seconds and not front.outbox:
                self._send(front, front_codec.front_frame(self._session), now)

    def has_waiting(self) -> bool:
        """Whether a front's queue had no room for all that waits for it."""
        return any(front.outbox and front.peer is not None for front in self._fronts.values())

    def close(self) -> None:
        self._router.close()

    def _take_events(self) -> list[FrontLinkEvent]:
        events, self._events = self._events, []
        return events

    def _read(self, peer: Peer, parts: list[bytes], now: float) -> None:
        try:
            message = front_codec.read_front_frame(only_part(parts))
        except FrameError as error:
            self.num_faults += 1
            size = sum(map(len, parts))
            self._sparse.warning("front_frame_dropped", now, peer=peer.hex(), num_bytes=size, reason=str(error))
            return
        front = self._by_peer.get(peer)
        if front is not None and front.front_id != message.front_id:
            self._lose(front, "another front speaks from its connection", now)
            front = None
        if message.protocol_version is not None:
            front = self._read_hello(peer, front, message, now)
        elif message.session != self._session:
            self._read_stale(peer, now)
            return
        elif front is None and self._has_room(message):
            front = self._attach(peer, message, now)
        if front is not None:
            front.last_heard = now
            self._events.append(FrontSaid(message=message))

    def _read_hello(self, peer: Peer, front: _Front | None, message: FrontMessage, now: float) -> _Front | None:
        if message.protocol_version != PROTOCOL_VERSION:
            reason = f"protocol version {message.protocol_version}; this scheduler speaks {PROTOCOL_VERSION}"
            self._comings.warning("front_refused", now, pid=message.pid, reason=reason)
            self._router.send(peer, front_codec.front_frame(self._session, refusal=reason))
            return None
        if front is None:
            if not self._has_room(message):
                reason = f"{MAX_FRONTS} fronts are here already"
                self._router.send(peer, front_codec.front_frame(self._session, refusal=reason))
                return None
            front = self._attach(peer, message, now)
            self._comings.info("front_joined", now, front=f"{front.front_id:016x}", pid=front.pid)
        if self._service is not None:
            front.outbox.set_service(self._service)
        return front

    def _has_room(self, message: FrontMessage) -> bool:
        return message.front_id in self._fronts or len(self._fronts) < MAX_FRONTS

    def _attach(self, peer: Peer, message: FrontMessage, now: float) -> _Front:
        """A front that is new, or that was taken for dead."""
        front = self._fronts.get(message.front_id)
        if front is not None and front.peer is not None:
            self._lose(front, "it speaks from another connection", now)
        if front is None:
            number = next(number for number in range(MAX_FRONTS) if number not in self._by_number)
            front = _Front(
                front_id=message.front_id, number=number, peer=peer, pid=message.pid, last_heard=now, last_sent=now
            )
            self._fronts[front.front_id] = self._by_number[number] = front
        front.peer = peer
        self._by_peer[peer] = front
        return front

    def _read_stale(self, peer: Peer, now: float) -> None:
        """A frame of another session: any frame of this one tells the front to say hello."""
        self.num_faults += 1
        if now - self._hints.get(peer, -_HINT_SECONDS) >= _HINT_SECONDS:
            self._hints[peer] = now
            self._router.send(peer, front_codec.front_frame(self._session))

    def _lose(self, front: _Front, reason: str, now: float) -> None:
        if front.peer is None:
            return
        del self._by_peer[front.peer]
        front.peer = None
        self._comings.info("front_lost", now, front=f"{front.front_id:016x}", pid=front.pid, reason=reason)
        self._events.append(FrontLost(front_id=front.front_id, reason=reason))

    def _send(self, front: _Front, frame: bytes, now: float) -> bool:
        peer = front.peer
        if peer is None:
            return False
        sent = self._router.send(peer, frame)
        if sent is Sent.SENT:
            front.last_sent = now
            return True
        if sent is Sent.GONE:
            self._lose(front, "its connection ended", now)
        front.outbox.restore(frame)
        return False
