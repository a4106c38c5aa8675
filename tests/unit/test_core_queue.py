"""When a request begins or is refused: full queues, pages left to who runs, pages taken for a higher priority."""

from random import Random

from support.core_bench import CoreBench, card, config
from support.core_transcript import check_transcript
from support.core_worker import counting


def test_a_full_queue_still_takes_what_is_a_tenants_share() -> None:
    check_transcript("""
    core queue=4
    worker w pages=32 size=4
    submit a 1 max=9 tenant=x
    submit b 1 max=9 tenant=x
    submit c 1 max=9 tenant=x
    submit d 1 max=9 tenant=x
    submit e 1 max=9 tenant=x
    submit f 1 max=9 tenant=y
    submit g 1 max=9 tenant=y
    submit h 1 max=9 tenant=y
    ----
    RequestRejected: 4 requests are waiting already
    RequestRejected: 6 requests are waiting already
    """)


def test_waiting_tokens_are_limited_but_a_long_prompt_may_wait_alone() -> None:
    check_transcript("""
    core queued_tokens=20
    worker w pages=32 size=4
    submit a 1..30 max=9
    submit b 1 max=9
    plan
    submit b 1..15 max=9
    submit c 1..5 max=9
    submit d 1 max=9
    submit d 1 max=9 tenant=y
    ----
    RequestRejected: requests of 30 tokens are waiting already
    a admitted on w, 0 cached
    step 1: a on row 0 pages 0,1,2,3,4,5,6,7 computes 30
    RequestRejected: requests of 20 tokens are waiting already
    """)


def test_who_comes_when_nobody_waits_is_taken_however_many_its_outputs() -> None:
    check_transcript("""
    core queue=2 queued_tokens=20
    worker w pages=32 size=4
    submit a 1..15 max=9
    submit b 1..15 max=9 fork=a
    submit c 1..15 max=9 fork=a
    submit d 1 max=9
    ----
    RequestRejected: 3 requests are waiting already

    core queue=2 queued_tokens=20
    worker w pages=32 size=4
    submit a 1 max=9
    submit b 2 max=9
    submit c 2 max=9 fork=b
    ----
    RequestRejected: 2 requests are waiting already
    """)


def test_a_request_begins_only_if_pages_are_left_to_who_runs() -> None:
    """Two pages are free and two rows run: with a watermark c waits, without one it begins, and b gives way."""
    check_transcript("""
    core watermark=0.25
    worker w pages=8 size=4
    submit a 1..12 max=9
    submit b 21..31 max=5
    submit c 41..44 max=6
    plan
    run
    counts
    ----
    a admitted on w, 0 cached
    b admitted on w, 0 cached
    step 1: a on row 0 pages 0,1,2 computes 12; b on row 1 pages 3,4,5 computes 11
    10 steps: a +9, b +5, c +6
    b ended: length, 5 tokens, in decode
    a ended: length, 9 tokens, in decode
    c ended: length, 6 tokens, in decode
    running 0, waiting 0, preemptions 0, computed_tokens 44, output_tokens 20, cached_tokens 0, wasted_tokens 0

    core watermark=0
    worker w pages=8 size=4
    submit a 1..12 max=9
    submit b 21..31 max=5
    submit c 41..44 max=6
    plan
    run
    counts
    ----
    a admitted on w, 0 cached
    b admitted on w, 0 cached
    c admitted on w, 0 cached
    step 1: a on row 0 pages 0,1,2 computes 12; b on row 1 pages 3,4,5 computes 11; c on row 2 page 6 computes 4
    9 steps: a +9, b +5, c +6
    b ended: length, 5 tokens, in decode
    a ended: length, 9 tokens, in decode
    c ended: length, 6 tokens, 4 recomputed, in decode
    running 0, waiting 0, preemptions 1, computed_tokens 48, output_tokens 20, cached_tokens 0, wasted_tokens 0
    """)


def test_fai_03_a_higher_priority_takes_the_pages_of_the_lowest() -> None:
    check_transcript("""
    worker w pages=8 size=4
    submit a 1..12 max=8 priority=1
    submit b 21..32 max=8 priority=0
    plan
    result
    submit c 41..54 max=2 priority=2
    plan
    run
    ----
    a admitted on w, 0 cached
    b admitted on w, 0 cached
    step 1: a on row 0 pages 0,1,2 computes 12; b on row 1 pages 3,4,5 computes 12
    step 1: a0 b0
    a prefilled 12 of 12
    b prefilled 12 of 12
    b preempted: a higher priority needs its pages
    c admitted on w, 0 cached
    step 2: row 1 released; c on row 1 pages 7,5,4,3 computes 14; a page 6; a decodes; published 0,1,2
    12 steps: a +7, b +7, c +2
    c ended: length, 2 tokens, in decode
    a ended: length, 8 tokens, in decode
    b ended: length, 8 tokens, 13 recomputed, in decode
    """)


def test_fai_03_pages_that_steps_in_flight_write_are_waited_for() -> None:
    check_transcript("""
    worker w pages=8 size=4
    submit a 1..12 max=8 priority=1
    submit b 21..32 max=8 priority=0
    plan
    plan
    submit c 41..54 max=2 priority=2
    result
    plan
    result
    plan
    ----
    a admitted on w, 0 cached
    b admitted on w, 0 cached
    step 1: a on row 0 pages 0,1,2 computes 12; b on row 1 pages 3,4,5 computes 12
    step 2: a page 6; b page 7; a,b decode
    step 1: a0 b0
    a prefilled 12 of 12
    b prefilled 12 of 12
    b preempted: a higher priority needs its pages
    step 3: row 1 released; a decodes; published 0,1,2,3,4,5
    step 2: a1 b1
    c admitted on w, 0 cached
    step 4: c on row 1 pages 7,5,4,3 computes 14; a decodes; evicted 5,4,3
    """)


def test_nobody_gives_way_to_another_tenant_or_where_priorities_do_not_count() -> None:
    check_transcript("""
    worker w pages=8 size=4
    submit a 1..12 max=3 tenant=x
    submit b 21..32 max=3 tenant=x
    plan
    result
    submit c 41..54 max=2 priority=2 tenant=y
    plan
    run
    ----
    a admitted on w, 0 cached
    b admitted on w, 0 cached
    step 1: a on row 0 pages 0,1,2 computes 12; b on row 1 pages 3,4,5 computes 12
    step 1: a0 b0
    a prefilled 12 of 12
    b prefilled 12 of 12
    step 2: a page 6; b page 7; a,b decode; published 0,1,2,3,4,5
    3 steps: a +2, b +2, c +2
    a ended: length, 3 tokens, in decode
    b ended: length, 3 tokens, in decode
    c ended: length, 2 tokens, in decode

    core policy=fcfs
    worker w pages=8 size=4
    submit a 1..12 max=3
    submit b 21..32 max=3
    plan
    result
    submit c 41..54 max=2 priority=2
    plan
    run
    ----
    a admitted on w, 0 cached
    b admitted on w, 0 cached
    step 1: a on row 0 pages 0,1,2 computes 12; b on row 1 pages 3,4,5 computes 12
    step 1: a0 b0
    a prefilled 12 of 12
    b prefilled 12 of 12
    step 2: a page 6; b page 7; a,b decode; published 0,1,2,3,4,5
    3 steps: a +2, b +2, c +2
    a ended: length, 3 tokens, in decode
    b ended: length, 3 tokens, in decode
    c ended: length, 2 tokens, in decode
    """)


def test_nobody_is_preempted_if_that_would_not_be_enough() -> None:
    check_transcript("""
    worker w pages=8 size=4
    submit a 1..12 max=3 priority=2
    submit b 21..32 max=3
    plan
    result
    submit c 41..67 max=2 priority=2
    plan
    run
    ----
    a admitted on w, 0 cached
    b admitted on w, 0 cached
    step 1: a on row 0 pages 0,1,2 computes 12; b on row 1 pages 3,4,5 computes 12
    step 1: a0 b0
    a prefilled 12 of 12
    b prefilled 12 of 12
    step 2: a page 6; b page 7; a,b decode; published 0,1,2,3,4,5
    3 steps: a +2, b +2, c +2
    a ended: length, 3 tokens, in decode
    b ended: length, 3 tokens, in decode
    c ended: length, 2 tokens, in decode
    """)


def test_who_was_passed_for_long_keeps_its_pages() -> None:
    check_transcript("""
    core aging=10
    worker w pages=8 size=4
    submit a 1..12 max=3
    submit b 21..32 max=3
    plan
    time 100
    submit c 41..54 max=2 priority=2
    result
    plan
    run
    ----
    a admitted on w, 0 cached
    b admitted on w, 0 cached
    step 1: a on row 0 pages 0,1,2 computes 12; b on row 1 pages 3,4,5 computes 12
    step 1: a0 b0
    a prefilled 12 of 12
    b prefilled 12 of 12
    step 2: a page 6; b page 7; a,b decode; published 0,1,2,3,4,5
    3 steps: a +2, b +2, c +2
    a ended: length, 3 tokens, in decode
    b ended: length, 3 tokens, in decode
    c ended: length, 2 tokens, in decode
    """)


def test_fai_03_random_priorities_end_with_the_right_tokens() -> None:
    """Every rule is checked after every call; the worker refuses plans with rows of preempted requests."""
    num_preemptions = 0
    for seed in range(60):
        random = Random(seed)
        bench = CoreBench(config(rows=8, tokens=48), card(pages=12, size=16, length=190), function=counting)
        for key in range(14):
            prompt = range(1000 * key, 1000 * key + random.randint(1, 80))
            bench.submit(key, prompt, random.randint(1, 60), stops=(), priority=random.randint(0, 3))
            for _ in range(random.randint(0, 3)):
                bench.plan()
                if random.random() < 0.7 and bench.workers["w"].plans:  # type: ignore[index]
                    bench.result()
        bench.finish()
        num_preemptions += bench.core.counts().num_preemptions
    assert num_preemptions > 100
