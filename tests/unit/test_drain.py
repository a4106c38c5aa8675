"""The times of a drain, and what counts as a stall."""

from scheduler_svc.drain import Drain
from scheduler_svc.stall import STALL_SECONDS, Stall


def test_notice_then_refusals_then_the_end() -> None:
    drain = Drain()
    assert (drain.until, drain.next_due(0.0), drain.ms_left(0.0)) == (None, None, 0)
    assert not drain.refuses(0.0)
    drain.begin(100.0, notice_seconds=3.0, seconds=10.0)
    assert [drain.refuses(now) for now in (100.0, 102.9, 103.0)] == [False, False, True]
    assert (drain.next_due(100.0), drain.next_due(103.0)) == (103.0, 113.0)
    assert [drain.is_over(now) for now in (112.9, 113.0)] == [False, True]
    assert drain.ms_left(103.0) == 10_000


def test_asking_again_never_puts_anything_off() -> None:
    drain = Drain()
    drain.begin(100.0, notice_seconds=3.0, seconds=10.0)
    drain.begin(101.0, notice_seconds=60.0, seconds=60.0)
    assert (drain.next_due(101.0), drain.until) == (103.0, 113.0)
    drain.begin(102.0, notice_seconds=0.0, seconds=0.0)
    assert drain.refuses(102.0)
    assert drain.is_over(102.0)


def test_a_stall_is_told_once_and_taken_back_once() -> None:
    stall, told = Stall(0.0), []
    for second in range(1, int(STALL_SECONDS) + 5):
        assert stall.is_due(second)
        told.append(stall.changes(second, is_stuck=second > 2))
    assert (told.count(True), stall.is_stalled) == (1, True)
    assert stall.changes(second + 1, is_stuck=False)
    assert not stall.is_stalled
    assert not stall.is_due(second + 1.5)


def test_a_process_that_was_stopped_does_not_call_itself_stalled() -> None:
    stall = Stall(0.0)
    assert not stall.changes(1.0, is_stuck=True)
    assert not stall.changes(1.0 + 2 * STALL_SECONDS, is_stuck=True)
