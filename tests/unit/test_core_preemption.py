"""Who gives way when pages run out, and how it goes on, as transcripts."""

from array import array

from support.core_transcript import check_transcript

from scheduler_svc.core.stop_tokens import StopTokens
from scheduler_svc.core.token_ring import TokenRing
from scheduler_svc.core.types import Row


def test_the_latest_gives_way_and_goes_on_with_all_its_tokens() -> None:
    check_transcript("""
    core steps=1
    worker w pages=4 size=4
    submit a 1..7 max=8
    submit b 11..17 max=4
    steps 3
    ----
    a admitted on w, 0 cached
    b admitted on w, 0 cached
    step 1: a on row 0 pages 0,1 computes 7; b on row 1 pages 2,3 computes 7
    step 1: a0 b0
    a prefilled 7 of 7
    b prefilled 7 of 7
    step 2: a,b decode; published 0,2
    step 2: a1 b1
    b preempted: no pages
    step 3: row 1 released; a page 3; a decodes; published 1
    step 3: a2

    submit c 21 max=1
    run
    counts
    ----
    7 steps: a +5, b +2, c +1
    a ended: length, 8 tokens, in decode
    c ended: length, 1 tokens, in decode
    b ended: length, 4 tokens, 8 recomputed, in decode
    running 0, waiting 0, preemptions 1, computed_tokens 33, output_tokens 13, cached_tokens 0, wasted_tokens 0
    """)


def test_pages_that_come_with_a_result_are_waited_for_before_anybody_is_preempted() -> None:
    check_transcript("""
    worker w pages=4 size=4
    submit a 1..7 max=9
    submit b 11..16 max=9
    plan
    plan
    cancel b
    result
    plan
    result
    plan
    result
    counts
    ----
    a admitted on w, 0 cached
    b admitted on w, 0 cached
    step 1: a on row 0 pages 0,1 computes 7; b on row 1 pages 2,3 computes 6
    step 2: a,b decode
    b ended: cancelled, 0 tokens, in prefill
    step 1: a0
    a prefilled 7 of 7
    nothing to do
    step 2: a1
    step 3: row 1 released; a page 3; a decodes; published 0,2,1
    step 3: a2
    running 1, waiting 0, preemptions 0, computed_tokens 16, output_tokens 3, cached_tokens 0, wasted_tokens 2
    """)


def test_tokens_in_flight_of_a_preempted_request_are_taken_and_it_waits_for_them() -> None:
    check_transcript("""
    worker w pages=4 size=4
    submit a 1..7 max=9
    submit b 11..17 max=9
    plan
    plan
    result
    plan
    result
    plan
    result
    plan
    run
    ----
    a admitted on w, 0 cached
    b admitted on w, 0 cached
    step 1: a on row 0 pages 0,1 computes 7; b on row 1 pages 2,3 computes 7
    step 2: a,b decode
    step 1: a0 b0
    a prefilled 7 of 7
    b prefilled 7 of 7
    b preempted: no pages
    nothing to do
    step 2: a1 b1
    step 3: row 1 released; a page 3; a decodes; published 0,2,1
    step 3: a2
    step 4: a decodes
    12 steps: a +6, b +7
    a ended: length, 9 tokens, in decode
    b ended: length, 9 tokens, 8 recomputed, in decode
    """)


def test_the_lowest_priority_gives_way_even_if_it_came_first() -> None:
    check_transcript("""
    core steps=1
    worker w pages=4 size=4
    submit a 1..7 max=4
    submit b 11..17 max=4 priority=1
    steps 3
    run
    ----
    b admitted on w, 0 cached
    a admitted on w, 0 cached
    step 1: b on row 0 pages 0,1 computes 7; a on row 1 pages 2,3 computes 7
    step 1: b0 a0
    b prefilled 7 of 7
    a prefilled 7 of 7
    step 2: b,a decode; published 0,2
    step 2: b1 a1
    a preempted: no pages
    step 3: row 1 released; b page 3; b decodes; published 1
    step 3: b2
    3 steps: a +2, b +1
    b ended: length, 4 tokens, in decode
    a ended: length, 4 tokens, 4 recomputed, in decode
    """)


def test_unreferenced_cached_pages_are_evicted_before_anybody_gives_way() -> None:
    check_transcript("""
    worker w pages=6 size=2
    submit a 1..5 max=1
    run
    pages
    submit b 21..23 max=9
    run
    counts
    ----
    1 steps: a +1
    a ended: length, 1 tokens, in decode
    4 free, 0 held, 2 cached
    9 steps: b +9
    b ended: length, 9 tokens, in decode
    running 0, waiting 0, preemptions 0, computed_tokens 16, output_tokens 10, cached_tokens 0, wasted_tokens 0
    """)


def test_a_request_that_fills_the_pool_alone_ends_by_length() -> None:
    check_transcript("""
    worker w pages=3 size=4
    submit a 1..5 max=100
    run
    ----
    7 steps: a +7
    a ended: length, 7 tokens, in decode
    """)


def test_a_prompt_begins_only_if_the_prompts_that_have_begun_leave_it_enough_pages() -> None:
    check_transcript("""
    core tokens=16 threshold=4
    worker w pages=6 size=4
    submit a 1..15 max=1
    submit b 21..35 max=1
    steps 4
    steps 4
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 page 0 computes 4
    step 1: no tokens
    a prefilled 4 of 15
    step 2: a page 1 computes 4; published 0
    step 2: no tokens
    a prefilled 8 of 15
    step 3: a page 2 computes 4; published 1
    step 3: no tokens
    a prefilled 12 of 15
    step 4: a page 3 computes 3; published 2
    step 4: a0
    a prefilled 15 of 15
    a ended: length, 1 tokens, in decode
    b admitted on w, 0 cached
    step 5: row 0 released; b on row 0 page 3 computes 4
    step 5: no tokens
    b prefilled 4 of 15
    step 6: b page 4 computes 4; published 3
    step 6: no tokens
    b prefilled 8 of 15
    step 7: b page 5 computes 4; published 4
    step 7: no tokens
    b prefilled 12 of 15
    step 8: b page 2 computes 3; published 5; evicted 2
    step 8: b0
    b prefilled 15 of 15
    b ended: length, 1 tokens, in decode
    """)


def test_a_prompt_takes_a_page_from_a_later_request_that_had_just_got_one() -> None:
    check_transcript("""
    core steps=1 threshold=2 cache=off
    worker w pages=4 size=4
    submit a 1..12 max=2
    submit b 21 max=9
    steps 4
    ----
    a admitted on w, 0 cached
    b admitted on w, 0 cached
    step 1: a on row 0 page 0 computes 2; b on row 1 page 1 computes 1
    step 1: b0
    a prefilled 2 of 12
    b prefilled 1 of 1
    step 2: a computes 2; b decodes
    step 2: b1
    a prefilled 4 of 12
    step 3: a page 2 computes 2; b decodes
    step 3: b2
    a prefilled 6 of 12
    step 4: a computes 2; b decodes
    step 4: b3
    a prefilled 8 of 12

    plan
    result
    run
    ----
    b preempted: no pages
    step 5: row 1 released; a page 1 computes 2
    step 5: no tokens
    a prefilled 10 of 12
    9 steps: a +2, b +5
    a ended: length, 2 tokens, in decode
    b ended: length, 9 tokens, 4 recomputed, in decode
    """)


def test_a_decoding_row_gives_way_to_prompts_that_would_lose_more() -> None:
    check_transcript("""
    core steps=1 threshold=2 cache=off
    worker w pages=11 size=4
    submit a 1..20 max=1
    submit b 21 max=12
    submit c 31..50 max=1
    steps 8
    ----
    a admitted on w, 0 cached
    b admitted on w, 0 cached
    c admitted on w, 0 cached
    step 1: a on row 0 page 0 computes 2; b on row 1 page 1 computes 1; c on row 2 page 2 computes 2
    step 1: b0
    a prefilled 2 of 20
    b prefilled 1 of 1
    c prefilled 2 of 20
    step 2: a computes 2; c computes 2; b decodes
    step 2: b1
    a prefilled 4 of 20
    c prefilled 4 of 20
    step 3: a page 3 computes 2; c page 4 computes 2; b decodes
    step 3: b2
    a prefilled 6 of 20
    c prefilled 6 of 20
    step 4: a computes 2; c computes 2; b decodes
    step 4: b3
    a prefilled 8 of 20
    c prefilled 8 of 20
    step 5: b page 5; a page 6 computes 2; c page 7 computes 2; b decodes
    step 5: b4
    a prefilled 10 of 20
    c prefilled 10 of 20
    step 6: a computes 2; c computes 2; b decodes
    step 6: b5
    a prefilled 12 of 20
    c prefilled 12 of 20
    step 7: a page 8 computes 2; c page 9 computes 2; b decodes
    step 7: b6
    a prefilled 14 of 20
    c prefilled 14 of 20
    step 8: a computes 2; c computes 2; b decodes
    step 8: b7
    a prefilled 16 of 20
    c prefilled 16 of 20

    plan
    result
    run
    ----
    b preempted: no pages
    step 9: row 1 released; a page 1 computes 2; c page 5 computes 2
    step 9: no tokens
    a prefilled 18 of 20
    c prefilled 18 of 20
    9 steps: a +1, b +4, c +1
    a ended: length, 1 tokens, in decode
    c ended: length, 1 tokens, in decode
    b ended: length, 12 tokens, 8 recomputed, in decode
    """)


def test_a_worker_lost_while_a_preempted_request_lands_loses_none_of_its_tokens() -> None:
    """b gave its row up with two steps in flight; the token of the first is there when the worker goes."""
    check_transcript("""
    core steps=3
    worker w pages=4 size=4
    submit a 1..6 max=8
    submit b 11..16 max=6
    plan
    plan
    plan
    result
    plan
    result
    lose w
    worker w pages=8 size=4
    run
    counts
    ----
    a admitted on w, 0 cached
    b admitted on w, 0 cached
    step 1: a on row 0 pages 0,1 computes 6; b on row 1 pages 2,3 computes 6
    step 2: a,b decode
    step 3: a,b decode
    step 1: a0 b0
    a prefilled 6 of 6
    b prefilled 6 of 6
    b preempted: no pages
    nothing to do
    step 2: a1 b1
    a preempted: worker lost
    b preempted: worker lost
    6 steps: a +6, b +4
    b ended: length, 6 tokens, 8 recomputed, in decode
    a ended: length, 8 tokens, 8 recomputed, in decode
    running 0, waiting 0, preemptions 3, computed_tokens 40, output_tokens 14, cached_tokens 0, wasted_tokens 0
    """)


def test_a_stop_token_is_found_among_few_and_among_many_ids() -> None:
    for others in (2, 20):
        stops = StopTokens()
        stops.add([5, 70_000])
        for token_id in range(100, 100 + others):
            stops.add([token_id])
        stops.add([5])
        stops.remove([5])
        column = array("i", [5 << 8, 256, 5, 0x05000000, 5, 70_000])
        assert stops.find(column) == [2, 4, 5]
        stops.remove([5])
        assert stops.find(column) == [5]
        assert stops.find(column[:2]) == []


def test_a_ring_gives_a_row_its_newest_tokens_over_its_end() -> None:
    ring = TokenRing(4, 3)
    for step in range(10, 14):
        ring.put(step, [(0, 0, 2), (3, 2, 3)], array("i", [step, 100 + step, 300 + step]))
    assert list(ring.take(Row(0), 11, 13)) == [11, 12, 13]
    assert list(ring.take(Row(1), 12, 12)) == [112]
    assert list(ring.take(Row(3), 11, 12)) == [311, 312]
