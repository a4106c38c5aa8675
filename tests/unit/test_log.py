"""Logging never ends a service."""

import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

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
