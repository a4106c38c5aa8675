"""Sharing of computed pages, as transcripts."""

from support.core_transcript import check_transcript


def test_a_second_request_begins_behind_the_cached_pages() -> None:
    check_transcript("""
    worker w pages=8 size=4
    submit a 1..10 max=1
    run
    submit b 1..10,50 max=1
    submit c 1..6,60..64 max=1
    plan
    result
    ----
    1 steps: a +1
    a ended: length, 1 tokens, in decode
    b admitted on w, 8 cached
    c admitted on w, 4 cached
    step 2: row 0 released; b on row 0 pages 0,1,2 computes 3; c on row 1 pages 0,3,4 computes 7; published 0,1
    step 2: b0 c0
    b prefilled 11 of 11
    c prefilled 11 of 11
    b ended: length, 1 tokens, in decode
    c ended: length, 1 tokens, in decode
    """)


def test_one_token_is_computed_even_if_the_whole_prompt_is_cached() -> None:
    check_transcript("""
    worker w pages=8 size=4
    submit a 1..8 max=1
    run
    submit b 1..8 max=1
    plan
    result
    pages
    ----
    1 steps: a +1
    a ended: length, 1 tokens, in decode
    b admitted on w, 4 cached
    step 2: row 0 released; b on row 0 pages 0,2 computes 4; published 0,1
    step 2: b0
    b prefilled 8 of 8
    b ended: length, 1 tokens, in decode
    6 free, 0 held, 2 cached
    """)


def test_output_pages_are_found_by_the_next_turn() -> None:
    check_transcript("""
    worker w pages=8 size=4
    submit a 1..3 max=6
    run
    submit b 1..3,1000..1005,70 max=1
    plan
    ----
    6 steps: a +6
    a ended: length, 6 tokens, in decode
    b admitted on w, 8 cached
    step 7: row 0 released; b on row 0 pages 0,1,2 computes 2; published 1
    """)


def test_a_request_waits_for_a_page_that_is_being_computed_and_others_pass_it() -> None:
    check_transcript("""
    core tokens=6
    worker w pages=16 size=4
    submit a 1..10 max=1
    submit b 1..10,50 max=1
    submit c 90..94 max=1
    plan
    plan
    result
    plan
    result
    plan
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 pages 0,1 computes 6
    c admitted on w, 0 cached
    step 2: c on row 1 page 3 computes 2; a page 2 computes 4
    step 1: no tokens
    a prefilled 6 of 10
    step 3: row 0 released; c page 4 computes 3; published 0
    step 2: a0
    c prefilled 2 of 5
    a ended: length, 1 tokens, in decode
    b admitted on w, 8 cached
    step 4: row 1 released; b on row 0 pages 0,1,2 computes 3; published 1
    """)


def test_the_first_waiter_takes_over_when_the_computing_request_ends() -> None:
    check_transcript("""
    core tokens=6
    worker w pages=16 size=4
    submit a 1..10 max=1
    submit b 1..10 max=1
    submit c 1..10 max=1
    plan
    cancel a
    plan
    result
    result
    plan
    result
    plan
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 pages 0,1 computes 6
    a ended: cancelled, 0 tokens, in prefill
    b admitted on w, 0 cached
    step 2: row 0 released; b on row 0 pages 2,3 computes 6
    step 1: no tokens
    step 2: no tokens
    b prefilled 6 of 10
    step 3: b page 1 computes 4; published 0
    step 3: b0
    b prefilled 10 of 10
    b ended: length, 1 tokens, in decode
    c admitted on w, 8 cached
    step 4: row 0 released; c on row 0 pages 0,3,2 computes 2; published 3
    """)


def test_pages_are_published_with_the_result_and_never_before() -> None:
    check_transcript("""
    worker w pages=8 size=4
    submit a 1..9 max=2
    plan
    pages
    submit b 1..9 max=1
    plan
    result
    plan
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 pages 0,1,2 computes 9
    5 free, 3 held, 0 cached
    step 2: a decodes
    step 1: a0
    a prefilled 9 of 9
    b admitted on w, 8 cached
    step 3: row 0 released; b on row 0 pages 0,1,3 computes 1; published 0,1
    """)


def test_nothing_of_a_failed_step_is_published() -> None:
    check_transcript("""
    worker w pages=8 size=4
    submit a 1..9 max=2
    plan
    submit b 1..9 max=1
    result failed
    pages
    plan
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 pages 0,1,2 computes 9
    step 1: no tokens
    a ended: step failed, 0 tokens, in prefill
    8 free, 0 held, 0 cached
    b admitted on w, 0 cached
    step 2: row 0 released; b on row 0 pages 0,1,2 computes 9
    """)


def test_nothing_of_a_failed_step_is_published_for_a_request_that_had_ended_either() -> None:
    check_transcript("""
    worker w pages=8 size=4
    submit a 1..9 max=2
    plan
    cancel a
    result failed
    submit b 1..9 max=1
    plan
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 pages 0,1,2 computes 9
    a ended: cancelled, 0 tokens, in prefill
    step 1: no tokens
    b admitted on w, 0 cached
    step 2: row 0 released; b on row 0 pages 0,1,2 computes 9
    """)


def test_a_request_that_did_not_fit_begins_when_pages_of_its_prefix_have_come() -> None:
    check_transcript("""
    core steps=1
    worker w pages=5 size=4
    submit a 1..7 max=9
    submit b 51 max=9 uncached
    submit c 1..7,1000..1005 max=1
    steps 3
    ----
    a admitted on w, 0 cached
    b admitted on w, 0 cached
    step 1: a on row 0 pages 0,1 computes 7; b on row 1 page 2 computes 1
    step 1: a0 b0
    a prefilled 7 of 7
    b prefilled 1 of 1
    step 2: a,b decode; published 0
    step 2: a1 b1
    step 3: a page 3; a,b decode; published 1
    step 3: a2 b2

    cancel b
    plan
    ----
    b ended: cancelled, 3 tokens, in decode
    c admitted on w, 8 cached
    step 4: row 1 released; c on row 1 pages 0,1,2,4 computes 5; a decodes
    """)


def test_another_salt_and_a_bypassing_request_share_nothing() -> None:
    check_transcript("""
    worker w pages=16 size=8
    submit a 1..9 max=1
    run
    submit b 1..9 max=1 salt=1
    submit c 1..9 max=1 uncached
    run
    submit d 1..9 max=1
    plan
    ----
    1 steps: a +1
    a ended: length, 1 tokens, in decode
    1 steps: b +1, c +1
    b ended: length, 1 tokens, in decode
    c ended: length, 1 tokens, in decode
    d admitted on w, 8 cached
    step 3: row 0 released; row 1 released; d on row 0 pages 0,3 computes 1; published 1
    """)


def test_tails_are_evicted_before_heads_and_the_least_recently_used_first() -> None:
    check_transcript("""
    worker w pages=6 size=2
    submit a 1..5 max=1
    run
    submit b 11..15 max=1
    run
    pages
    ----
    1 steps: a +1
    a ended: length, 1 tokens, in decode
    1 steps: b +1
    b ended: length, 1 tokens, in decode
    2 free, 0 held, 4 cached

    submit c 21..24 max=1
    plan
    result
    submit d 1..5 max=1
    plan
    ----
    c admitted on w, 0 cached
    step 3: row 0 released; c on row 0 pages 4,5 computes 4; published 2,3
    step 3: c0
    c prefilled 4 of 4
    c ended: length, 1 tokens, in decode
    d admitted on w, 4 cached
    step 4: row 0 released; d on row 0 pages 0,1,3 computes 1; published 4,5; evicted 3
    """)


def test_a_copy_computed_twice_stays_private() -> None:
    check_transcript("""
    worker w pages=8 size=4
    submit a 1..4 max=5
    submit b 1..4 max=5
    plan
    result
    pages
    run
    pages
    ----
    a admitted on w, 0 cached
    b admitted on w, 0 cached
    step 1: a on row 0 page 0 computes 4; b on row 1 page 1 computes 4
    step 1: a0 b0
    a prefilled 4 of 4
    b prefilled 4 of 4
    6 free, 2 held, 0 cached
    4 steps: a +4, b +4
    a ended: length, 5 tokens, in decode
    b ended: length, 5 tokens, in decode
    5 free, 0 held, 3 cached
    """)
