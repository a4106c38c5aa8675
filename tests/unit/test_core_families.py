# ruff: noqa: E501 - a step is one line of a transcript
"""Outputs of one request: one prompt, computed once (PAR), as transcripts."""

from support.core_transcript import check_transcript


def test_par_outputs_of_one_request_share_its_prompt_and_copy_the_page_they_write() -> None:
    """Without the prefix cache too: b and c share the two full pages, get a copy of the third and compute one token."""
    check_transcript("""
    worker w pages=12 size=4
    submit a 1..10 max=3 uncached
    submit b 1..10 max=3 uncached fork=a
    submit c 1..10 max=3 uncached fork=a
    plan
    plan
    result
    plan
    result
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 pages 0,1,2 computes 10
    step 2: a decodes
    step 1: a0
    a prefilled 10 of 10
    b admitted on w, 9 cached
    c admitted on w, 9 cached
    step 3: b on row 1 pages 0,1,3 computes 1; c on row 2 pages 0,1,4 computes 1; a decodes; page 2 copied to 3; page 2 copied to 4
    step 2: a1

    run
    counts
    pages
    ----
    2 steps: a +1, b +3, c +3
    a ended: length, 3 tokens, in decode
    b ended: length, 3 tokens, in decode
    c ended: length, 3 tokens, in decode
    running 0, waiting 0, preemptions 0, computed_tokens 18, output_tokens 9, cached_tokens 0, wasted_tokens 0
    12 free, 0 held, 0 cached
    """)


def test_par_of_a_prompt_of_full_pages_the_last_is_copied() -> None:
    """The last token is computed by each, and it stands in that page."""
    check_transcript("""
    worker w pages=12 size=4
    submit a 1..8 max=3
    submit b 1..8 max=3 fork=a
    steps 2
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 pages 0,1 computes 8
    step 1: a0
    a prefilled 8 of 8
    b admitted on w, 7 cached
    step 2: b on row 1 pages 0,3 computes 1; a page 2; a decodes; page 1 copied to 3; published 0,1
    step 2: b0 a1
    b prefilled 8 of 8

    run
    pages
    ----
    2 steps: a +1, b +2
    a ended: length, 3 tokens, in decode
    b ended: length, 3 tokens, in decode
    10 free, 0 held, 2 cached
    """)


def test_par_if_the_first_is_cancelled_before_its_prompt_is_there_the_next_computes_it() -> None:
    check_transcript("""
    worker w pages=16 size=4
    submit a 1..8 max=5 uncached
    submit b 1..8 max=5 uncached fork=a
    submit c 1..8 max=5 uncached fork=a
    plan
    cancel a
    plan
    result
    plan
    result
    plan
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 pages 0,1 computes 8
    a ended: cancelled, 0 tokens, in prefill
    b admitted on w, 0 cached
    step 2: row 0 released; b on row 0 pages 2,3 computes 8
    step 1: no tokens
    step 3: b page 0; b decodes
    step 2: b0
    b prefilled 8 of 8
    c admitted on w, 7 cached
    step 4: c on row 1 pages 2,1 computes 1; b decodes; page 3 copied to 1

    run
    pages
    ----
    4 steps: b +4, c +5
    b ended: length, 5 tokens, in decode
    c ended: length, 5 tokens, in decode
    16 free, 0 held, 0 cached
    """)


def test_par_any_output_whose_prompt_is_there_is_forked_from() -> None:
    """a has ended when there is a row for c; b has the prompt too."""
    check_transcript("""
    core rows=2
    worker w pages=16 size=4
    submit a 1..9 max=2 uncached
    submit b 1..9 max=9 uncached fork=a
    submit c 1..9 max=2 uncached fork=a
    steps 4
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 pages 0,1,2 computes 9
    step 1: a0
    a prefilled 9 of 9
    b admitted on w, 8 cached
    step 2: b on row 1 pages 0,1,3 computes 1; a decodes
    step 2: b0 a1
    b prefilled 9 of 9
    a ended: length, 2 tokens, in decode
    c admitted on w, 8 cached
    step 3: row 0 released; c on row 0 pages 0,1,2 computes 1; b decodes
    step 3: c0 b1
    c prefilled 9 of 9
    step 4: c,b decode
    step 4: c1 b2
    c ended: length, 2 tokens, in decode

    run
    ----
    6 steps: b +6
    b ended: length, 9 tokens, in decode
    """)


def test_par_a_preempted_output_shares_the_prompt_again_when_it_resumes() -> None:
    check_transcript("""
    core steps=1
    worker w pages=5 size=4
    submit a 1..10 max=7 uncached
    submit b 1..10 max=7 uncached fork=a
    run
    counts
    pages
    ----
    11 steps: a +7, b +7
    a ended: length, 7 tokens, in decode
    b ended: length, 7 tokens, 12 recomputed, in decode
    running 0, waiting 0, preemptions 1, computed_tokens 35, output_tokens 14, cached_tokens 0, wasted_tokens 0
    5 free, 0 held, 0 cached
    """)
