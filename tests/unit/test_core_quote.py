"""What a request would meet if it came now, and that asking changes nothing."""

from support.core_transcript import check_transcript


def test_times_are_told_as_far_as_they_were_measured() -> None:
    """While nobody waits a free row is taken at once; behind a full worker nothing was seen to begin yet."""
    check_transcript("""
    core rows=1
    worker w pages=8 size=4
    quote 1..9
    submit a 1..10 max=20
    plan
    time 1
    result
    ----
    0 cached, begins in 0 s, first token in ?
    a admitted on w, 0 cached
    step 1: a on row 0 pages 0,1,2 computes 10
    step 1: a0
    a prefilled 10 of 10

    quote 1..9
    submit b 1..17 max=1
    quote 1..30
    quote 1..40
    lose w
    quote 1..9
    ----
    8 cached, begins in ?, first token in ?
    8 cached, begins in 0.9 s, first token in 3.1 s
    RequestRejected: the prompt has 40 tokens; with one more to generate at most 32 fit
    a preempted: worker lost
    0 cached, begins in ?, first token in ?
    """)


def test_a_prompt_that_is_begun_comes_first() -> None:
    check_transcript("""
    core tokens=8
    worker w pages=64 size=4
    submit a 1..40 max=1
    plan
    time 1
    result
    plan
    quote 101..108
    quote 1..9
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 pages 0,1 computes 8
    step 1: no tokens
    a prefilled 8 of 40
    step 2: a pages 2,3 computes 8; published 0,1
    0 cached, begins in 0 s, first token in 4 s
    8 cached, begins in 0 s, first token in 3.125 s
    """)


def test_what_has_no_pages_now_has_to_wait() -> None:
    check_transcript("""
    worker w pages=8 size=4
    submit a 1..20 max=4
    plan
    time 1
    result
    quote 101..120
    quote 1..20
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 pages 0,1,2,3,4 computes 20
    step 1: a0
    a prefilled 20 of 20
    0 cached, begins in ?, first token in ?
    16 cached, begins in 0 s, first token in 0.2 s
    """)


def test_a_queue_lasts_as_long_as_requests_were_seen_to_begin() -> None:
    check_transcript("""
    core rows=1 steps=1 cache=off
    worker w pages=64 size=4
    submit a 1..8 max=1
    submit b 1..8 max=1
    submit c 1..8 max=1
    submit d 1..8 max=1
    submit e 1..8 max=1
    submit f 1..8 max=1
    submit g 1..8 max=1
    time 1
    steps 1
    time 2
    steps 1
    time 3
    steps 1
    time 4
    steps 1
    time 5
    steps 1
    quote 1..8
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 pages 0,1 computes 8
    step 1: a0
    a prefilled 8 of 8
    a ended: length, 1 tokens, in decode
    b admitted on w, 0 cached
    step 2: row 0 released; b on row 0 pages 0,1 computes 8
    step 2: b0
    b prefilled 8 of 8
    b ended: length, 1 tokens, in decode
    c admitted on w, 0 cached
    step 3: row 0 released; c on row 0 pages 0,1 computes 8
    step 3: c0
    c prefilled 8 of 8
    c ended: length, 1 tokens, in decode
    d admitted on w, 0 cached
    step 4: row 0 released; d on row 0 pages 0,1 computes 8
    step 4: d0
    d prefilled 8 of 8
    d ended: length, 1 tokens, in decode
    e admitted on w, 0 cached
    step 5: row 0 released; e on row 0 pages 0,1 computes 8
    step 5: e0
    e prefilled 8 of 8
    e ended: length, 1 tokens, in decode
    0 cached, begins in 2 s, first token in 2 s
    """)
