"""Budgets in time: prompts that do not make running streams wait, as transcripts."""

import pytest
from support.core_transcript import check_transcript

from scheduler_svc.core.step_pace import StepPace


@pytest.mark.parametrize(("ours", "workers"), [("30", ""), ("worker", " target=30"), ("30", " target=5")])
def test_prompts_get_what_a_target_for_the_step_leaves(ours: str, workers: str) -> None:
    """A step of a alone takes 10 ms, 31 prompt tokens take 31 more: of 30 ms they may take just below 20. The target is
    ours, or else the worker's."""
    check_transcript(f"""
    core tokens=32 target={ours}
    worker w pages=60 size=4{workers}
    submit a 1..4 max=30
    plan
    result ms=14
    plan
    result ms=10
    submit b 1..100 max=2
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
