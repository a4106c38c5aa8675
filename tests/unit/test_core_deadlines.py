"""Deadlines: what has expired is not computed, and what cannot be met is refused once speeds are known."""

import pytest
from support.core_bench import CoreBench, card, config
from support.core_transcript import check_transcript
from support.core_worker import counting

from scheduler_svc.core.errors import RejectCode, RequestRejected
from scheduler_svc.core.rates import FEW, Rates
from scheduler_svc.core.types import EndReason


def warm(bench: CoreBench, num_steps: int = FEW) -> None:
    """Steps full of prompt tokens, one a second."""
    for key in range(1000, 1000 + num_steps):
        bench.submit(key, [key] * 64, 1, stops=(), cached=False)
        bench.plan()
        bench.now += 1.0
        bench.result()


def test_what_has_expired_is_never_computed() -> None:
    check_transcript("""
    core rows=1
    worker w pages=8 size=4
    submit a 1..4 max=3
    plan
    submit b 11..14 max=3 deadline=5
    submit c 21..24 max=3 deadline=7
    time 6
    run
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 page 0 computes 4
    5 steps: a +3, c +3
    b ended: deadline, 0 tokens, in queue
    a ended: length, 3 tokens, in decode
    c ended: length, 3 tokens, in decode
    """)


def test_without_measured_speeds_nothing_is_refused_for_its_deadline() -> None:
    bench = CoreBench(config(tokens=64), card(pages=64, size=16, length=900), function=counting)
    warm(bench, FEW - 1)
    bench.submit(0, range(800), 1, stops=(), deadline=bench.now + 1e-6)
    bench.finish()
    assert bench.ended[0].reason is EndReason.LENGTH  # time stood still


def test_a_prompt_that_takes_longer_than_its_deadline_is_refused() -> None:
    bench = CoreBench(config(tokens=64), card(pages=64, size=16, length=900), function=counting)
    warm(bench)
    with pytest.raises(RequestRejected, match=r"2\.5 s after the deadline") as refusal:
        bench.submit(0, range(800), 1, stops=(), deadline=bench.now + 10.0)
    assert refusal.value.code is RejectCode.DEADLINE
    assert bench.core.next_expiry() is None
    bench.submit(0, range(800), 1, stops=(), deadline=bench.now + 13.0)
    bench.finish()
    bench.submit(1, range(800), 1, stops=(), deadline=bench.now + 1.0)  # it is cached now
    bench.finish()


def test_a_speed_that_nothing_confirms_refuses_nobody() -> None:
    """Slow once, the worker is fast again, which only those can show who are let through."""
    bench = CoreBench(config(tokens=64), card(pages=64, size=16, length=900), function=counting)
    warm(bench)
    asked = {"stops": (), "cached": False}
    with pytest.raises(RequestRejected):
        bench.submit(0, range(800), 1, deadline=bench.now + 10.0, **asked)
    bench.now += 11.0
    bench.submit(1, range(800), 1, deadline=bench.now + 10.0, **asked)
    while bench.plan() is not None:
        bench.now += 0.1
        bench.result()
    bench.submit(2, range(800), 1, deadline=bench.now + 2.0, **asked)
    bench.finish()
    assert {bench.ended[key].reason for key in (1, 2)} == {EndReason.LENGTH}


def test_a_deadline_that_has_passed_ends_its_request_in_the_queue() -> None:
    bench = CoreBench(config(tokens=64), card(pages=64, size=16), function=counting)
    warm(bench)
    bench.submit(0, range(100), 1, stops=(), deadline=bench.now - 1.0)
    bench.finish()
    assert (bench.ended[0].reason, bench.ended[0].stage) == (EndReason.DEADLINE, "queue")


def test_who_would_wait_too_long_is_refused_and_who_comes_first_is_not() -> None:
    """Eight requests began in seven seconds and 40 wait: half of their 40 seconds is the least that one waits."""
    bench = CoreBench(config(tokens=64, rows=1), card(pages=64, size=16), function=counting)
    for key in range(50):
        bench.submit(key, [key], 1, stops=(), deadline=1000.0)
    for _ in range(8):
        bench.plan()
        bench.now += 1.0
        bench.result()
    with pytest.raises(RequestRejected) as refusal:
        bench.submit(50, [50], 1, stops=(), deadline=bench.now + 15, priority=-1)
    assert refusal.value.code is RejectCode.DEADLINE
    bench.submit(50, [50], 1, stops=(), deadline=bench.now + 15)
    bench.submit(51, [51], 1, stops=(), deadline=bench.now + 25, priority=-1)
    bench.finish()


def test_an_empty_queue_has_no_wait() -> None:
    bench = CoreBench(config(tokens=64, rows=1), card(pages=64, size=16), function=counting)
    for key in range(8):
        bench.submit(key, [key], 1, stops=())
    for _ in range(8):
        bench.plan()
        bench.now += 1.0
        bench.result()
    bench.plan()
    bench.now += 50
    bench.submit(8, [8], 1, stops=(), deadline=bench.now + 0.5)
    bench.finish()


def test_the_best_speed_lately_counts() -> None:
    rates = Rates()
    for now, seconds in enumerate((0.4, 0.2, 0.2, 0.3), 1):
        rates.note_plan(float(now))
        rates.note_done(100, 128, now + seconds)
    rates.note_plan(9.0)
    rates.note_done(1, 128, 9.5)  # decoding says nothing of prompts
    rates.note_plan(10.0)
    rates.note_done(100, 128, 10.0)  # nor does a clock that stands still
    assert rates.least_prefill(1000, 10.0) == pytest.approx(2.1)
