"""The directory of sockets and keys."""

import os
import socket
from pathlib import Path

import pytest

from scheduler_svc import run_dir
from scheduler_svc.run_dir import RunDirError


def test_it_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    made = run_dir.prepare(tmp_path / "a" / "b")
    assert made.stat().st_mode & 0o777 == 0o700
    assert run_dir.prepare(made) == made


def test_one_that_is_open_to_others_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(RunDirError, match="open to others"):
        run_dir.prepare(tmp_path)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(RunDirError, match="not a directory"):
        run_dir.prepare(link)


def test_defaults() -> None:
    assert run_dir.default_directory("/run/user/5") == Path("/run/user/5/pagewire")
    assert run_dir.default_directory(None) == Path(f"/tmp/pagewire-{os.getuid()}")


def test_long_paths_become_short_ones_that_differ() -> None:
    long = Path("/tmp") / ("x" * 120)
    endpoints = {run_dir.ipc_endpoint(long / name) for name in ("a.sock", "b.sock")}
    assert len(endpoints) == 2
    assert all(len(endpoint) < 107 for endpoint in endpoints)
    assert run_dir.shortened(f"ipc://{long}/a.sock") in endpoints
    assert run_dir.shortened("ipc:///tmp/a.sock") == "ipc:///tmp/a.sock"
    assert run_dir.shortened("tcp://127.0.0.1:5") == "tcp://127.0.0.1:5"


def test_a_stale_socket_is_replaced_and_a_living_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "worker.sock"
    endpoint = f"ipc://{path}"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        with pytest.raises(RunDirError, match=r"worker\.sock.*another scheduler"):
            run_dir.claim(endpoint)
    assert path.exists()
    lock = run_dir.claim(endpoint)
    assert lock is not None
    lock.close()
    assert not path.exists()
    path.write_text("a file")
    with pytest.raises(RunDirError, match="no socket"):
        run_dir.claim(endpoint)


def test_of_two_that_start_at_once_one_is_refused(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/worker.sock"
    lock, other = run_dir.claim(endpoint), run_dir.claim(f"ipc://{tmp_path}/front.sock")
    assert lock is not None
    assert other is not None
    with pytest.raises(RunDirError, match="another scheduler"):  # though nobody listens yet
        run_dir.claim(endpoint)
    lock.close()
    other.close()
    again = run_dir.claim(endpoint)
    assert again is not None
    again.close()
    assert (tmp_path / "worker.sock.lock").stat().st_mode & 0o777 == 0o600
    assert run_dir.claim("tcp://127.0.0.1:5") is None


def test_the_hash_key_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "hash.key"
    key = run_dir.hash_key(path, make=True)
    assert len(key) == 32
    assert run_dir.hash_key(path, make=True) == key
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_hash_key_must_be_whole_and_secret(tmp_path: Path) -> None:
    path = tmp_path / "hash.key"
    with pytest.raises(RunDirError, match=rf"^--prefix-hash-key-file {path}: No such file"):
        run_dir.hash_key(path, make=False)
    path.write_bytes(b"short")
    path.chmod(0o600)
    with pytest.raises(RunDirError, match="5 bytes"):
        run_dir.hash_key(path, make=True)
    path.write_bytes(bytes(32))
    path.chmod(0o644)
    with pytest.raises(RunDirError, match="readable by others"):
        run_dir.hash_key(path, make=True)


@pytest.mark.parametrize("kind", ["device", "fifo", "directory"])
def test_a_hash_key_is_a_regular_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "hash.key"
    {"device": lambda: path.symlink_to("/dev/zero"), "fifo": lambda: os.mkfifo(path), "directory": path.mkdir}[kind]()
    with pytest.raises(RunDirError, match="regular file"):
        run_dir.hash_key(path, make=True)
