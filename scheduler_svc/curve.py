"""CURVE on the workers' endpoint: key files, and who may come in.

    DIR/scheduler.secret, scheduler.public    the scheduler's pair; workers know the second
    DIR/worker.secret                         a first worker's, made with it
    DIR/workers/NAME.public                   workers that may come in; read at every handshake

Keys are 40 characters (Z85). Those the scheduler lacks are made at its first start. Both sides prove who they are, and
everything between them is encrypted. A worker whose file is gone keeps its connection and gets no new one.
"""

import contextlib
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import structlog
import zmq
from zmq.utils import z85

from scheduler_svc.run_dir import RunDirError, prepare

_ZAP_ENDPOINT = "inproc://zeromq.zap.01"
_ZAP_VERSION = b"1.0"
_ZAP_FRAMES = 7
_DOMAIN = b"workers"
_KEY = re.compile(rb"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
FIRST_WORKER = "worker"


def ensure_keys(directory: Path) -> None:
    """Makes the scheduler's pair and a first worker's unless the scheduler has one already.

    Raises: RunDirError.
    """
    try:
        prepare(directory)
    except RunDirError as error:
        raise RunDirError(str(error).replace("--state-dir", "--zmq-curve-dir", 1)) from None
    secret = directory / "scheduler.secret"
    if secret.exists():
        return
    with _told(directory):
        (directory / "workers").mkdir(mode=0o700, exist_ok=True)
        if not any((directory / "workers").iterdir()):
            add_worker(directory, FIRST_WORKER)
        _write_pair(directory / "scheduler.public", secret)


def add_worker(directory: Path, name: str) -> Path:
    """Lets another worker in; returns the file of its secret, which belongs on its machine beside scheduler.public.

    Raises: RunDirError.
    """
    if not _NAME.fullmatch(name) or name == "scheduler":
        raise RunDirError(f"{name!r}: a worker's name has up to 64 letters, digits, dots, dashes and underscores")
    secret = directory / f"{name}.secret"
    with _told(directory):
        _write_pair(directory / "workers" / f"{name}.public", secret)
    return secret


class Doorman:
    """Answers libzmq's question about each worker that connects (ZAP, ZeroMQ RFC 27), in the loop of its owner."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", directory: Path) -> None:
        """Raises: RunDirError."""
        self._secret_key = _read_secret(directory / "scheduler.secret")
        self._workers = directory / "workers"
        self._log = structlog.get_logger()
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(_ZAP_ENDPOINT)

    def guard(self, socket: "zmq.Socket[bytes]") -> None:
        """Has a socket ask for CURVE; before it is bound."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._secret_key)
        socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)

    def answer(self) -> None:
        """Everybody who waits."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            request_id = frames[1] if len(frames) > 1 else b""
            name = self._name_of(frames)
            code, text = (b"200", b"OK") if name else (b"400", b"not on the list")
            self.socket.send_multipart([_ZAP_VERSION, request_id, code, text, name.encode(), b""])

    def close(self) -> None:
        self.socket.close()

    def _name_of(self, frames: list[bytes]) -> str:
        """Of the worker that connects; empty if it is not on the list."""
        if len(frames) != _ZAP_FRAMES or frames[0] != _ZAP_VERSION or frames[5] != b"CURVE" or len(frames[6]) != 32:
            return ""
        key, address = z85.encode(frames[6]), frames[3].decode(errors="replace")
        for path in sorted(self._workers.glob("*.public")):
            with contextlib.suppress(OSError):
                if path.read_bytes().strip() == key:
                    self._log.info("worker_let_in", worker=path.stem, address=address)
                    return path.stem
        self._log.warning("worker_not_let_in", public_key=key.decode(), address=address)
        return ""


def _read_secret(path: Path) -> bytes:
    """Raises: RunDirError."""
    with _told(path):
        mode, content = path.stat().st_mode, path.read_bytes().strip()
    if mode & 0o077:
        raise RunDirError(f"--zmq-curve-dir {path}: readable by others ({stat.S_IMODE(mode):o}), must be 600")
    if not _KEY.fullmatch(content):
        raise RunDirError(f"--zmq-curve-dir {path}: holds no key")
    return content


def _write_pair(public: Path, secret: Path) -> None:
    """Both files or neither. Never replaces a key."""
    public_key, secret_key = zmq.curve_keypair()
    _write(public, public_key, 0o644)
    try:
        _write(secret, secret_key, 0o600)
    except OSError:
        public.unlink()
        raise


def _write(path: Path, key: bytes, mode: int) -> None:
    """Whole or not at all, as on a full disk."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(key + b"\n")
        Path(temporary).chmod(mode)
        os.link(temporary, path)
    finally:
        Path(temporary).unlink()


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Faults of the file system as one line."""
    try:
        yield
    except OSError as error:
        raise RunDirError(f"--zmq-curve-dir {error.filename2 or error.filename or path}: {error.strerror}") from None
