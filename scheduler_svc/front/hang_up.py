"""Ends the connections of a server that has nothing left to say, before the server itself is stopped.

A stopping gRPC server answers a call that just arrives with CANCELLED, which tells its caller that somebody gave the
call up. The end of a connection tells it UNAVAILABLE, which callers try again. gRPC has no way to end connections
alone: their sockets are found among this process's by the ports that they belong to.
"""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_MOST_TIMES, _SECONDS_BETWEEN = 10, 0.02
_STILL_WRITING = (1, 8)
"""States of a TCP connection, as Linux tells them, that our side has not ended: established, and ended by the other."""


async def hang_up(ports: frozenset[int]) -> None:
    """Ends what is connected to these ports, until nobody comes back, or only some who always do; what was written
    before still arrives.

    Who was cut off connects again at once, and is refused properly as long as the server answers. It is to be stopped
    in the turn of the loop in which this returns, before anybody is there again.
    """
    for _ in range(_MOST_TIMES):
        if not _end_connections(ports):
            return
        await asyncio.sleep(_SECONDS_BETWEEN)
    _end_connections(ports)


def _end_connections(ports: frozenset[int]) -> int:
    """How many were ended."""
    count = 0
    for found in _sockets():
        with found, suppress(OSError):  # it may have ended by itself
            if found.family not in (socket.AF_INET, socket.AF_INET6) or found.getsockname()[1] not in ports:
                continue
            if found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _STILL_WRITING:
                # Deaf ones would answer their callers' last words with a reset, which overtakes ours.
                found.shutdown(socket.SHUT_WR)
                count += 1
    return count


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
