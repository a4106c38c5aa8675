"""Submissions whose id is taken: which of them wait, for how long, and what ends their waiting."""

from support.submissions import submission

from scheduler_svc.duplicates import HOLD_SECONDS, MAX_HELD, Duplicates
from scheduler_svc.requests import Requests

FRONT, OTHER = 7, 8


def test_they_wait_until_their_id_is_free_or_their_time_is_over() -> None:
    requests = Requests()
    live = requests.add(FRONT, 1, submission(1))
    requests.add(FRONT, 1, submission(2, tenant="u"))
    duplicates = Duplicates(requests)
    ours, theirs = submission(1), submission(2, tenant="u")
    assert duplicates.hold(OTHER, ours, 10.0)
    assert duplicates.hold(OTHER, theirs, 10.1)
    assert (duplicates.due(10.1), duplicates.next_expiry()) == ([], 10.0 + HOLD_SECONDS)
    requests.remove(live)
    assert duplicates.due(10.1) == [(OTHER, ours)]
    assert duplicates.due(10.1 + HOLD_SECONDS) == [(OTHER, theirs)]
    assert (duplicates.due(99.0), duplicates.next_expiry()) == ([], None)


def test_who_does_not_wait_any_more_is_forgotten() -> None:
    requests = Requests()
    requests.add(FRONT, 1, submission(1))
    duplicates = Duplicates(requests)
    held = submission(5)
    duplicates.hold(OTHER, held, 0.0)
    duplicates.hold(FRONT, held, 0.0)
    assert duplicates.take(OTHER, 5) is held
    assert duplicates.take(OTHER, 5) is None
    duplicates.lose_front(FRONT)
    assert duplicates.due(99.0) == []


def test_only_so_many_wait() -> None:
    duplicates = Duplicates(Requests())
    assert all(duplicates.hold(FRONT, submission(key), 0.0) for key in range(MAX_HELD))
    assert not duplicates.hold(FRONT, submission(MAX_HELD), 0.0)
