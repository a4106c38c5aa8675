"""What the flight recorder keeps of a request, as sentences: why it waited, what it computed, who took its pages."""

import pytest
from support.core_bench import CoreBench, card, config
from support.core_transcript import check_transcript

from scheduler_svc.core.admission import LOOK_AHEAD
from scheduler_svc.core.flight_recorder import MOST_OF_ONE, What
from scheduler_svc.core.types import RequestKey


def test_a_request_waits_for_a_row() -> None:
    check_transcript("""
    core tokens=8 rows=1
    worker w pages=8 size=4
    submit a 1..12 max=2
    submit b 20..24 max=1
    ----

    steps 2
    time 3
    steps 1
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 pages 0,1 computes 8
    step 1: no tokens
    a prefilled 8 of 12
    step 2: a page 2 computes 4; published 0,1
    step 2: a0
    a prefilled 12 of 12
    step 3: a page 3; a decodes; published 2
    step 3: a1
    a ended: length, 2 tokens, in decode

    run
    ----
    1 steps: b +1
    b ended: length, 1 tokens, in decode

    explain a
    explain b
    ----
    0 s: submitted with 12 prompt tokens; 0 requests waited already
    0 s: waits for worker w
    0 s, step 1: admitted on worker w with 0 tokens cached
    0 s, step 1: computes 8 tokens, 8 in all
    0 s, step 2: computes 4 tokens, 12 in all
    0 s, step 2: first output token; decodes from now on
    3 s, step 3: ended: length, 2 output tokens
    0 s: submitted with 5 prompt tokens; 1 requests waited already
    0 s: waits for worker w
    0 s, step 1: waits: all rows of the worker are taken
    3 s, step 4: admitted on worker w with 0 tokens cached
    3 s, step 4: computes 5 tokens, 5 in all
    3 s, step 4: ended: length, 1 output tokens
    """)


def test_a_request_waits_for_budget_and_then_for_a_page_that_another_one_computes() -> None:
    check_transcript("""
    core tokens=8
    worker w pages=6 size=4
    submit a 1..10 max=2
    submit b 1..9,50 max=2
    ----

    plan
    plan
    result
    result
    time 1
    run
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 pages 0,1 computes 8
    step 2: a page 2 computes 2
    step 1: no tokens
    a prefilled 8 of 10
    step 2: a0
    a prefilled 10 of 10
    2 steps: a +1, b +2
    a ended: length, 2 tokens, in decode
    b ended: length, 2 tokens, in decode

    explain b
    ----
    0 s: submitted with 10 prompt tokens; 1 requests waited already
    0 s: waits for worker w
    0 s, step 1: waits: the step has its 8 tokens already
    0 s, step 2: waits: a is computing its next page
    1 s, step 3: admitted on worker w with 8 tokens cached
    1 s, step 3: computes 2 tokens, 10 in all
    1 s, step 3: first output token; decodes from now on
    1 s, step 4: ended: length, 2 output tokens
    """)


def test_pages_are_short_and_somebody_gives_way() -> None:
    check_transcript("""
    core
    worker w pages=4 size=4
    submit a 1..7 max=8
    submit b 21..27 max=8
    submit c 31..35 max=4
    ----

    run
    explain b
    explain c
    ----
    18 steps: a +8, b +8, c +4
    a ended: length, 8 tokens, in decode
    b ended: length, 8 tokens, 8 recomputed, in decode
    c ended: length, 4 tokens, in decode
    0 s: submitted with 7 prompt tokens; 1 requests waited already
    0 s: waits for worker w
    0 s, step 1: admitted on worker w with 0 tokens cached
    0 s, step 1: computes 7 tokens, 7 in all
    0 s, step 1: first output token; decodes from now on
    0 s, step 3: preempted: no pages, to make room for a
    0 s, step 3: waits: it needs 2 new pages; 1 are available, and prompts begun before may need them
    0 s, step 9: admitted again on worker w with 0 tokens cached
    0 s, step 9: computes 9 tokens, 9 in all
    0 s, step 14: ended: length, 8 output tokens
    0 s: submitted with 5 prompt tokens; 2 requests waited already
    0 s: waits for worker w
    0 s, step 1: waits: it needs 2 new pages; 0 are available, and prompts begun before may need them
    0 s, step 3: waits: 1 running requests get the next pages that come free
    0 s, step 9: waits: it needs 2 new pages; 1 are available, and prompts begun before may need them
    0 s, step 15: admitted on worker w with 0 tokens cached
    0 s, step 15: computes 5 tokens, 5 in all
    0 s, step 15: first output token; decodes from now on
    0 s, step 18: ended: length, 4 output tokens
    """)


def test_a_worker_is_lost_and_another_one_comes() -> None:
    check_transcript("""
    core lost=5
    worker w pages=4 size=4
    submit a 1..6 max=4
    ----

    steps 1
    time 2
    lose w
    time 3
    worker v pages=3 size=4
    run v
    explain a
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 pages 0,1 computes 6
    step 1: a0
    a prefilled 6 of 6
    a preempted: worker lost
    3 steps: a +3
    a ended: length, 4 tokens, 6 recomputed, in decode
    0 s: submitted with 6 prompt tokens; 0 requests waited already
    0 s: waits for worker w
    0 s, step 1: admitted on worker w with 0 tokens cached
    0 s, step 1: computes 6 tokens, 6 in all
    0 s, step 1: first output token; decodes from now on
    2 s: preempted: worker lost
    2 s: waits: no worker can hold it
    3 s, step 1: admitted again on worker v with 0 tokens cached
    3 s, step 1: computes 7 tokens, 7 in all
    3 s, step 3: ended: length, 4 output tokens

    worker z pages=4 size=4
    submit b 1..13 max=3
    lose z
    lose v
    time 9
    expire
    explain b
    ----
    b ended: worker lost, 0 tokens, in queue
    3 s: submitted with 13 prompt tokens; 0 requests waited already
    3 s: waits for worker z
    3 s: waits: no worker can hold it
    9 s: ended: worker lost, 0 output tokens
    """)


def test_a_held_ending_and_chunks() -> None:
    check_transcript("""
    core tokens=4
    worker w pages=8 size=4
    submit a 1..3 max=9 hold eos=1
    submit b 11..21 max=1
    plan
    plan
    result
    result
    ----
    a admitted on w, 0 cached
    b admitted on w, 0 cached
    step 1: a on row 0 page 0 computes 3; b on row 1 page 1 computes 1
    step 2: b computes 3; a decodes
    step 1: a0
    a prefilled 3 of 3
    b prefilled 1 of 11
    step 2: a:eos
    b prefilled 4 of 11
    a held at 2

    stop a 1
    explain a
    explain b
    ----
    a ended: stop string, 1 tokens, in decode
    0 s: submitted with 3 prompt tokens; 0 requests waited already
    0 s: waits for worker w
    0 s, step 1: admitted on worker w with 0 tokens cached
    0 s, step 1: computes 3 tokens, 3 in all
    0 s, step 1: first output token; decodes from now on
    0 s, step 2: at its end after 2 output tokens; waits for the scan for stop strings
    0 s: ended: stop string, 1 output tokens
    0 s: submitted with 11 prompt tokens; 1 requests waited already
    0 s: waits for worker w
    0 s, step 1: admitted on worker w with 0 tokens cached
    0 s, step 1: computes 1 tokens, 1 in all
    0 s, step 2: computes 3 tokens, 4 in all
    """)


def test_of_a_long_story_the_beginning_and_the_newest_is_kept() -> None:
    bench = CoreBench(config(tokens=1), card(pages=100))
    bench.submit(0, range(300), 1)
    bench.run()
    decisions = bench.core.decisions(RequestKey(0))
    assert len(decisions) == MOST_OF_ONE + 1
    (gap,) = [decision for decision in decisions if decision.what is What.FORGOT]
    assert gap.first == 300 + 4 - MOST_OF_ONE
    assert (decisions[0].what, decisions[-1].what) == (What.SUBMITTED, What.ENDED)


def test_ended_requests_are_forgotten_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler_svc.core.flight_recorder.MOST_OF_ENDED", 20)
    bench = CoreBench(config(), card())
    for key in range(6):
        bench.submit(key, [key], 1)
        bench.run()
    known = [key for key in range(6) if bench.core.decisions(RequestKey(key))]
    assert known == [2, 3, 4, 5]
    assert bench.core.decisions(RequestKey(77)) == ()


def test_looking_at_many_requests_that_wait_for_pages_ends_with_the_step() -> None:
    bench = CoreBench(config(rows=8, tokens=64), card(pages=64))
    for key in range(LOOK_AHEAD + 2):
        bench.submit(key, range(9), 1)
    bench.plan()
    last = bench.core.decisions(RequestKey(LOOK_AHEAD + 1))[-1]
    assert last.what is What.TOO_MANY_LOOKED_AT


def test_a_request_behind_others_is_told_where_it_stands_and_what_the_first_waits_for() -> None:
    check_transcript("""
    core rows=1
    worker w pages=16 size=4
    submit a 1..8 max=9
    plan
    submit b 11..14 max=1
    submit c 21..24 max=1
    submit d 31..34 max=1
    submit e 41..44 max=1 tenant=y
    explain b
    plan
    time 2
    explain d
    explain b
    explain a
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 pages 0,1 computes 8
    0 s: submitted with 4 prompt tokens; 0 requests waited already
    0 s: waits for worker w
    step 2: a page 2; a decodes
    0 s: submitted with 4 prompt tokens; 2 requests waited already
    0 s: waits for worker w
    2 s: stands behind 2 requests of its tenant; 1 of other tenants wait too
    2 s: the first in the queue is e, which
    2 s, step 2: waits: all rows of the worker are taken
    0 s: submitted with 4 prompt tokens; 0 requests waited already
    0 s: waits for worker w
    2 s: stands behind 0 requests of its tenant; 1 of other tenants wait too
    2 s: the first in the queue is e, which
    2 s, step 2: waits: all rows of the worker are taken
    0 s: submitted with 8 prompt tokens; 0 requests waited already
    0 s: waits for worker w
    0 s, step 1: admitted on worker w with 0 tokens cached
    0 s, step 1: computes 8 tokens, 8 in all

    lose w
    explain d
    ----
    a preempted: worker lost
    0 s: submitted with 4 prompt tokens; 2 requests waited already
    0 s: waits for worker w
    2 s: waits: no worker can hold it
    """)


def test_a_request_that_waits_for_a_page_stands_in_no_line() -> None:
    check_transcript("""
    core rows=2
    worker w pages=16 size=4
    submit a 1..8 max=9
    submit b 1..8,50 max=1
    submit c 61..64 max=9
    submit d 71..74 max=9
    plan
    explain b
    explain d
    ----
    a admitted on w, 0 cached
    c admitted on w, 0 cached
    step 1: a on row 0 pages 0,1 computes 8; c on row 1 page 2 computes 4
    0 s: submitted with 9 prompt tokens; 1 requests waited already
    0 s: waits for worker w
    0 s, step 1: waits: a is computing its next page
    0 s: submitted with 4 prompt tokens; 3 requests waited already
    0 s: waits for worker w
    0 s, step 1: waits: all rows of the worker are taken
    """)
