"""Messages between rank 0 and another rank of its worker, over a pair of sockets that only these two have.

The first message to a rank is its configuration as JSON, every further one a plan's frame as the scheduler sent it, or
nothing at all: drop all rows. A rank says nothing but why it cannot serve. Either end's end is the end of the stream.
"""

import socket

_LENGTH_BYTES = 8


class RankLink:
    """One end. ``receive`` belongs to one thread, ``send`` to one."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reader = connection.makefile("rb")

    def send(self, message: bytes) -> None:
        """Blocks while the other end has much to read. Raises OSError if it is gone."""
        self._connection.sendall(len(message).to_bytes(_LENGTH_BYTES, "little") + message)

    def receive(self) -> bytes | None:
        """The next message; None if the other end is gone."""
        try:
            length = self._reader.read(_LENGTH_BYTES)
            size = int.from_bytes(length, "little")
            message = self._reader.read(size) if len(length) == _LENGTH_BYTES else b""
        except OSError:
            return None
        return message if len(length) == _LENGTH_BYTES and len(message) == size else None

    def close(self) -> None:
        self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
