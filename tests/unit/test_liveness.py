"""When peers are given up, and how soon refused callers come back."""

from scheduler_svc.drain_rate import DrainRate
from scheduler_svc.liveness import OwnStalls, StepClock


def test_only_rounds_that_come_much_too_late_are_stalls() -> None:
    stalls = OwnStalls(100.0)
    assert stalls.lost(100.5) == 0
    assert stalls.lost(110.5) == 10.0
    assert stalls.lost(110.6) == 0


def test_the_first_step_may_compile() -> None:
    assert StepClock().allowed(10) >= 60


def test_a_quick_worker_gets_ten_seconds() -> None:
    clock = StepClock()
    clock.observe(1, 0.01)
    assert clock.allowed(1) == 10.0


def test_a_slow_worker_gets_five_times_its_usual_step() -> None:
    clock = StepClock()
    for _ in range(50):
        clock.observe(512, 4.0)
    assert 19.0 < clock.allowed(512) < 21.0
    assert 38.0 < clock.allowed(1024) < 42.0


def test_a_refused_caller_waits_by_the_measured_rate() -> None:
    rate = DrainRate()
    assert rate.retry_ms(10, 0.0) == 1000
    for number in range(11):
        rate.count(number * 0.1)
    assert 400 < rate.retry_ms(10, 1.0) < 600
    assert rate.retry_ms(1, 1.0) == 100
    assert rate.retry_ms(10**6, 1.0) == 30_000
    rate.forget()  # nobody was in the way for an hour
    assert rate.retry_ms(10, 3600.0) == 1000
    for number in range(11):
        rate.count(3600.0 + number * 0.1)
    assert 400 < rate.retry_ms(10, 3601.0) < 600
