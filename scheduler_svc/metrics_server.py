"""`GET /metrics` in the scheduler's own loop: sockets that never wait, a handful of connections, small requests.

A scrape is rendered between two rounds, so the numbers are those of one moment and nothing needs a lock. A peer that
sends no request in time, or too large a one, is closed; one that does not take the answer at once loses its rest (the
kernel's buffer holds far more than an answer). Nothing that arrives here can end the loop.
"""

import contextlib
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from scheduler_svc.exposition import CONTENT_TYPE

MAX_CONNECTIONS = 16
MAX_REQUEST_BYTES = 8192
MAX_WAIT_SECONDS = 10.0
_SEND_BUFFER_BYTES = 1 << 20


class MetricsPortError(Exception):
    """The port cannot be had; the message is one line for the operator."""


@dataclass(slots=True)
class _Connection:
    peer: socket.socket
    since: float
    received: bytes = b""


class MetricsServer:
    """``watch`` and ``unwatch`` have a descriptor looked after by the loop, which calls everything here."""

    def __init__(
        self,
        host: str,
        port: int,
        metrics: Callable[[], bytes],
        *,
        watch: Callable[[int, Callable[[], None]], None],
        unwatch: Callable[[int], None],
        clock: Callable[[], float],
    ) -> None:
        """Binds. Raises: MetricsPortError."""
        self._metrics = metrics
        self._watch, self._unwatch, self._clock = watch, unwatch, clock
        self._connections: dict[int, _Connection] = {}
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listener = socket.create_server((host, port), family=family, backlog=MAX_CONNECTIONS)
        except OSError as error:
            number = error.errno or 0
            if number <= 0:  # the resolver's numbers are below zero
                raise MetricsPortError(f"--metrics-host {host}: is no address of this machine") from None
            raise MetricsPortError(
                f"--metrics-port {port}: cannot listen on {host}:{port}: {os.strerror(number)}"
            ) from None
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        watch(self._listener.fileno(), self._accept)

    def close(self) -> None:
        """Idempotent."""
        for number in list(self._connections):
            self._end(number)
        if self._listener.fileno() >= 0:
            self._unwatch(self._listener.fileno())
            self._listener.close()

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptor is free, and who waits would wake the loop again and again: ours give way
            for number in list(self._connections):
                self._end(number)
            return
        now = self._clock()
        late = [number for number, each in self._connections.items() if now - each.since > MAX_WAIT_SECONDS]
        if not late and len(self._connections) >= MAX_CONNECTIONS:
            late = [next(iter(self._connections))]
        for number in late:
            self._end(number)
        peer.setblocking(False)
        number = peer.fileno()
        self._connections[number] = _Connection(peer, now)
        self._watch(number, lambda: self._read(number))

    def _read(self, number: int) -> None:
        connection = self._connections[number]
        try:
            received = connection.peer.recv(MAX_REQUEST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        connection.received += received
        if b"\r\n\r\n" in connection.received:
            self._answer(connection)
        elif received and len(connection.received) < MAX_REQUEST_BYTES:
            return
        self._end(number)

    def _answer(self, connection: _Connection) -> None:
        method, path = [*connection.received.split(b"\r\n", 1)[0].split(b" "), b"", b""][:2]
        if path.split(b"?")[0] != b"/metrics":
            status, body = "404 Not Found", b"the metrics are at /metrics\n"
        elif method not in (b"GET", b"HEAD"):
            status, body = "405 Method Not Allowed", b"GET only\n"
        else:
            status, body = "200 OK", self._metrics()
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        ).encode()
        with contextlib.suppress(OSError):
            connection.peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
            connection.peer.send(head + (b"" if method == b"HEAD" else body))

    def _end(self, number: int) -> None:
        connection = self._connections.pop(number)
        self._unwatch(number)
        connection.peer.close()
