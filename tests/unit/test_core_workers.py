"""Workers that come and go, and what is refused."""

import pytest
from support.core_bench import CoreBench, card, config
from support.core_transcript import check_transcript
from support.core_worker import counting

from scheduler_svc.core.errors import RejectCode, RequestRejected
from scheduler_svc.core.types import WorkerId


def test_requests_go_to_the_least_loaded_worker() -> None:
    check_transcript("""
    worker u pages=8 size=4
    worker v pages=8 size=4
    submit a 1..6 max=2
    submit b 11..12 max=2
    submit c 21..22 max=2
    submit d 31..33 max=2
    plan u
    plan v
    ----
    a admitted on u, 0 cached
    d admitted on u, 0 cached
    step 1: a on row 0 pages 0,1 computes 6; d on row 1 page 2 computes 3
    b admitted on v, 0 cached
    c admitted on v, 0 cached
    step 1: b on row 0 page 0 computes 2; c on row 1 page 1 computes 2
    """)


def test_a_lost_workers_requests_go_on_elsewhere_with_the_tokens_they_had() -> None:
    check_transcript("""
    worker u pages=8 size=4
    submit a 1..3 max=4
    plan u
    plan u
    result u
    plan u
    worker v pages=8 size=4
    lose u
    plan v
    result v
    run v
    ----
    a admitted on u, 0 cached
    step 1: a on row 0 page 0 computes 3
    step 2: a decodes
    step 1: a0
    a prefilled 3 of 3
    step 3: a page 1; a decodes
    a preempted: worker lost
    a resumed on v, 0 cached
    step 1: a on row 0 page 0 computes 4
    step 1: a1
    a prefilled 3 of 3
    2 steps: a +2
    a ended: length, 4 tokens, 4 recomputed, in decode
    """)


def test_without_a_worker_requests_wait_so_long_and_no_longer() -> None:
    check_transcript("""
    core lost=5
    submit a 1..3 max=1
    ----
    RequestRejected: no worker has joined yet

    worker u pages=8 size=4
    submit a 1..3 max=9
    plan u
    time 10
    lose u
    time 12
    submit b 11..13 max=1
    next
    time 15
    expire
    next
    ----
    a admitted on u, 0 cached
    step 1: a on row 0 page 0 computes 3
    a preempted: worker lost
    next expiry 15.0
    a ended: worker lost, 0 tokens, in queue
    next expiry 17.0

    time 16
    worker v pages=8 size=4
    next
    run v
    ----
    next expiry None
    1 steps: b +1
    b ended: length, 1 tokens, in decode
    """)


def test_a_waiting_request_moves_to_a_worker_that_comes() -> None:
    check_transcript("""
    core rows=1
    worker u pages=8 size=4
    submit a 1..3 max=3
    plan u
    submit b 11..13 max=2
    worker v pages=8 size=4
    plan v
    ----
    a admitted on u, 0 cached
    step 1: a on row 0 page 0 computes 3
    b admitted on v, 0 cached
    step 1: b on row 0 page 0 computes 3
    """)


def test_a_worker_that_comes_again_by_its_name_has_lost_everything() -> None:
    check_transcript("""
    worker w pages=8 size=4
    submit a 1..3 max=3
    plan
    worker w pages=8 size=4
    run
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 page 0 computes 3
    a preempted: worker lost
    3 steps: a +3
    a ended: length, 3 tokens, 3 recomputed, in decode
    """)


def test_a_worker_with_pages_of_another_size_is_refused() -> None:
    check_transcript("""
    worker u pages=8 size=4
    worker v pages=8 size=8
    ----
    WorkerRejected: page size is 8, the other workers have 4
    """)


def test_a_request_goes_where_it_fits_and_is_cut_short_only_if_there_is_no_better_worker() -> None:
    check_transcript("""
    worker u pages=2 size=4
    worker v pages=8 size=4
    submit a 1..9 max=4
    submit b 11..13 max=20
    submit c 1..40 max=1
    submit d 1..32 max=1
    run v
    lose v
    submit e 1..3 max=20
    submit d 1..32 max=1
    run u
    ----
    RequestRejected: the prompt has 40 tokens; with one more to generate at most 32 fit
    RequestRejected: the prompt has 32 tokens; with one more to generate at most 32 fit
    20 steps: a +4, b +20
    a ended: length, 4 tokens, in decode
    b ended: length, 20 tokens, in decode
    RequestRejected: the prompt has 32 tokens; with one more to generate at most 8 fit
    5 steps: e +5
    e ended: length, 5 tokens, in decode
    """)


def test_what_cannot_be_served_is_refused() -> None:
    check_transcript("""
    core queue=2 rows=1
    worker w pages=8 size=4 len=20
    submit a 1..20 max=1
    submit a 1..19 max=0
    submit a 1..19 max=1
    submit a 1..2 max=1
    submit b 1..2 max=1
    submit c 1..2 max=1
    plan
    submit c 1..2 max=1
    ----
    RequestRejected: the prompt has 20 tokens; with one more to generate at most 20 fit
    RequestRejected: max_tokens is 0, must be at least 1
    RequestRejected: a request with key 0 is live
    RequestRejected: 2 requests are waiting already
    a admitted on w, 0 cached
    step 1: a on row 0 pages 0,1,2,3,4 computes 19
    """)


def test_a_worker_that_is_too_small_does_not_help_who_waits() -> None:
    check_transcript("""
    core lost=5
    worker v pages=8 size=4
    submit a 1..10 max=4
    time 1
    lose v
    time 2
    worker u pages=2 size=4
    plan u
    next
    time 6
    expire
    ----
    nothing to do
    next expiry 6.0
    a ended: worker lost, 0 tokens, in queue
    """)


def test_malformed_requests_are_refused() -> None:
    bench = CoreBench(config(), card(size=4))
    with pytest.raises(RequestRejected, match="empty") as refusal:
        bench.submit(0, [], 1)
    assert (refusal.value.code, refusal.value.field) == (RejectCode.INVALID, "prompt")
    bench.page_size = 8  # a front that hashes pages of another size
    with pytest.raises(RequestRejected, match="2 hashes for 16 tokens") as refusal:
        bench.submit(0, range(16), 1)
    assert (refusal.value.code, refusal.value.field) == (RejectCode.INVALID, "page_hashes")


def test_what_is_not_known_is_idle_and_has_nothing_to_do() -> None:
    core = CoreBench(config(), card()).core
    assert core.is_idle(WorkerId("x"))
    assert core.plan(WorkerId("x"), 0.0) == (None, [])
    assert core.remove_worker(WorkerId("x"), 0.0) == []


def test_a_worker_is_idle_when_nothing_waits_runs_or_is_in_flight() -> None:
    bench = CoreBench(config(), card())
    idle = [bench.core.is_idle(WorkerId("w"))]
    bench.submit(0, [1], 1)
    idle.append(bench.core.is_idle(WorkerId("w")))
    bench.plan()
    idle.append(bench.core.is_idle(WorkerId("w")))
    bench.result()
    idle.append(bench.core.is_idle(WorkerId("w")))
    assert idle == [True, False, False, True]


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="max_steps_in_flight"):
        CoreBench(config(max_steps_in_flight=0))
    with pytest.raises(ValueError, match="max_num_seqs must be at most 65536"):
        CoreBench(config(rows=65_537))
    with pytest.raises(ValueError, match="long_prefill_token_threshold"):
        CoreBench(config(long_prefill_token_threshold=-1))


def test_requests_that_wait_for_a_page_go_where_a_new_worker_lets_them() -> None:
    """The second computes the same prompt elsewhere instead of waiting for the first one's pages."""
    bench = CoreBench(config(tokens=4, long_prefill_token_threshold=2), card(pages=16, size=4), function=counting)
    bench.submit(0, range(14), 3, stops=())
    bench.plan()
    for key in (1, 2):
        bench.submit(key, range(14), 3, stops=())
    bench.plan()
    assert bench.events == []
    bench.join(card("v", pages=16, size=4))
    bench.plan("v")
    assert bench.events
    bench.finish()
