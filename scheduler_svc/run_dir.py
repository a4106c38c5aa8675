"""The directory of sockets and keys, and endpoints in it.

Everything in it is for its owner alone: the directory is 0700, files are 0600, and a directory that belongs to someone
else or is open to others is refused. Socket paths are limited to about 107 bytes by the kernel: a longer one is
replaced by a name made of its digest, which both ends of a link compute alike. Who listens on a socket holds a lock
beside it: of two that start at the same moment one is told that the other is there.
"""

import contextlib
import fcntl
import hashlib
import os
import secrets
import socket
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO

KEY_BYTES = 32
MAX_PATH_BYTES = 100
_IPC = "ipc://"


class RunDirError(Exception):
    """The directory, a key or an endpoint cannot be used; the message is one line for the operator."""


def default_directory(runtime_dir: str | None) -> Path:
    """``runtime_dir`` is XDG_RUNTIME_DIR."""
    return Path(runtime_dir) / "pagewire" if runtime_dir else _own_directory()


def prepare(directory: Path) -> Path:
    """Makes the directory if it is not there, and checks that nobody else can use it.

    Raises: RunDirError.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.stat(follow_symlinks=False)
    except OSError as error:
        raise RunDirError(f"--state-dir {directory}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise RunDirError(f"--state-dir {directory}: not a directory")
    if found.st_uid != os.getuid():
        raise RunDirError(f"--state-dir {directory}: belongs to user {found.st_uid}, must be user {os.getuid()}'s")
    if found.st_mode & 0o077:
        raise RunDirError(f"--state-dir {directory}: open to others ({stat.S_IMODE(found.st_mode):o}), must be 700")
    return directory


def ipc_endpoint(path: Path) -> str:
    """The endpoint for a socket at ``path``, or at a short path that stands for it."""
    return shortened(f"{_IPC}{path.absolute()}")


def shortened(endpoint: str) -> str:
    """The same endpoint, or a short one in its place if its path is too long for the kernel."""
    path = endpoint.removeprefix(_IPC)
    if not endpoint.startswith(_IPC) or len(os.fsencode(path)) <= MAX_PATH_BYTES:
        return endpoint
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
    return f"{_IPC}{_own_directory() / name}.sock"


def claim(endpoint: str) -> BinaryIO | None:
    """Makes room for a socket: its directory exists and is private, what a dead process left is removed.

    The lock that comes back is held until it is closed or the process ends; None for an endpoint without a path.

    Raises: RunDirError: a living process listens there, or the path cannot be used.
    """
    if not endpoint.startswith(_IPC):
        return None
    path = Path(endpoint.removeprefix(_IPC))
    if not path.parent.exists() or path.parent == _own_directory():
        prepare(path.parent)
    lock = _lock(path)
    try:
        if path.exists():
            if not path.is_socket():
                raise RunDirError(f"{path}: is there and is no socket")
            if _is_listened_to(path):
                raise _taken(path)
            path.unlink(missing_ok=True)
    except BaseException:
        lock.close()
        raise
    return lock


def _lock(path: Path) -> BinaryIO:
    """The file stays for ever: removing it would let two processes lock two files of one name."""
    try:
        lock = path.with_name(f"{path.name}.lock").open("ab")
    except OSError as error:
        raise RunDirError(f"{path}: {error.strerror}") from error
    os.fchmod(lock.fileno(), 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise _taken(path) from None
    return lock


def _taken(path: Path) -> RunDirError:
    return RunDirError(f"{path}: another scheduler listens there; stop it or choose another --port or --state-dir")


def close_to_others(endpoint: str) -> None:
    """Only the owner may connect."""
    if endpoint.startswith(_IPC):
        Path(endpoint.removeprefix(_IPC)).chmod(0o600)


def remove(endpoint: str) -> None:
    """The socket's file, when its owner stops."""
    if endpoint.startswith(_IPC):
        with contextlib.suppress(OSError):
            Path(endpoint.removeprefix(_IPC)).unlink(missing_ok=True)


def hash_key(path: Path, *, make: bool) -> bytes:
    """The key of the page hashes; ``make``: drawn once if the file is not there, which nobody named then.

    Raises: RunDirError.
    """
    name = "page hash key" if make else "--prefix-hash-key-file"
    try:
        if make and not path.exists():
            _make_key(path)
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise RunDirError(f"{name} {path}: is no regular file")
        key = path.read_bytes()
    except OSError as error:
        raise RunDirError(f"{name} {path}: {error.strerror}") from error
    if len(key) != KEY_BYTES:
        raise RunDirError(f"{name} {path}: holds {len(key)} bytes, must hold {KEY_BYTES}")
    if mode & 0o077:
        raise RunDirError(f"{name} {path}: readable by others ({stat.S_IMODE(mode):o}), must be 600")
    return key


def _make_key(path: Path) -> None:
    """Whole or not at all, and the first of two that try wins."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        Path(temporary).unlink()


def _own_directory() -> Path:
    return Path("/tmp") / f"pagewire-{os.getuid()}"


def _is_listened_to(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True
