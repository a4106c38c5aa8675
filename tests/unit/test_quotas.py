"""How many requests a tenant may begin in a minute."""

import pytest

from scheduler_svc import quotas
from scheduler_svc.quotas import Quotas


def test_a_burst_then_an_even_rate() -> None:
    rate = Quotas()
    assert [rate.take("a", 60, 0.0) for _ in range(10)] == [0.0] * 10
    assert rate.take("a", 60, 0.0) == pytest.approx(1.0)
    assert rate.take("b", 60, 0.0) == 0.0
    assert rate.take("a", 60, 0.5) == pytest.approx(0.5)
    assert rate.take("a", 60, 1.0) == 0.0
    assert rate.take("a", 60, 1.0) > 0.0


def test_what_did_not_begin_is_given_back() -> None:
    rate = Quotas()
    assert [rate.take("a", 60, 0.0) for _ in range(10)] == [0.0] * 10
    rate.give_back("a")
    rate.give_back("b")
    assert rate.take("a", 60, 0.0) == 0.0
    assert rate.take("a", 60, 0.0) > 0.0
    for _ in range(20):
        rate.give_back("a")
    assert sum(rate.take("a", 60, 0.0) == 0.0 for _ in range(20)) == 10


def test_no_limit_counts_nothing() -> None:
    rate = Quotas()
    assert all(rate.take("a", 0, 0.0) == 0.0 for _ in range(1000))


def test_a_small_rate_still_lets_one_begin() -> None:
    rate = Quotas()
    assert rate.take("a", 1, 0.0) == 0.0
    assert rate.take("a", 1, 0.0) == pytest.approx(60.0)
    assert rate.take("a", 1, 60.0) == 0.0


def test_a_changed_limit_counts_at_once() -> None:
    rate = Quotas()
    for _ in range(10):
        rate.take("a", 60, 0.0)
    assert rate.take("a", 600, 0.1) == 0.0


def test_idle_tenants_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "_MOST_IDLE", 3)
    rate = Quotas()
    for name in "abc":
        rate.take(name, 60, 0.0)
    rate.take("d", 60, 100.0)
    assert list(rate._buckets) == ["d"]
