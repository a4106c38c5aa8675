"""The worker's side of CURVE: its own key and the scheduler's public one, from a directory.

DIR/worker.secret        this worker's, mode 600
DIR/scheduler.public     whom it talks to, and to nobody else
"""

import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from gpu_worker.errors import ConfigError

_KEY = re.compile(rb"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveKeys:
    """Keys as libzmq takes them (Z85)."""

    secret_key: bytes = field(repr=False)
    public_key: bytes
    server_key: bytes

    def guard(self, socket: "zmq.Socket[bytes]") -> None:
        """Has a socket prove who it is, and ask the same of the scheduler; before it is connected."""
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret_key)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.public_key)
        socket.setsockopt(zmq.CURVE_SERVERKEY, self.server_key)


def read_keys(directory: Path) -> CurveKeys:
    """Raises ConfigError naming the file."""
    secret = directory / "worker.secret"
    secret_key = _read(secret)
    mode = stat.S_IMODE(secret.stat().st_mode)
    if mode & 0o077:
        raise ConfigError(f"--zmq-curve-dir {secret}: readable by others ({mode:o}); allowed: 600")
    return CurveKeys(
        secret_key=secret_key,
        public_key=zmq.curve_public(secret_key),
        server_key=_read(directory / "scheduler.public"),
    )


def _read(path: Path) -> bytes:
    try:
        content = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"--zmq-curve-dir {path}: {error.strerror}; allowed: a file with a key") from None
    if not _KEY.fullmatch(content):
        raise ConfigError(f"--zmq-curve-dir {path}: holds no key; allowed: 40 characters of Z85")
    return content
