"""Encrypted links to workers: who has a key on the list comes in, nobody else, and nobody unencrypted."""

import errno
import os
import secrets
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from pagewire_client.stack import free_ports
from support.conditions import wait_until
from support.engine_thread import EngineThread
from support.raw_front import RawFront
from support.scheduler_process import SchedulerProcess
from support.scripted_worker import ScriptedWorker

from gpu_worker.curve import CurveKeys, read_keys
from gpu_worker.errors import ConfigError
from scheduler_svc import curve, curve_keys
from scheduler_svc.run_dir import RunDirError


@pytest.fixture
def keys_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "keys"
    curve.ensure_keys(directory)
    return directory


@pytest.fixture
def engine(keys_dir: Path) -> Iterator[EngineThread]:
    with EngineThread(curve_dir=keys_dir) as running:
        yield running


def generates(front: RawFront) -> bool:
    key = front.submit([1, 2, 3], max_tokens=3)
    front.wait_over(key)
    return len(front.requests[key].output()) == 3


def test_a_listed_worker_comes_in_and_a_removed_one_not_again(keys_dir: Path, engine: EngineThread) -> None:
    keys = read_keys(keys_dir)
    with RawFront(engine.front_endpoint) as front:
        with ScriptedWorker(engine.worker_endpoint, keys=keys):
            front.wait_ready()
            assert generates(front)
            (keys_dir / "workers" / "worker.public").unlink()
            assert generates(front)
        front.wait_ready(0)
        # Another one is let in while the scheduler runs; the removed one knocks in vain.
        secret = curve.add_worker(keys_dir, "second")
        shutil.copy(secret, keys_dir / "worker.secret")
        with ScriptedWorker(engine.worker_endpoint, keys=keys) as removed:
            with ScriptedWorker(engine.worker_endpoint, keys=read_keys(keys_dir)):
                front.wait_ready()
                assert generates(front)
            assert removed.plans == []


def test_strangers_and_plain_links_get_nothing_and_disturb_nobody(keys_dir: Path, engine: EngineThread) -> None:
    keys = read_keys(keys_dir)
    public_key, secret_key = zmq.curve_keypair()
    stranger = CurveKeys(secret_key=secret_key, public_key=public_key, server_key=keys.server_key)
    deceived = CurveKeys(secret_key=keys.secret_key, public_key=keys.public_key, server_key=public_key)
    with (
        RawFront(engine.front_endpoint) as front,
        ScriptedWorker(engine.worker_endpoint, keys=stranger) as first,
        ScriptedWorker(engine.worker_endpoint, keys=deceived) as second,
        ScriptedWorker(engine.worker_endpoint) as third,
        ScriptedWorker(engine.worker_endpoint, keys=keys),
    ):
        front.wait_ready()
        assert all(generates(front) for _ in range(5))
        assert first.plans == second.plans == third.plans == []


def test_bytes_of_any_kind_leave_the_scheduler_running(keys_dir: Path) -> None:
    """Handshakes cut off, changed and repeated, over TCP."""
    port = free_ports(1)[0]
    flags = ("--zmq-curve-dir", str(keys_dir), "--worker-endpoint", f"tcp://127.0.0.1:{port}")
    with SchedulerProcess(*flags, "--front-processes", "1") as scheduler:
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE".ljust(23, b"\0") + bytes(32)
        hello = b"\x04\xc8\x05HELLO\x01\x00" + bytes(72)
        contents = [secrets.token_bytes(n) for n in (1, 64, 4096)]
        contents += [greeting, greeting + hello + secrets.token_bytes(120), greeting[:11] + b"NULL".ljust(20, b"\0")]
        contents += [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100_000]
        threads = [threading.Thread(target=knock, args=(port, content)) for content in contents]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with (
            ScriptedWorker(f"tcp://127.0.0.1:{port}", keys=read_keys(keys_dir)),
            RawFront(f"ipc://{scheduler.directory}/front-{scheduler.port}.sock") as front,
        ):
            front.wait_ready()
            assert generates(front)
        wait_until(lambda: bool(scheduler.events("worker_let_in")), "a log of who came in")
        assert scheduler.stop() == 0


def knock(port: int, content: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as link:
        link.sendall(content)


def test_keys_are_made_once_and_for_their_owner_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "keys"
    assert curve_keys.main([str(directory)]) == 0
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    assert {path.stat().st_mode & 0o777 for path in before if path.suffix == ".secret"} == {0o600}
    assert curve_keys.main([str(directory), "gpu-7"]) == 0
    assert f"{directory}/gpu-7.secret, as worker.secret, and" in capsys.readouterr().out
    assert all(path.read_bytes() == content for path, content in before.items())
    for arguments in ([str(directory), "gpu-7"], [str(directory), "../x"], [str(directory), "scheduler"], []):
        assert curve_keys.main(arguments) == 2
        told = capsys.readouterr().err
        assert (told.count("\n"), "--" in told) == (1, False)


def test_a_full_disk_leaves_no_half_of_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def full(source: str, target: Path) -> None:
        if target.suffix == ".secret":
            raise OSError(errno.ENOSPC, "No space left on device")
        link(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", full)
        assert curve_keys.main([str(tmp_path / "keys")]) == 2
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert curve_keys.main([str(tmp_path / "keys")]) == 0


def test_keys_that_cannot_be_used_are_named(keys_dir: Path) -> None:
    secret, context = keys_dir / "scheduler.secret", zmq.Context()
    for change, said in (
        (lambda: secret.chmod(0o644), "readable by others"),
        (lambda: secret.write_text("x"), "no key"),
    ):
        change()
        with pytest.raises(RunDirError, match=said):
            curve.Doorman(context, keys_dir)
        secret.chmod(0o600)
    context.term()
    keys_dir.chmod(0o755)
    with pytest.raises(RunDirError, match=r"--zmq-curve-dir .*open to others"):
        curve.ensure_keys(keys_dir)
    (keys_dir / "worker.secret").chmod(0o640)
    with pytest.raises(ConfigError, match="readable by others"):
        read_keys(keys_dir)
    (keys_dir / "scheduler.public").write_bytes(b"short")
    (keys_dir / "worker.secret").chmod(0o600)
    with pytest.raises(ConfigError, match="holds no key"):
        read_keys(keys_dir)
    (keys_dir / "worker.secret").unlink()
    with pytest.raises(ConfigError, match="No such file"):
        read_keys(keys_dir)
