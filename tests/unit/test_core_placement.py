"""Which worker a request goes to, and when it moves to another one."""

import pytest
from support.core_bench import CoreBench, card, config
from support.core_transcript import check_transcript
from support.core_worker import counting

from scheduler_svc.core.placement import MAX_HOMES
from scheduler_svc.core.types import WorkerId


def worker_of(bench: CoreBench, key: int) -> WorkerId:
    worker_id = bench.ended[key].worker_id
    assert worker_id is not None
    return worker_id


def test_a_request_goes_where_its_prefix_is_cached() -> None:
    check_transcript("""
    core tokens=64
    worker u pages=16 size=4
    worker v pages=16 size=4
    submit a 1..20 max=1
    submit b 101..120 max=1
    plan u
    plan v
    result u
    result v
    submit c 101..120,7 max=1
    submit d 1..20,8 max=1
    plan u
    plan v
    ----
    a admitted on u, 0 cached
    step 1: a on row 0 pages 0,1,2,3,4 computes 20
    b admitted on v, 0 cached
    step 1: b on row 0 pages 0,1,2,3,4 computes 20
    step 1: a0
    a prefilled 20 of 20
    a ended: length, 1 tokens, in decode
    step 1: b0
    b prefilled 20 of 20
    b ended: length, 1 tokens, in decode
    d admitted on u, 20 cached
    step 2: row 0 released; d on row 0 pages 0,1,2,3,4,5 computes 1; published 0,1,2,3,4
    c admitted on v, 20 cached
    step 2: row 0 released; c on row 0 pages 0,1,2,3,4,5 computes 1; published 0,1,2,3,4
    """)


def test_a_prefix_that_is_about_to_be_computed_counts() -> None:
    check_transcript("""
    core tokens=64
    worker u pages=64 size=4
    worker v pages=64 size=4
    submit a 1..20,6 max=1
    submit b 1..20,7 max=1
    submit c 201..202 max=1
    plan u
    plan v
    ----
    a admitted on u, 0 cached
    step 1: a on row 0 pages 0,1,2,3,4,5 computes 21
    c admitted on v, 0 cached
    step 1: c on row 0 page 0 computes 2
    """)


def test_a_prefix_is_worth_no_more_than_its_tokens() -> None:
    """Requests of one family stay together until their worker is so full that computing the prefix again is cheaper."""
    bench = CoreBench(config(tokens=64, rows=8), *(card(name, pages=256) for name in "uv"), function=counting)
    for key in range(12):
        bench.submit(key, [*range(12), 100 + key], 9, stops=())
    bench.finish()
    workers = [worker_of(bench, key) for key in range(12)]
    assert workers[:2] == [workers[0]] * 2
    assert set(workers) == {"u", "v"}


def test_salted_and_uncached_requests_only_see_the_load() -> None:
    bench = CoreBench(config(tokens=64), *(card(name, pages=64) for name in "uv"))
    for key in range(4):
        bench.submit(key, range(20), 2, stops=(), salt=key if key % 2 else 0, cached=bool(key % 2))
    bench.finish()
    assert [worker_of(bench, key) for key in range(4)].count(WorkerId("u")) == 2


def test_an_idle_worker_takes_over_what_waits_for_a_row() -> None:
    check_transcript("""
    core rows=1
    worker u pages=16 size=4
    submit a 1..4 max=20
    submit b 11..14 max=2
    submit c 21..24 max=2
    plan u
    lose v
    worker v pages=16 size=4
    plan v
    result v
    plan v
    plan v
    counts
    ----
    a admitted on u, 0 cached
    step 1: a on row 0 page 0 computes 4
    b admitted on v, 0 cached
    step 1: b on row 0 page 0 computes 4
    step 1: b0
    b prefilled 4 of 4
    step 2: b page 1; b decodes; published 0
    nothing to do
    running 2, waiting 1, preemptions 0, computed_tokens 9, output_tokens 1, cached_tokens 0, wasted_tokens 0
    """)


def test_an_idle_worker_takes_over_what_its_like_cannot_begin() -> None:
    """All wait at u for the prefix that a computes there; v has nothing to do, and takes one that it can begin."""
    check_transcript("""
    core rows=1 tokens=4
    worker u pages=32 size=4
    worker v pages=32 size=4
    submit a 1..40,101 max=1
    submit b 1..40,102 max=1
    submit c 1..40,103 max=1
    plan u
    plan v
    ----
    a admitted on u, 0 cached
    step 1: a on row 0 page 0 computes 4
    b admitted on v, 0 cached
    step 1: b on row 0 page 0 computes 4
    """)


def test_nothing_moves_to_a_worker_that_cannot_begin_it() -> None:
    """v is too small for b, and u has no row for it."""
    check_transcript("""
    core rows=1
    worker u pages=16 size=4
    worker v pages=2 size=4
    submit a 1..4 max=40
    submit b 11..14 max=40
    plan u
    plan v
    ----
    a admitted on u, 0 cached
    step 1: a on row 0 page 0 computes 4
    nothing to do
    """)


def test_nothing_moves_where_its_pages_are_not_free() -> None:
    """b waits for u, which has its prefix and no row; v has a row and, beside c, pages for a part of it."""
    check_transcript("""
    core rows=2 tokens=64
    worker u pages=64 size=4 rows=1 tokens=4
    worker v pages=12 size=4
    submit a 31..82 max=2
    submit b 31..62,99 max=2
    submit c 1..40 max=4
    plan u
    steps 1 v
    plan v
    pages v
    counts
    ----
    a admitted on u, 0 cached
    step 1: a on row 0 page 0 computes 4
    c admitted on v, 0 cached
    step 1: c on row 0 pages 0,1,2,3,4,5,6,7,8,9 computes 40
    step 1: c0
    c prefilled 40 of 40
    step 2: c page 10; c decodes; published 0,1,2,3,4,5,6,7,8,9
    1 free, 11 held, 0 cached
    running 2, waiting 1, preemptions 0, computed_tokens 45, output_tokens 1, cached_tokens 0, wasted_tokens 0
    """)


def test_outputs_that_share_a_prompt_stay_together() -> None:
    check_transcript("""
    core rows=1 tokens=4
    worker u pages=32 size=4
    worker v pages=32 size=4
    submit a 1..40,101 max=1
    submit b 1..40,102 max=1
    submit c 1..40,102 max=1 fork=b
    plan u
    plan v
    ----
    a admitted on u, 0 cached
    step 1: a on row 0 page 0 computes 4
    nothing to do
    """)


def test_names_of_homes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_HOMES > 10_000
    monkeypatch.setattr("scheduler_svc.core.placement.MAX_HOMES", 10)
    bench = CoreBench(config(), card("u", pages=64), card("v", pages=64), function=counting)
    for key in range(30):
        bench.submit(key, range(100 * key, 100 * key + 8), 1, stops=())
    assert len(bench.core._placement._homes) == 10
    bench.finish()
