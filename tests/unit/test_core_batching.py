"""How steps are filled: admission, chunks, decodes, budget, endings, as transcripts."""

from support.core_transcript import check_transcript


def test_a_request_from_submission_to_its_end() -> None:
    check_transcript("""
    worker w pages=8 size=4
    submit a 1..6 max=3
    plan
    pages
    plan
    result
    plan
    result
    plan
    result
    plan
    pages
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 pages 0,1 computes 6
    6 free, 2 held, 0 cached
    step 2: a decodes
    step 1: a0
    a prefilled 6 of 6
    step 3: a decodes; published 0
    step 2: a1
    nothing to do
    step 3: a2
    a ended: length, 3 tokens, in decode
    nothing to do
    6 free, 0 held, 2 cached
    """)


def test_decodes_come_first_and_a_prompt_takes_what_they_leave() -> None:
    check_transcript("""
    core tokens=4 rows=4
    worker w pages=16 size=4
    submit a 1..3 max=9
    submit b 11..13 max=9
    steps 1
    ----
    a admitted on w, 0 cached
    b admitted on w, 0 cached
    step 1: a on row 0 page 0 computes 3; b on row 1 page 1 computes 1
    step 1: a0
    a prefilled 3 of 3
    b prefilled 1 of 3

    steps 2
    ----
    step 2: b computes 2; a decodes
    step 2: b0 a1
    b prefilled 3 of 3
    step 3: a page 2; a,b decode; published 0
    step 3: a2 b1

    submit c 31..36 max=2
    steps 4
    ----
    c admitted on w, 0 cached
    step 4: c on row 2 page 4 computes 2; b page 3; a,b decode; published 1
    step 4: a3 b2
    c prefilled 2 of 6
    step 5: c computes 2; a,b decode
    step 5: a4 b3
    c prefilled 4 of 6
    step 6: c page 5 computes 2; a,b decode; published 4
    step 6: c0 a5 b4
    c prefilled 6 of 6
    step 7: a page 6; a,b,c decode; published 2
    step 7: a6 b5 c1
    c ended: length, 2 tokens, in decode
    """)


def test_a_long_prompt_never_takes_more_than_the_threshold_of_a_step() -> None:
    check_transcript("""
    core tokens=16 threshold=5
    worker w pages=16 size=4
    submit a 1..12 max=2
    submit b 21..32 max=2
    steps 4
    ----
    a admitted on w, 0 cached
    b admitted on w, 0 cached
    step 1: a on row 0 pages 0,1 computes 5; b on row 1 pages 2,3 computes 5
    step 1: no tokens
    a prefilled 5 of 12
    b prefilled 5 of 12
    step 2: a page 4 computes 5; b page 5 computes 5; published 0,2
    step 2: no tokens
    a prefilled 10 of 12
    b prefilled 10 of 12
    step 3: a computes 2; b computes 2; published 1,3
    step 3: a0 b0
    a prefilled 12 of 12
    b prefilled 12 of 12
    step 4: a page 6; b page 7; a,b decode; published 4,5
    step 4: a1 b1
    a ended: length, 2 tokens, in decode
    b ended: length, 2 tokens, in decode
    """)


def test_no_more_rows_than_allowed_and_a_row_is_used_again_in_the_plan_that_releases_it() -> None:
    check_transcript("""
    core rows=2
    worker w pages=16 size=4
    submit a 1..3 max=2
    submit b 11..13 max=4
    submit c 21..23 max=2
    steps 3
    ----
    a admitted on w, 0 cached
    b admitted on w, 0 cached
    step 1: a on row 0 page 0 computes 3; b on row 1 page 1 computes 3
    step 1: a0 b0
    a prefilled 3 of 3
    b prefilled 3 of 3
    step 2: a,b decode
    step 2: a1 b1
    a ended: length, 2 tokens, in decode
    c admitted on w, 0 cached
    step 3: row 0 released; c on row 0 page 3 computes 3; b page 2; b decodes; published 0,1
    step 3: c0 b2
    c prefilled 3 of 3
    """)


def test_two_steps_are_in_flight_and_no_third() -> None:
    check_transcript("""
    worker w pages=8 size=4
    submit a 1..3 max=9 eos=1
    plan
    plan
    plan
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 page 0 computes 3
    step 2: a decodes
    nothing to do

    result
    plan
    result
    result
    counts
    ----
    step 1: a0
    a prefilled 3 of 3
    step 3: a page 1; a decodes
    step 2: a:eos
    a ended: stop token, 2 tokens, in decode
    step 3: no tokens
    running 0, waiting 0, preemptions 0, computed_tokens 5, output_tokens 2, cached_tokens 0, wasted_tokens 1
    """)


def test_a_request_whose_last_token_is_in_flight_gives_its_row_up_before_the_token_comes() -> None:
    check_transcript("""
    core rows=1
    worker w pages=8 size=4
    submit a 1..3 max=1
    submit b 11..13 max=1
    plan
    plan
    pages
    result
    pages
    result
    pages
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 page 0 computes 3
    b admitted on w, 0 cached
    step 2: row 0 released; b on row 0 page 1 computes 3
    6 free, 2 held, 0 cached
    step 1: a0
    a ended: length, 1 tokens, in decode
    7 free, 1 held, 0 cached
    step 2: b0
    b prefilled 3 of 3
    b ended: length, 1 tokens, in decode
    8 free, 0 held, 0 cached
    """)


def test_the_stop_token_wins_over_the_length_at_one_position() -> None:
    check_transcript("""
    worker w pages=8 size=4
    submit a 1..3 max=3 eos=2
    submit b 11..13 max=3
    run
    ----
    3 steps: a +3, b +3
    a ended: stop token, 3 tokens, in decode
    b ended: length, 3 tokens, in decode
    """)


def test_priorities_then_arrival() -> None:
    check_transcript("""
    core rows=1
    worker w pages=16 size=4
    submit a 1 max=1
    submit b 2 max=1
    submit c 3 max=1 priority=1
    submit d 4 max=1 priority=1
    run
    ----
    4 steps: a +1, b +1, c +1, d +1
    c ended: length, 1 tokens, in decode
    d ended: length, 1 tokens, in decode
    a ended: length, 1 tokens, in decode
    b ended: length, 1 tokens, in decode
    """)


def test_more_decoding_rows_than_budget_take_turns() -> None:
    """Rows come to more than the budget when one that waited for a page goes on beside prompts that ended meanwhile."""
    check_transcript("""
    core tokens=4 threshold=1 cache=off
    worker w pages=8 size=8
    submit b 11..20 max=9
    submit c 21..30 max=9
    submit e 31..33 max=9
    submit f 41..42 max=9
    steps 1
    ----
    b admitted on w, 0 cached
    c admitted on w, 0 cached
    e admitted on w, 0 cached
    f admitted on w, 0 cached
    step 1: b on row 0 page 0 computes 1; c on row 1 page 1 computes 1; e on row 2 page 2 computes 1; f on row 3 page 3 computes 1
    step 1: no tokens
    b prefilled 1 of 10
    c prefilled 1 of 10
    e prefilled 1 of 3
    f prefilled 1 of 2

    submit a 1 max=30 priority=1
    steps 1
    ----
    a admitted on w, 0 cached
    step 2: a on row 4 page 4 computes 1; b computes 1; c computes 1; e computes 1
    step 2: a0
    a prefilled 1 of 1
    b prefilled 2 of 10
    c prefilled 2 of 10
    e prefilled 2 of 3

    submit d 51 max=30 priority=1
    steps 1
    ----
    d admitted on w, 0 cached
    step 3: d on row 5 page 5 computes 1; b computes 1; c computes 1; a decodes
    step 3: d0 a1
    d prefilled 1 of 1
    b prefilled 3 of 10
    c prefilled 3 of 10

    steps 5
    ----
    step 4: b computes 1; c computes 1; a,d decode
    step 4: a2 d1
    b prefilled 4 of 10
    c prefilled 4 of 10
    step 5: b computes 1; c computes 1; a,d decode
    step 5: a3 d2
    b prefilled 5 of 10
    c prefilled 5 of 10
    step 6: b computes 1; c computes 1; a,d decode
    step 6: a4 d3
    b prefilled 6 of 10
    c prefilled 6 of 10
    step 7: b computes 1; c computes 1; a,d decode
    step 7: a5 d4
    b prefilled 7 of 10
    c prefilled 7 of 10
    step 8: b computes 1; c computes 1; a,d decode
    step 8: a6 d5
    b prefilled 8 of 10
    c prefilled 8 of 10

    plan
    cancel d
    plan
    result
    plan
    ----
    step 9: b page 6 computes 1; c page 7 computes 1; a,d decode
    d ended: cancelled, 6 tokens, in decode
    step 10: row 5 released; b computes 1; c computes 1; e computes 1; f computes 1; a idles
    step 9: a7
    b prefilled 9 of 10
    c prefilled 9 of 10
    step 11: a page 5; b,c,e,a decode; f idles

    result
    plan
    result
    plan
    result
    plan
    ----
    step 10: b0 c0 e0 f0
    b prefilled 10 of 10
    c prefilled 10 of 10
    e prefilled 3 of 3
    f prefilled 2 of 2
    step 12: b,c,e,f decode; a idles
    step 11: b1 c1 e1 a8
    step 13: c,e,f,a decode; b idles
    step 12: b2 c2 e2 f1
    step 14: b,e,f,a decode; c idles
    """)  # noqa: E501
