"""Who gives way, within a priority and to a higher one."""

from support.core_transcript import check_transcript


def test_of_equals_gives_way_who_loses_least() -> None:
    """a needs a page: c came last, but b has computed less."""
    check_transcript("""
    core steps=1 cache=off
    worker w pages=7 size=4
    submit a 1..8 max=4
    submit b 11..13 max=4
    submit c 21..35 max=4
    steps 2
    run
    ----
    a admitted on w, 0 cached
    b admitted on w, 0 cached
    c admitted on w, 0 cached
    step 1: a on row 0 pages 0,1 computes 8; b on row 1 page 2 computes 3; c on row 2 pages 3,4,5,6 computes 15
    step 1: a0 b0 c0
    a prefilled 8 of 8
    b prefilled 3 of 3
    c prefilled 15 of 15
    b preempted: no pages
    step 2: row 1 released; a page 2; a,c decode
    step 2: a1 c1
    4 steps: a +2, b +3, c +2
    a ended: length, 4 tokens, in decode
    b ended: length, 4 tokens, 3 recomputed, in decode
    c ended: length, 4 tokens, 16 recomputed, in decode
    """)


def test_pages_that_stay_cached_are_not_lost() -> None:
    """c is the longest of the three, but all of its full pages are found again."""
    check_transcript("""
    core steps=1
    worker w pages=7 size=4
    submit a 1..8 max=1
    submit b 31..37 max=9 uncached
    steps 1
    submit c 1..8,61..63 max=4
    submit d 41..46 max=4 uncached
    steps 2
    run
    ----
    a admitted on w, 0 cached
    b admitted on w, 0 cached
    step 1: a on row 0 pages 0,1 computes 8; b on row 1 pages 2,3 computes 7
    step 1: a0 b0
    a prefilled 8 of 8
    b prefilled 7 of 7
    a ended: length, 1 tokens, in decode
    c admitted on w, 8 cached
    d admitted on w, 0 cached
    step 2: row 0 released; c on row 0 pages 0,1,4 computes 3; d on row 2 pages 5,6 computes 6; b decodes; published 0,1
    step 2: c0 d0 b1
    c prefilled 11 of 11
    d prefilled 6 of 6
    c preempted: no pages
    step 3: row 0 released; b page 4; b,d decode
    step 3: b2 d1
    8 steps: b +6, c +3, d +2
    d ended: length, 4 tokens, in decode
    b ended: length, 9 tokens, in decode
    c ended: length, 4 tokens, 7 recomputed, in decode
    """)


def test_who_asks_gives_way_itself_rather_than_a_later_one_that_loses_more() -> None:
    check_transcript("""
    core steps=1 cache=off
    worker w pages=7 size=4
    submit a 1..5 max=8
    submit b 11..14 max=4
    submit c 21..35 max=4
    steps 2
    run
    ----
    a admitted on w, 0 cached
    b admitted on w, 0 cached
    c admitted on w, 0 cached
    step 1: a on row 0 pages 0,1 computes 5; b on row 1 page 2 computes 4; c on row 2 pages 3,4,5,6 computes 15
    step 1: a0 b0 c0
    a prefilled 5 of 5
    b prefilled 4 of 4
    c prefilled 15 of 15
    b preempted: no pages
    step 2: row 1 released; a,c decode
    step 2: a1 c1
    6 steps: a +6, b +3, c +2
    c ended: length, 4 tokens, in decode
    b ended: length, 4 tokens, 4 recomputed, in decode
    a ended: length, 8 tokens, in decode
    """)


def test_two_half_computed_prompts_never_take_turns() -> None:
    """Both begin while there is room; the first of them goes on until its end, the other begins once more."""
    check_transcript("""
    core steps=1 threshold=4 watermark=0 cache=off
    worker w pages=8 size=4
    submit a 1..16 max=16
    submit b 21..36 max=16
    run
    counts
    explain b
    ----
    38 steps: a +16, b +16
    a ended: length, 16 tokens, in decode
    b ended: length, 16 tokens, 16 recomputed, in decode
    running 0, waiting 0, preemptions 1, computed_tokens 78, output_tokens 32, cached_tokens 0, wasted_tokens 0
    0 s: submitted with 16 prompt tokens; 1 requests waited already
    0 s: waits for worker w
    0 s, step 1: admitted on worker w with 0 tokens cached
    0 s, step 1: computes 4 tokens, 4 in all
    0 s, step 2: computes 4 tokens, 8 in all
    0 s, step 3: computes 4 tokens, 12 in all
    0 s, step 4: computes 4 tokens, 16 in all
    0 s, step 4: first output token; decodes from now on
    0 s, step 5: preempted: no pages, to make room for a
    0 s, step 5: waits: it needs 5 new pages; 3 are available, and prompts begun before may need them
    0 s, step 20: admitted again on worker w with 0 tokens cached
    0 s, step 20: computes 4 tokens, 4 in all
    0 s, step 21: computes 4 tokens, 8 in all
    0 s, step 22: computes 4 tokens, 12 in all
    0 s, step 23: computes 4 tokens, 16 in all
    0 s, step 24: computes 1 tokens, 17 in all
    0 s, step 38: ended: length, 16 output tokens
    """)


def test_a_higher_priority_takes_the_row_of_who_loses_least() -> None:
    check_transcript("""
    core rows=2 cache=off
    worker w pages=16 size=4
    submit a 1..4 max=4
    submit b 11..18 max=4
    plan
    submit c 21..24 max=2 priority=1
    plan
    result
    result
    run
    explain a
    ----
    a admitted on w, 0 cached
    b admitted on w, 0 cached
    step 1: a on row 0 page 0 computes 4; b on row 1 pages 1,2 computes 8
    a preempted: a higher priority needs its row
    c admitted on w, 0 cached
    step 2: row 0 released; c on row 0 page 5 computes 4; b page 4; b decodes
    step 1: a0 b0
    b prefilled 8 of 8
    step 2: c0 b1
    c prefilled 4 of 4
    4 steps: a +3, b +2, c +1
    c ended: length, 2 tokens, in decode
    b ended: length, 4 tokens, in decode
    a ended: length, 4 tokens, 4 recomputed, in decode
    0 s: submitted with 4 prompt tokens; 0 requests waited already
    0 s: waits for worker w
    0 s, step 1: admitted on worker w with 0 tokens cached
    0 s, step 1: computes 4 tokens, 4 in all
    0 s, step 2: preempted: a higher priority needs its row, to make room for c
    0 s, step 3: waits: all rows of the worker are taken
    0 s, step 4: admitted again on worker w with 0 tokens cached
    0 s, step 4: computes 5 tokens, 5 in all
    0 s, step 4: first output token; decodes from now on
    0 s, step 6: ended: length, 4 output tokens
    """)


def test_no_row_is_taken_from_another_tenant_by_arrival_or_from_who_waited_long() -> None:
    check_transcript("""
    core rows=1
    worker w pages=16 size=4
    submit a 1..8 max=2 tenant=x
    plan
    submit b 11..14 max=1 priority=1 tenant=y
    plan
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 pages 0,1 computes 8
    step 2: a page 2; a decodes

    core rows=1 policy=fcfs
    worker w pages=16 size=4
    submit a 1..8 max=2
    plan
    submit b 11..14 max=1 priority=1
    plan
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 pages 0,1 computes 8
    step 2: a page 2; a decodes

    core rows=1 aging=10
    worker w pages=16 size=4
    submit a 1..8 max=2
    plan
    time 25
    submit b 11..14 max=1 priority=1
    plan
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 pages 0,1 computes 8
    step 2: a page 2; a decodes
    """)
