"""Where a worker connects: short names for long paths as the scheduler makes them, encryption beyond this machine."""

import pytest

from gpu_worker import endpoint
from scheduler_svc import run_dir


@pytest.mark.parametrize("length", [10, 90, 91, 92, 93, 200])
def test_both_ends_shorten_alike(length: int) -> None:
    path = f"ipc:///run/{'x' * length}"
    assert endpoint.usable(path) == run_dir.shortened(path)


LOCAL = ["tcp://127.0.0.1:5571", "tcp://[::1]:5571", "tcp://localhost:1"]
REMOTE = ["tcp://10.0.0.1:5571", "tcp://host:1", "tcp://[2001:db8::1]:1"]


@pytest.mark.parametrize("good", LOCAL + REMOTE)
def test_tcp_is_taken_as_it_is(good: str) -> None:
    assert endpoint.usable(good) == good
    assert endpoint.leaves_the_host(good) == (good in REMOTE)


@pytest.mark.parametrize(
    "bad", ["", "ipc://", "tcp://", "tcp://:5571", "tcp://host:x", "tcp://127.0.0.1", "inproc://x"]
)
def test_others_are_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="ipc:///PATH or"):
        endpoint.usable(bad)
