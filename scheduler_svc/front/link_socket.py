"""The front's DEALER on the event loop, without a task or a future for a frame.

ZeroMQ's descriptor tells once that something changed, and any call may take that notice: so whoever used the socket
looks whether more has come. What cannot be sent yet stays with the caller, where it can still be merged or dropped.
"""

import asyncio
from collections.abc import Callable

import zmq

MAX_RECEIVED_BYTES = 256 * 1024 * 1024
HIGH_WATER_MARK = 1000
MAX_FRAMES_A_TURN = 64
"""So many are read before others on the loop have their turn."""
_EVENTS, _NOBLOCK, _READABLE, _WRITABLE = int(zmq.EVENTS), int(zmq.NOBLOCK), int(zmq.POLLIN), int(zmq.POLLOUT)
"""As plain numbers: the library's enums cost more than its calls."""


class LinkSocket:
    """Calls ``on_frame`` with each frame, and ``on_room`` once one may be sent again."""

    def __init__(
        self, endpoint: str, routing_id: bytes, *, on_frame: Callable[[bytes], None], on_room: Callable[[], None]
    ) -> None:
        self._on_frame, self._on_room = on_frame, on_room
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_RECEIVED_BYTES)
        # Frames wait with the caller, not in a pipe to nobody.
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.RECONNECT_IVL, 100)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        socket.setsockopt(zmq.ROUTING_ID, routing_id)
        socket.connect(endpoint)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lacks_room = False
        self._looks_again = False

    def start(self) -> None:
        """Reads from now on, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._read)
        self._look_again()

    def close(self) -> None:
        """Ends the connection. Idempotent."""
        if self._loop is not None and not self._socket.closed:
            self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self._context.term()

    def has_room(self) -> bool:
        """Whether a frame may be sent now; if not, ``on_room`` will be called."""
        self._lacks_room = not self._events() & _WRITABLE
        return not self._lacks_room

    def send(self, frame: bytes) -> None:
        """Sends a frame; there must be room."""
        self._socket.send(frame, _NOBLOCK)
        if self._events() & _READABLE:
            self._look_again()

    def _read(self) -> None:
        """All that came, up to a limit."""
        self._looks_again = False
        if self._socket.closed:
            return
        for _ in range(MAX_FRAMES_A_TURN):
            try:
                parts = self._socket.recv_multipart(_NOBLOCK)
            except zmq.Again:
                break
            self._on_frame(parts[-1])
            if self._socket.closed or not self._events() & _READABLE:
                break
        else:
            self._look_again()
        if self._lacks_room and not self._socket.closed and self.has_room():
            self._on_room()

    def _look_again(self) -> None:
        if self._loop is not None and not self._looks_again:
            self._looks_again = True
            self._loop.call_soon(self._read)

    def _events(self) -> int:
        return int(self._socket.getsockopt(_EVENTS))
