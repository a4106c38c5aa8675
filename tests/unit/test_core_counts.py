"""What the core counts for metrics: what waits for what, tokens that begin or are cut, evictions of lost workers."""

from support.core_bench import CoreBench, card, config

from scheduler_svc.core.types import Counts, EndReason, RequestKey, WorkerId


def waiting(counts: Counts) -> tuple[int, int, int]:
    return counts.num_waiting, counts.num_unplaced, counts.num_parked


def test_waiting_requests_are_told_apart_by_what_they_wait_for() -> None:
    bench = CoreBench(config(), card(pages=16, size=4))
    for number in range(3):
        bench.submit(number, [*range(13)], 2, stops=())
    bench.plan()
    assert waiting(bench.core.counts()) == (2, 0, 2)
    bench.core.cancel(RequestKey(2), EndReason.CANCELLED, bench.now)
    assert waiting(bench.core.counts()) == (1, 0, 1)
    bench.core.remove_worker(WorkerId("w"), bench.now)
    assert waiting(bench.core.counts()) == (2, 2, 0)


def test_a_commit_says_how_many_of_its_tokens_are_first_ones() -> None:
    bench = CoreBench(config(), card(pages=16, size=4))
    bench.submit(0, [1, 2], 5, stops=())
    bench.plan()
    assert bench.commit(bench.execute()).num_firsts == 1
    bench.submit(1, [3, 4], 5, stops=())
    bench.plan()
    committed = bench.commit(bench.execute())
    assert (len(committed.keys), committed.num_firsts) == (2, 1)
    assert committed.keys[0] == 1


def test_tokens_behind_a_stop_string_are_cut() -> None:
    bench = CoreBench(config(), card(pages=16, size=4))
    bench.submit(0, [1, 2], 9, stops=(), hold=True)
    for _ in range(5):
        bench.step()
    bench.core.stop(RequestKey(0), 3, bench.now)
    counts = bench.core.counts()
    assert counts.num_cut_tokens == 2
    assert counts.num_output_tokens - counts.num_cut_tokens == 3
    assert counts.num_wasted_tokens >= 2


def test_evictions_of_a_worker_that_is_gone_stay_counted() -> None:
    bench = CoreBench(config(), card(pages=4, size=4))
    for number in range(3):
        bench.submit(number, [number, *range(13)], 1, stops=())
        bench.run()
    num_evictions = bench.core.counts().num_page_evictions
    assert num_evictions > 0
    bench.core.remove_worker(WorkerId("w"), bench.now)
    assert bench.core.counts().num_page_evictions == num_evictions
