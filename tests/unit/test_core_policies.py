"""In which order one tenant's requests are served, under each policy."""

import pytest
from support.core_bench import CoreBench, card, config
from support.core_transcript import check_transcript
from support.core_worker import counting

from scheduler_svc.core.types import SchedulingPolicy


def test_first_come_first_served_whatever_the_priority_and_the_deadline() -> None:
    check_transcript("""
    core rows=1 policy=fcfs
    worker w pages=8 size=4
    submit a 1..9 max=1
    submit b 11..12 max=1 priority=5 deadline=9
    submit c 21 max=1
    run
    ----
    3 steps: a +1, b +1, c +1
    a ended: length, 1 tokens, in decode
    b ended: length, 1 tokens, in decode
    c ended: length, 1 tokens, in decode
    """)


def test_priority_first_then_the_earliest_deadline_then_the_first_come() -> None:
    check_transcript("""
    core rows=1 policy=priority
    worker w pages=8 size=4
    submit a 1..2 max=1
    submit b 11..12 max=1 deadline=90
    submit c 21..22 max=1 deadline=50
    submit d 31..32 max=1 priority=1
    submit e 41..42 max=1 priority=1 deadline=200
    submit f 51..52 max=1
    run
    ----
    6 steps: a +1, b +1, c +1, d +1, e +1, f +1
    e ended: length, 1 tokens, in decode
    d ended: length, 1 tokens, in decode
    c ended: length, 1 tokens, in decode
    b ended: length, 1 tokens, in decode
    a ended: length, 1 tokens, in decode
    f ended: length, 1 tokens, in decode
    """)


def test_the_shortest_first() -> None:
    check_transcript("""
    core rows=1 policy=sjf
    worker w pages=8 size=4
    submit a 1..9 max=4
    submit b 11..12 max=9
    submit c 21..22 max=2
    submit d 31..39 max=9 priority=1
    run
    ----
    24 steps: a +4, b +9, c +2, d +9
    d ended: length, 9 tokens, in decode
    c ended: length, 2 tokens, in decode
    b ended: length, 9 tokens, in decode
    a ended: length, 4 tokens, in decode
    """)


def test_who_has_waited_long_enough_is_passed_no_more() -> None:
    """A level of priority is worth twice the aging time."""
    check_transcript("""
    core rows=1 aging=10
    worker w pages=8 size=4
    submit a 1..2 max=9
    plan
    submit b 11..12 max=1
    time 20
    submit c 21..22 max=1 priority=1
    time 21
    submit d 31..32 max=1 priority=1
    run
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 page 0 computes 2
    11 steps: a +9, b +1, c +1, d +1
    a ended: length, 9 tokens, in decode
    b ended: length, 1 tokens, in decode
    c ended: length, 1 tokens, in decode
    d ended: length, 1 tokens, in decode
    """)


@pytest.mark.parametrize("policy", SchedulingPolicy)
def test_one_low_long_request_in_an_endless_stream_of_better_ones_is_served(policy: SchedulingPolicy) -> None:
    """Each second brings two requests and one is served; those of the first aging x (1 + 2 levels) seconds may pass."""
    bench = CoreBench(config(rows=1, scheduling_policy=policy, aging_seconds=5.0), card(pages=64), function=counting)
    bench.submit(0, range(100), 3, stops=(), priority=0)
    served: float | None = None
    for second in range(40):
        bench.now = float(second)
        for twin in range(2):
            bench.submit(1 + 2 * second + twin, [second], 1, stops=(), priority=1, deadline=bench.now + 9000)
        bench.step()
        if served is None and bench.outputs[0]:
            served = bench.now
    assert served is not None
    assert served <= 1.0 if policy is SchedulingPolicy.FCFS else 2.0 <= served <= 32.0
    waited = [key for key, request in bench.requests.items() if key and not bench.outputs[key]]
    assert len(waited) > 30, "the stream was not endless"
