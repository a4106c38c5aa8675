"""Workers that fail right after joining wait longer and longer, and nobody else waits."""

import pytest

from scheduler_svc.join_pace import JoinPace
from scheduler_svc.router import Peer

PEER, OTHER = Peer(b"one"), Peer(b"other")


def wait_after_quick_losses(pace: JoinPace, count: int) -> list[float]:
    """The waits of a worker that is lost at once whenever it has joined."""
    now, waits = 100.0, []
    pace.joined(PEER, now)
    for _ in range(count):
        now += 0.01
        waits.append(pace.wait(PEER, now))
        now += waits[-1]
        assert pace.wait(PEER, now) == pytest.approx(0, abs=1e-9)
        pace.joined(PEER, now)
    return waits


def test_the_wait_doubles_up_to_a_bound() -> None:
    waits = wait_after_quick_losses(JoinPace(), 2000)
    assert waits[:8] == pytest.approx([0, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5])
    assert waits[-1] == pytest.approx(5)


def test_hellos_do_not_prolong_the_wait() -> None:
    pace = JoinPace()
    for _ in range(3):
        pace.joined(PEER, 100.0)
        pace.wait(PEER, 100.0)
    assert [pace.wait(PEER, 100 + each / 10) for each in range(1, 5)] == pytest.approx([0.3, 0.2, 0.1, 0])


def test_answers_time_and_new_connections_are_forgiven() -> None:
    pace = JoinPace()
    wait_after_quick_losses(pace, 5)
    assert pace.wait(OTHER, 110.0) == 0
    pace.forgive(PEER)
    assert pace.wait(PEER, 110.0) == 0
    wait_after_quick_losses(pace, 5)
    pace.joined(PEER, 200.0)
    assert pace.wait(PEER, 201.5) == 0
    pace.joined(PEER, 201.5)
    assert pace.wait(PEER, 201.6) == 0
