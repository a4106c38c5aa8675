"""Pins: what they keep, for how long, how much of it, and when they give way."""

import pytest
from support.core_bench import CoreBench, card, config
from support.core_transcript import check_transcript

from scheduler_svc.core.errors import InvariantViolation
from scheduler_svc.core.page_pool import PagePool


def test_a_pinned_prefix_outlives_what_comes_after_it() -> None:
    """Its pages are held from when they are cached, and are cached as any others when it ends."""
    check_transcript("""
    core pin_share=0.5
    worker w pages=8 size=4
    pin p 1..10 for=60
    pins
    submit a 1..10 max=1
    run
    pins
    pages
    ----
    p: 0 pages until 60
    1 steps: a +1
    a ended: length, 1 tokens, in decode
    p: 2 pages until 60
    6 free, 2 held, 0 cached

    submit b 101..122 max=1
    run
    submit c 1..10 max=1
    plan
    result
    ----
    1 steps: b +1
    b ended: length, 1 tokens, in decode
    c admitted on w, 8 cached
    step 3: row 0 released; c on row 0 pages 0,1,7 computes 2; published 2,3,4,5,6
    step 3: c0
    c prefilled 10 of 10
    c ended: length, 1 tokens, in decode

    unpin p
    unpin p
    pins
    pages
    reset
    ----
    no such pin
    no pins
    1 free, 0 held, 7 cached
    7 pages freed
    """)


def test_what_is_cached_is_held_at_once_and_a_reset_leaves_it() -> None:
    check_transcript("""
    worker w pages=16 size=4
    submit a 1..10 max=1
    run
    pin p 1..10 for=60
    reset
    pages
    prefix 1..10
    ----
    1 steps: a +1
    a ended: length, 1 tokens, in decode
    0 pages freed
    14 free, 2 held, 0 cached
    hit, hit, tail not full
    """)


def test_pins_end_with_their_time() -> None:
    """A page that another pin names stays."""
    check_transcript("""
    worker w pages=16 size=4
    submit a 1..9 max=1
    run
    pin p 1..9 for=5
    pin q 1..5 for=9
    next
    time 5
    expire
    pins
    pages
    ----
    1 steps: a +1
    a ended: length, 1 tokens, in decode
    next expiry 5.0
    no events
    q: 1 pages until 9
    14 free, 1 held, 1 cached

    time 9
    plan
    next
    pages
    ----
    nothing to do
    next expiry None
    14 free, 0 held, 2 cached
    """)


def test_a_lost_worker_costs_a_pin_its_pages_not_its_place() -> None:
    check_transcript("""
    worker w pages=16 size=4
    pin p 1..8 for=60
    submit a 1..9 max=1
    run
    lose w
    pins
    worker v pages=16 size=4
    submit b 1..9 max=1
    run v
    pins
    pages v
    ----
    1 steps: a +1
    a ended: length, 1 tokens, in decode
    p: 0 pages until 60
    1 steps: b +1
    b ended: length, 1 tokens, in decode
    p: 2 pages until 60
    14 free, 2 held, 0 cached
    """)


def test_a_smaller_worker_keeps_the_first_of_them() -> None:
    check_transcript("""
    core pin_share=0.5
    worker w pages=16 size=4
    pin p 1..16 for=60
    pin q 101..108 for=60
    worker v pages=8 size=4
    lose w
    submit a 1..17 max=1
    submit b 101..109 max=1
    run v
    pins
    ----
    1 steps: a +1, b +1
    a ended: length, 1 tokens, in decode
    b ended: length, 1 tokens, in decode
    p: 4 pages until 60
    q: 0 pages until 60
    """)


def test_pins_name_a_share_of_the_pages_and_those_of_a_tenant_half_of_it() -> None:
    check_transcript("""
    worker w pages=40 size=4
    pin p 1..20 for=60
    pin q 1..24 for=60
    pin r 1..16 for=60
    pins
    ----
    RequestRejected: pins name 5 pages; with 6 more they would be over 10
    p: 0 pages until 60
    r: 0 pages until 60

    unpin p
    pin t 1..24 for=60 tenant=x
    pin t 1..16 for=60 tenant=x
    pin u 1..8 for=60 tenant=x
    pins tenant=x
    ----
    RequestRejected: pins of one tenant name 0 pages; with 6 more they would be over 5
    RequestRejected: pins of one tenant name 4 pages; with 2 more they would be over 5
    t: 0 pages until 60
    """)


def test_what_could_keep_nothing_is_refused() -> None:
    check_transcript("""
    worker w pages=40 size=4
    pin p 1..3 for=60
    pin p 1..4 for=60
    pin p 5..8 for=60
    lose w
    pin q 1..4 for=60
    ----
    RequestRejected: the prefix does not fill a page
    RequestRejected: there is such a pin
    RequestRejected: no worker has joined yet

    core cache=off
    worker w
    pin p 1..8 for=60
    ----
    RequestRejected: prefix caching is off
    """)


def test_pins_give_way_to_a_request_that_needs_all_pages() -> None:
    """The last one first. They come back with a new worker only."""
    check_transcript("""
    core pin_share=1
    worker w pages=4 size=4
    submit a 1..9 max=1
    run
    pin p 1..9 for=60
    pin q 101..108 for=60
    submit b 201..214 max=1
    plan
    result
    pins
    pages
    ----
    1 steps: a +1
    a ended: length, 1 tokens, in decode
    b admitted on w, 0 cached
    step 2: row 0 released; b on row 0 pages 2,3,1,0 computes 14
    step 2: b0
    b prefilled 14 of 14
    b ended: length, 1 tokens, in decode
    p: 0 pages until 60
    q: 0 pages until 60
    1 free, 0 held, 3 cached
    """)


def test_pins_give_way_to_a_row_that_is_alone() -> None:
    check_transcript("""
    core pin_share=1
    worker w pages=4 size=4
    submit a 1..9 max=1
    run
    pin p 1..9 for=60
    submit b 201..204 max=12
    submit c 301..303 max=1
    run
    pins
    pages
    ----
    1 steps: a +1
    a ended: length, 1 tokens, in decode
    12 steps: b +12, c +1
    c ended: length, 1 tokens, in decode
    b ended: length, 12 tokens, in decode
    p: 0 pages until 60
    1 free, 0 held, 3 cached
    """)


def test_without_pins_none_gives_way() -> None:
    assert not PagePool(1).drop_pin()


def test_a_worker_that_keeps_pages_for_nobody_is_found() -> None:
    bench = CoreBench(config(), card())
    bench.core._placement.workers["w"].pool.pin(("", "p"), ())  # type: ignore[index]
    with pytest.raises(InvariantViolation, match="a pin that is gone"):
        bench.core.check_invariants()
