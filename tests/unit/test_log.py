"""Logging never ends a service."""

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog

import gpu_worker.log
import scheduler_svc.log

CONFIGURES = [scheduler_svc.log.configure, gpu_worker.log.configure]


@pytest.fixture(autouse=True)
def _same_logging_afterwards() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.mark.parametrize("configure", CONFIGURES)
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_full_disk_is_survived(
    monkeypatch: pytest.MonkeyPatch, configure: Callable[[str], None], log_format: str
) -> None:
    with io.FileIO("/dev/full", "w") as device:
        full = io.TextIOWrapper(device, write_through=True)
        monkeypatch.setattr(sys, "stderr", full)
        configure(log_format)
        for number in range(1000):
            structlog.get_logger().info("something", number=number)
        full.detach()


@pytest.mark.parametrize("configure", CONFIGURES)
def test_no_stderr_at_all_is_survived(monkeypatch: pytest.MonkeyPatch, configure: Callable[[str], None]) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    configure("text")
    structlog.get_logger().info("something")


@pytest.mark.parametrize("configure", CONFIGURES)
def test_events_arrive(monkeypatch: pytest.MonkeyPatch, configure: Callable[[str], None], tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("w") as file:
        monkeypatch.setattr(sys, "stderr", file)
        configure("json")
        structlog.get_logger().info("something", number=7)
    assert '"number": 7' in path.read_text()


def test_a_flood_of_events_is_thinned_by_kind() -> None:
    log = scheduler_svc.log.SparseLog(3)
    with structlog.testing.capture_logs() as written:
        for number in range(100):
            log.info("came", 5 + number / 50, number=number)
            log.warning("went", 5 + number / 50, number=number)
    came = [each for each in written if each["event"] == "came"]
    assert [each["number"] for each in came] == [0, 1, 2, 50, 51, 52]
    assert [each.get("left_out") for each in came] == [None, None, None, 47, None, None]
    assert {each["log_level"] for each in came} == {"info"}
    assert len(written) == 2 * len(came)


@pytest.mark.parametrize("configure", CONFIGURES)
def test_a_line_goes_out_in_one_piece(monkeypatch: pytest.MonkeyPatch, configure: Callable[[str], None]) -> None:
    """As several processes write into one pipe, with PYTHONUNBUFFERED each write at once."""
    pieces: list[str] = []
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=pieces.append, flush=lambda: None, isatty=lambda: False))
    configure("json")
    structlog.get_logger().info("first")
    structlog.get_logger().info("second")
    assert [json.loads(piece)["event"] for piece in pieces] == ["first", "second"]
    assert all(piece.endswith("}\n") for piece in pieces)
