"""How requests end, wherever they are, as transcripts."""

from support.core_transcript import check_transcript


def test_an_ending_is_held_until_the_front_has_scanned_it() -> None:
    check_transcript("""
    worker w pages=8 size=4
    submit a 1..3 max=3 hold
    submit b 11..13 max=9 eos=1 hold
    steps 3
    pages
    counts
    scanned a
    scanned a
    stop b 1
    stop b 1
    ----
    a admitted on w, 0 cached
    b admitted on w, 0 cached
    step 1: a on row 0 page 0 computes 3; b on row 1 page 1 computes 3
    step 1: a0 b0
    a prefilled 3 of 3
    b prefilled 3 of 3
    step 2: a,b decode
    step 2: a1 b:eos
    b held at 2
    step 3: row 1 released; a page 2; a decodes; published 0,1
    step 3: a2
    a held at 3
    6 free, 0 held, 2 cached
    running 0, waiting 0, preemptions 0, computed_tokens 9, output_tokens 5, cached_tokens 0, wasted_tokens 0
    a ended: length, 3 tokens, in decode
    no events
    b ended: stop string, 1 tokens, in decode
    no events
    """)


def test_a_stop_string_found_while_the_request_runs_ends_it_at_once() -> None:
    check_transcript("""
    worker w pages=8 size=4
    submit a 1..3 max=30 hold
    plan
    plan
    result
    plan
    result
    stop a 1
    result
    plan
    counts
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 page 0 computes 3
    step 2: a decodes
    step 1: a0
    a prefilled 3 of 3
    step 3: a page 1; a decodes
    step 2: a1
    a ended: stop string, 1 tokens, in decode
    step 3: no tokens
    nothing to do
    running 0, waiting 0, preemptions 0, computed_tokens 5, output_tokens 2, cached_tokens 0, wasted_tokens 2
    """)


def test_scanning_a_request_that_is_not_held_changes_nothing() -> None:
    check_transcript("""
    worker w pages=8 size=4
    submit a 1..3 max=2
    scanned a
    run
    scanned a
    ----
    no events
    2 steps: a +2
    a ended: length, 2 tokens, in decode
    no events
    """)


def test_cancel_in_every_state_ends_once() -> None:
    check_transcript("""
    core rows=1
    worker w pages=8 size=4
    submit a 1..3 max=2 hold
    submit b 11..13 max=9
    cancel b
    cancel b
    plan
    plan
    cancel a
    result
    result
    plan
    pages
    cancel z
    ----
    b ended: cancelled, 0 tokens, in queue
    no events
    a admitted on w, 0 cached
    step 1: a on row 0 page 0 computes 3
    step 2: a decodes
    a ended: cancelled, 0 tokens, in prefill
    step 1: no tokens
    step 2: no tokens
    nothing to do
    8 free, 0 held, 0 cached
    no events
    """)


def test_cancel_of_a_held_ending() -> None:
    check_transcript("""
    worker w pages=8 size=4
    submit a 1..3 max=1 hold
    run
    cancel a
    scanned a
    stop a 1
    ----
    1 steps: a +1
    a ended: cancelled, 1 tokens, in decode
    no events
    no events
    """)


def test_a_nan_ends_its_request_alone() -> None:
    check_transcript("""
    worker w pages=8 size=4
    submit a 1..3 max=3
    submit b 11..13 max=3
    steps 1
    plan
    result nan=a
    run
    pages
    ----
    a admitted on w, 0 cached
    b admitted on w, 0 cached
    step 1: a on row 0 page 0 computes 3; b on row 1 page 1 computes 3
    step 1: a0 b0
    a prefilled 3 of 3
    b prefilled 3 of 3
    step 2: a,b decode
    step 2: b1
    a ended: nan, 1 tokens, in decode
    1 steps: b +1
    b ended: length, 3 tokens, in decode
    7 free, 0 held, 1 cached
    """)


def test_a_failed_step_ends_the_requests_in_it_and_no_others() -> None:
    check_transcript("""
    worker w pages=8 size=4
    submit a 1..3 max=3
    plan
    submit b 11..13 max=3
    plan
    result failed
    result
    run
    pages
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 page 0 computes 3
    b admitted on w, 0 cached
    step 2: b on row 1 page 1 computes 3; a decodes
    step 1: no tokens
    a ended: step failed, 0 tokens, in prefill
    step 2: b0
    b prefilled 3 of 3
    2 steps: b +2
    b ended: length, 3 tokens, in decode
    7 free, 0 held, 1 cached
    """)


def test_a_result_that_comes_twice_changes_nothing() -> None:
    check_transcript("""
    worker w pages=8 size=4
    submit a 1..3 max=4
    plan
    plan
    result
    again
    result
    again
    run
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 page 0 computes 3
    step 2: a decodes
    step 1: a0
    a prefilled 3 of 3
    no tokens
    step 2: a1
    no tokens
    2 steps: a +2
    a ended: length, 4 tokens, in decode
    """)


def test_tokens_of_unfinished_chunks_are_ignored() -> None:
    check_transcript("""
    core tokens=4
    worker w pages=8 size=4
    submit a 1..10 max=2
    plan
    result eager
    plan
    result eager
    plan
    result eager
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 page 0 computes 4
    step 1: no tokens
    a prefilled 4 of 10
    step 2: a page 1 computes 4; published 0
    step 2: no tokens
    a prefilled 8 of 10
    step 3: a page 2 computes 2; published 1
    step 3: a0
    a prefilled 10 of 10
    """)


def test_deadlines_and_time_limits() -> None:
    check_transcript("""
    core rows=1 policy=fcfs
    worker w pages=8 size=4
    submit a 1..3 max=30 limit=20
    submit b 11..13 max=30 deadline=10
    next
    time 9
    expire
    plan
    time 10
    plan
    next
    time 20
    expire
    result
    plan
    next
    ----
    next expiry 10.0
    no events
    a admitted on w, 0 cached
    step 1: a on row 0 page 0 computes 3
    b ended: deadline, 0 tokens, in queue
    step 2: a decodes
    next expiry 20.0
    a ended: time limit, 0 tokens, in prefill
    step 1: no tokens
    nothing to do
    next expiry None
    """)
