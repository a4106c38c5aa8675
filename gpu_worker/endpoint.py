"""Where the scheduler is: which endpoints a worker connects to.

Socket paths are limited to about 107 bytes by the kernel. The scheduler binds a longer one under a short name made of
its digest; the same rule is here, because a worker imports nothing of the scheduler.
"""

import hashlib
import ipaddress
import os
from pathlib import Path

MAX_PATH_BYTES = 100
_IPC, _TCP = "ipc://", "tcp://"


def usable(endpoint: str) -> str:
    """The endpoint to connect to. Raises ValueError saying what is allowed."""
    if endpoint.startswith(_IPC) and len(endpoint) > len(_IPC):
        return _shortened(endpoint)
    host, _, port = endpoint.removeprefix(_TCP).rpartition(":")
    if endpoint.startswith(_TCP) and host and port.isascii() and port.isdigit():
        return endpoint
    raise ValueError("must be ipc:///PATH or tcp://HOST:PORT")


def leaves_the_host(endpoint: str) -> bool:
    """Whether a link to it can be read on a network."""
    if not endpoint.startswith(_TCP):
        return False
    host = endpoint.removeprefix(_TCP).rpartition(":")[0]
    try:
        return host != "localhost" and not ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return True


def _shortened(endpoint: str) -> str:
    path = os.fsencode(endpoint.removeprefix(_IPC))
    if len(path) <= MAX_PATH_BYTES:
        return endpoint
    name = hashlib.sha256(path).hexdigest()[:32]
    return f"{_IPC}{Path('/tmp') / f'pagewire-{os.getuid()}' / name}.sock"
