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
    if endpoint.startswith(_TCP) and _is_loopback(endpoint.removeprefix(_TCP)):
        return endpoint
    raise ValueError("ipc:///PATH or tcp://127.0.0.1:PORT (links beyond this machine are not encrypted yet)")


def _shortened(endpoint: str) -> str:
    path = os.fsencode(endpoint.removeprefix(_IPC))
    if len(path) <= MAX_PATH_BYTES:
        return endpoint
    name = hashlib.sha256(path).hexdigest()[:32]
    return f"{_IPC}{Path('/tmp') / f'pagewire-{os.getuid()}' / name}.sock"


def _is_loopback(address: str) -> bool:
    host, _, port = address.rpartition(":")
    if not port.isascii() or not port.isdigit():
        return False
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
