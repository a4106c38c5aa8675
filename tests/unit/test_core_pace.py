"""Budgets in time: prompts that do not make running streams wait, as transcripts."""

import pytest
from support.core_transcript import check_transcript

from scheduler_svc.core.step_pace import StepPace


@pytest.mark.parametrize(("ours", "workers"), [("30", ""), ("worker", " target=30"), ("30", " target=5")])
def test_prompts_get_what_a_target_for_the_step_leaves(ours: str, workers: str) -> None:
    """A step of a alone takes 10 ms, 31 prompt tokens take 31 more: of 30 ms they may take just below 20; all they can
    get, as b has waited for long. The target is ours, or else the worker's."""
    check_transcript(f"""
    core tokens=32 target={ours}
    worker w pages=60 size=4{workers}
    submit a 1..4 max=30
    plan
    result ms=14
    plan
    result ms=10
    submit b 1..100 max=2
    time 1
    plan
    result ms=41
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 page 0 computes 4
    step 1: a0
    a prefilled 4 of 4
    step 2: a page 1; a decodes; published 0
    step 2: a1
    b admitted on w, 4 cached
    step 3: b on row 1 pages 0,2,3,4,5,6,7,8,9 computes 31; a decodes
    step 3: a2
    b prefilled 35 of 100

    plan
    result ms=30
    plan
    ----
    step 4: b pages 10,11,12,13,14 computes 19; a decodes; published 2,3,4,5,6,7,8
    step 4: a3
    b prefilled 54 of 100
    step 5: b pages 15,16,17,18,19 computes 19; a decodes; published 9,10,11,12,13
    """)


def test_a_target_that_nothing_meets_still_lets_prompts_end() -> None:
    check_transcript("""
    core tokens=64 target=5
    worker w pages=60 size=4
    submit a 1..4 max=30
    plan
    result ms=14
    plan
    result ms=10
    submit b 1..90 max=2
    plan
    result ms=70
    plan
    result ms=70
    plan
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 page 0 computes 4
    step 1: a0
    a prefilled 4 of 4
    step 2: a page 1; a decodes; published 0
    step 2: a1
    b admitted on w, 4 cached
    step 3: b on row 1 pages 0,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17 computes 63; a decodes
    step 3: a2
    b prefilled 67 of 90
    step 4: b pages 18,19,20,21 computes 16; a decodes; published 2,3,4,5,6,7,8,9,10,11,12,13,14,15,16
    step 4: a3
    b prefilled 83 of 90
    step 5: b pages 22,23 computes 7; a decodes; published 17,18,19,20
    """)


def test_without_running_streams_a_prompt_takes_the_whole_budget() -> None:
    check_transcript("""
    core tokens=64 target=5
    worker w pages=60 size=4
    submit b 1..90 max=2
    plan
    result ms=70
    plan
    ----
    b admitted on w, 0 cached
    step 1: b on row 0 pages 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15 computes 64
    step 1: no tokens
    b prefilled 64 of 90
    step 2: b pages 16,17,18,19,20,21,22 computes 26; published 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    """)


def test_a_long_prompt_is_spread_over_steps() -> None:
    """A step of a alone takes 2 ms, 20 prompt tokens take 2 more: c's 100 would fit into a step of 50 ms, and take 12.
    They need not: c came just now, so it gets 16 tokens a step, which is the least. 87 ms later its first token is due
    with the next step. d waited too long for anything to be soon."""
    check_transcript("""
    core tokens=128 target=50
    worker w pages=60 size=16
    submit a 1..4 max=30
    plan
    result
    plan
    result ms=2
    submit b 1..20 max=1
    plan
    result ms=4
    submit c 101..200 max=1
    plan
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 page 0 computes 4
    step 1: a0
    a prefilled 4 of 4
    step 2: a decodes
    step 2: a1
    b admitted on w, 0 cached
    step 3: b on row 1 pages 1,2 computes 20; a decodes
    step 3: b0 a2
    b prefilled 20 of 20
    b ended: length, 1 tokens, in decode
    c admitted on w, 0 cached
    step 4: row 1 released; c on row 1 page 2 computes 16; a decodes; published 1

    result ms=6
    time 0.087
    plan
    ----
    step 4: a3
    c prefilled 16 of 100
    step 5: c pages 3,4,5,6,7,8 computes 84; a decodes; published 2

    result ms=6
    submit d 201..300 max=1
    time 5
    plan
    ----
    step 5: c0 a4
    c prefilled 100 of 100
    c ended: length, 1 tokens, in decode
    d admitted on w, 0 cached
    step 6: row 1 released; d on row 1 pages 8,9,10,11,12,13,14 computes 100; a decodes; published 3,4,5,6,7
    """)


def test_a_pace_is_learnt_and_forgets() -> None:
    pace = StepPace()
    assert pace.max_prompt_tokens(0.1) is None
    pace.observe(100, 0.2)  # with what the rows took unknown it teaches nothing
    pace.observe(0, 0.01)
    pace.observe(5, 1.0)  # too short to teach anything
    assert pace.max_prompt_tokens(0.1) is None
    pace.observe(100, 0.005)  # faster than the rows alone: no cost is known yet
    assert pace.max_prompt_tokens(0.1) is None
    pace.observe(90, 0.1)
    fast = pace.max_prompt_tokens(0.1)
    for _ in range(50):
        pace.observe(90, 0.91)
    slow = pace.max_prompt_tokens(0.1)
    assert fast is not None
    assert slow is not None
    assert fast > slow == 16


@pytest.mark.parametrize(
    ("num_waiting", "waited_ms", "tokens"),
    [
        (10, 0, 16),
        (64, 0, 16),
        (64, 80, 22),
        (64, 85, 64),
        (64, 89, None),
        (128, 60, 22),
        (787, 0, 787),
        (788, 0, None),
    ],
)
def test_a_long_prompt_is_spread_if_its_first_token_still_comes_soon(
    num_waiting: int, waited_ms: int, tokens: int | None
) -> None:
    """Rows take 3.9 ms, as long as 32 prompt tokens."""
    pace = StepPace()
    assert pace.spread_tokens(96, num_waiting, waited_ms / 1000) is None
    pace.observe(0, 1 / 256)
    pace.observe(1000, 1 / 256 + 1000 / 8192)
    assert pace.spread_tokens(96, num_waiting, waited_ms / 1000) == tokens
    assert pace.spread_tokens(95, num_waiting, waited_ms / 1000) is None, "it is not long"
