"""A bound ZeroMQ ROUTER that never blocks, never drops silently and knows which peers are gone.

A full queue of a peer is reported (back-pressure), an unknown peer is reported (mandatory routing). The kernel closes a
killed process's sockets at once: each disconnection is matched to the peer by the descriptor its messages came from. A
peer that connects again is another peer: ZeroMQ names it anew.
"""

from collections.abc import Iterator
from enum import Enum
from typing import NewType

import zmq
from zmq.utils.monitor import parse_monitor_message

from scheduler_svc.curve import Doorman

Peer = NewType("Peer", bytes)
"""ZeroMQ's name of one connection."""

MAX_FRAME_BYTES = 48 * 1024 * 1024
"""A larger frame closes its connection. Hellos carry tokenizers of up to 35 MB."""
_RECEIVE_HIGH_WATER = 1000
_LINGER_MS = 300
_NOBLOCK, _MORE, _EVENTS, _READABLE = int(zmq.NOBLOCK), int(zmq.SNDMORE), int(zmq.EVENTS), int(zmq.POLLIN)
"""As plain numbers: the library's enums cost more than its calls."""


class Sent(Enum):
    """What became of a frame."""

    SENT = "sent"
    FULL = "full"
    """The peer's queue is full: try again later."""
    GONE = "gone"
    """There is no such peer."""


class EndpointError(OSError):
    """An endpoint cannot be bound; the message names it."""


class Router:
    """``send_high_water`` frames wait for a peer that does not read; ``poll_sockets`` wake a poller for ``receive``.

    With a ``doorman``, which is the router's from then on, peers speak CURVE and must be on its list.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        send_high_water: int,
        doorman: Doorman | None = None,
    ) -> None:
        self._doorman = doorman
        self._socket = context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.setsockopt(zmq.SNDHWM, send_high_water)
        self._socket.setsockopt(zmq.RCVHWM, _RECEIVE_HIGH_WATER)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        self._socket.setsockopt(zmq.LINGER, _LINGER_MS)
        self._socket.setsockopt(zmq.IPV6, int("[" in endpoint))
        if doorman is not None:
            doorman.guard(self._socket)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._descriptors: dict[Peer, int] = {}
        self._peers: dict[int, Peer] = {}
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise EndpointError(f"cannot listen on {endpoint}: {error.strerror}") from error

    @property
    def poll_sockets(self) -> "list[zmq.Socket[bytes]]":
        return [self._socket, self._monitor] + ([] if self._doorman is None else [self._doorman.socket])

    def receive(self, limit: int) -> Iterator[tuple[Peer, list[bytes] | None]]:
        """Up to ``limit`` waiting messages as their parts; None says that the peer's connection ended.

        A message that tells no descriptor is dropped: it came over an older ZeroMQ protocol, which none of ours speak
        and almost any bytes look like (another protocol's client, a port scan).
        """
        if self._doorman is not None:
            self._doorman.answer()
        for _ in range(limit):
            if not _is_readable(self._socket):
                break
            parts = [self._socket.recv(_NOBLOCK, copy=False)]
            while parts[-1].more:
                parts.append(self._socket.recv(_NOBLOCK, copy=False))
            peer, descriptor = Peer(parts[0].bytes), _descriptor(parts[-1])
            if descriptor is None:
                continue
            if self._descriptors.get(peer) != descriptor:
                yield from self._learn(peer, descriptor)
            yield peer, [part.bytes for part in parts[1:]]
        yield from self._ended()

    def send(self, peer: Peer, content: bytes) -> Sent:
        try:
            self._socket.send(peer, _NOBLOCK | _MORE)
            self._socket.send(content, _NOBLOCK)
        except zmq.Again:
            return Sent.FULL
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return Sent.GONE
        return Sent.SENT

    def close(self) -> None:
        """What was sent still goes out, for a moment."""
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close()
        if self._doorman is not None:
            self._doorman.close()

    def _learn(self, peer: Peer, descriptor: int) -> Iterator[tuple[Peer, None]]:
        # The name or the descriptor may have been an older connection's: its end comes before the new one's messages.
        yield from self._ended()
        for older in (self._peers.get(descriptor), peer):
            if older is not None and older in self._descriptors:
                del self._peers[self._descriptors.pop(older)]
                yield older, None
        self._descriptors[peer] = descriptor
        self._peers[descriptor] = peer

    def _ended(self) -> Iterator[tuple[Peer, None]]:
        """Peers whose connection ended, as the monitor tells."""
        while _is_readable(self._monitor):
            parts = self._monitor.recv_multipart(_NOBLOCK)
            peer = self._peers.pop(parse_monitor_message(parts)["value"], None)
            if peer is not None:
                del self._descriptors[peer]
                yield peer, None


def _is_readable(socket: "zmq.Socket[bytes]") -> bool:
    """Asked before a message is received: to be told by an exception that there is none takes several times as long."""
    return bool(int(socket.getsockopt(_EVENTS)) & _READABLE)


def _descriptor(part: "zmq.Frame") -> int | None:
    """Of the connection that a message came from."""
    try:
        return int(part.get(zmq.SRCFD))
    except zmq.ZMQError:
        return None
