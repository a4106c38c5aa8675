"""Ends the connections of a server that has nothing left to say, before the server itself is stopped.

A stopping gRPC server answers a call that just arrives with CANCELLED, which tells its caller that somebody gave the
call up. The end of a connection tells it UNAVAILABLE, which callers try again. gRPC has no way to end connections
alone: their sockets are found among this process's by the ports that they belong to.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def hang_up(ports: frozenset[int]) -> None:
    """Ends what is connected to these ports; what was written before still arrives.

    The server is to be stopped at once, before anybody connects again.
    """
    for found in _sockets():
        with found, suppress(OSError):  # it may have ended by itself
            if found.family in (socket.AF_INET, socket.AF_INET6) and found.getsockname()[1] in ports:
                # Deaf ones would answer their callers' last words with a reset, which overtakes ours. None listens.
                found.shutdown(socket.SHUT_WR)


def _sockets() -> Iterator[socket.socket]:
    """Every socket of this process, each under a descriptor of its own."""
    for path in list(Path("/proc/self/fd").iterdir()):
        try:
            copy = os.dup(int(path.name))
        except OSError:
            continue  # of this listing itself
        try:
            yield socket.socket(fileno=copy)
        except OSError:
            os.close(copy)  # no socket
