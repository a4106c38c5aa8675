"""What tenants are charged, and whose turn it is."""

import pytest
from support.core_bench import CoreBench, card, config
from support.core_transcript import check_transcript
from support.core_worker import counting

from scheduler_svc.core.accounts import Accounts


def test_tenants_take_turns_however_much_one_of_them_asks() -> None:
    check_transcript("""
    core rows=1
    worker w pages=8 size=4
    submit a 1..4 max=1 tenant=x
    submit b 11..14 max=1 tenant=x
    submit c 21..24 max=1 tenant=x
    submit d 31..34 max=1 tenant=y priority=-9
    submit e 41..44 max=1 tenant=y priority=-9
    run
    accounts
    ----
    5 steps: a +1, b +1, c +1, d +1, e +1
    a ended: length, 1 tokens, in decode
    d ended: length, 1 tokens, in decode
    b ended: length, 1 tokens, in decode
    e ended: length, 1 tokens, in decode
    c ended: length, 1 tokens, in decode
    x 18, y 12
    """)


def test_a_tenant_with_twice_the_weight_gets_twice_the_turns() -> None:
    check_transcript("""
    core rows=1 weights=x:2
    worker w pages=8 size=4
    submit a 1..4 max=1 tenant=x
    submit b 11..14 max=1 tenant=x
    submit c 21..24 max=1 tenant=x
    submit d 31..34 max=1 tenant=y
    submit e 41..44 max=1 tenant=y
    run
    ----
    5 steps: a +1, b +1, c +1, d +1, e +1
    a ended: length, 1 tokens, in decode
    d ended: length, 1 tokens, in decode
    b ended: length, 1 tokens, in decode
    c ended: length, 1 tokens, in decode
    e ended: length, 1 tokens, in decode
    """)


def test_without_fairness_all_are_one_tenant() -> None:
    check_transcript("""
    core rows=1 fair=off
    worker w pages=8 size=4
    submit a 1..4 max=1 tenant=x
    submit b 11..14 max=1 tenant=x
    submit c 21..24 max=1 tenant=y
    run
    accounts
    ----
    3 steps: a +1, b +1, c +1
    a ended: length, 1 tokens, in decode
    b ended: length, 1 tokens, in decode
    c ended: length, 1 tokens, in decode
    nobody 18
    """)


def test_cached_tokens_cost_a_tenth_and_outputs_twice() -> None:
    check_transcript("""
    worker w pages=8 size=4
    submit a 1..9 max=3 tenant=x
    run
    accounts
    submit b 1..9 max=3 tenant=y
    run
    accounts
    ----
    3 steps: a +3
    a ended: length, 3 tokens, in decode
    x 15
    3 steps: b +3
    b ended: length, 3 tokens, in decode
    x 15, y 7.8
    """)


def test_the_prompt_of_many_outputs_is_charged_once() -> None:
    check_transcript("""
    worker w pages=8 size=4
    submit a 1..9 max=3 tenant=x
    submit b 1..9 max=3 tenant=x index=1
    submit c 1..9 max=3 tenant=x index=2
    run
    accounts
    ----
    5 steps: a +3, b +3, c +3
    a ended: length, 3 tokens, in decode
    b ended: length, 3 tokens, in decode
    c ended: length, 3 tokens, in decode
    x 27
    """)


def test_what_was_scheduled_and_dropped_is_given_back() -> None:
    """Charged at scheduling: two outputs are in flight. The stop string counts to its token."""
    check_transcript("""
    worker w pages=8 size=4
    submit a 1..3 max=20 tenant=x
    plan
    accounts
    plan
    accounts
    result
    plan
    accounts
    stop a 1
    accounts
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 page 0 computes 3
    x 5
    step 2: a decodes
    x 7
    step 1: a0
    a prefilled 3 of 3
    step 3: a page 1; a decodes
    x 9
    a ended: stop string, 1 tokens, in decode
    x 5
    """)


def test_what_is_computed_again_costs_nothing() -> None:
    check_transcript("""
    worker u pages=8 size=4
    submit a 1..6 max=4 tenant=x
    plan u
    result u
    plan u
    accounts
    lose u
    accounts
    worker v pages=8 size=4
    run v
    accounts
    ----
    a admitted on u, 0 cached
    step 1: a on row 0 pages 0,1 computes 6
    step 1: a0
    a prefilled 6 of 6
    step 2: a decodes; published 0
    x 10
    a preempted: worker lost
    x 8
    3 steps: a +3
    a ended: length, 4 tokens, 7 recomputed, in decode
    x 14
    """)


def test_who_comes_back_starts_where_the_least_served_is() -> None:
    """Nobody saves up turns: y did nothing while x was served, and they share from then on."""
    bench = CoreBench(config(rows=1, tokens=64), card(pages=64), function=counting)
    for key in range(40):
        bench.submit(key, range(4), 1, stops=(), tenant="x")
    for _ in range(20):
        bench.step()
    for key in range(40, 60):
        bench.submit(key, range(4), 1, stops=(), tenant="y")
    for _ in range(20):
        bench.step()
    served = sum(1 for key in bench.ended if key >= 40)
    assert 9 <= served <= 11
    bench.finish()


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_two_backlogged_tenants_are_served_alike(weight: float) -> None:
    """However long their requests are: counters differ by less than one prompt and what runs at a time."""
    limits = config(rows=4, tokens=64, tenant_weights={"x": weight}, enable_prefix_caching=False)
    bench = CoreBench(limits, card(pages=256), function=counting)
    for key in range(120):
        bench.submit(key, range(40 if key % 2 else 8), 4 if key % 2 else 16, stops=(), tenant="y" if key % 2 else "x")
    for _ in range(150):
        bench.step()
        charged = bench.core.charges()
        gap = abs(charged.get("x", 0.0) / weight - charged.get("y", 0.0))
        assert gap <= 2 * max(40 + 2 * 4, 4 * 2 * 16), "one tenant fell behind"
    bench.finish()


def test_accounts_that_mean_nothing_any_more_are_forgotten() -> None:
    accounts = Accounts({}, by_tenant=True)
    busy, idle = accounts.of("busy"), accounts.of("idle")
    busy.num_live = 1
    busy.begin_wait(1)
    idle.charge(50)
    for number in range(5000):
        accounts.of(f"tenant {number}")
    assert len(accounts) < 2100
    assert accounts.of("busy") is busy
    assert accounts.of("idle") is idle  # it was served more than who waits: that is not forgotten


def test_a_weight_must_be_positive() -> None:
    with pytest.raises(ValueError, match="tenant x"):
        CoreBench(config(tenant_weights={"x": 0.0}))


def test_a_tenant_that_stops_and_begins_again_behind_another_waits_once() -> None:
    check_transcript("""
    core rows=1
    worker w pages=16 size=4
    submit a 1..4 max=1 tenant=x
    submit b 1..4 max=1 tenant=y
    cancel b
    submit c 1..4 max=1 tenant=y
    run
    ----
    b ended: cancelled, 0 tokens, in queue
    2 steps: a +1, c +1
    a ended: length, 1 tokens, in decode
    c ended: length, 1 tokens, in decode
    """)
