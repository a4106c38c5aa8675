"""What a step costs does not grow with what waits or what is cached; a steady step says next to nothing."""

from collections.abc import Sequence

import pytest
from support.core_bench import CoreBench, card, config
from support.core_worker import counting

from scheduler_svc.core.prefix_cache import PrefixCache
from scheduler_svc.core.request import Request, State
from scheduler_svc.core.types import PageHash
from scheduler_svc.core.waiting import WaitingQueue


@pytest.fixture
def num_matches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of all look-ups in prefix caches, as they happen."""
    calls: list[int] = []
    match = PrefixCache.match

    def counted(self: PrefixCache, hashes: Sequence[PageHash]) -> object:
        calls.append(len(hashes))
        return match(self, hashes)

    monkeypatch.setattr(PrefixCache, "match", counted)
    return calls


def test_a_steady_decode_plan_holds_page_appends_only() -> None:
    bench = CoreBench(config(tokens=1024, rows=32), card(pages=256, size=16), function=counting)
    for key in range(32):
        bench.submit(key, range(100 * key, 101 * key + 1), 60, stops=())
    bench.step()
    num_appends = 0
    for _ in range(32):
        plan = bench.plan()
        assert plan is not None
        bench.result()
        assert (len(plan.releases), len(plan.new_rows), len(plan.chunk_rows), len(plan.idle_rows)) == (0, 0, 0, 0)
        assert (len(plan.copy_sources), len(plan.evicted_pages)) == (0, 0)
        assert plan.num_scheduled_rows == plan.num_scheduled_tokens == 32
        num_appends += len(plan.append_pages)
    assert num_appends == 2 * 32


def test_the_head_that_does_not_fit_is_not_matched_again(num_matches: list[int]) -> None:
    bench = CoreBench(config(tokens=64), card(pages=10, size=4), function=counting)
    bench.submit(0, range(30), 8, stops=())
    for key in range(1, 40):
        bench.submit(key, range(100 * key, 100 * key + 16), 1, stops=())
    for _ in range(6):
        bench.step()
    assert len(num_matches) == 2  # once to begin the first, once to see that the second does not fit
    bench.finish()


def test_a_page_that_comes_lets_the_head_be_matched_again() -> None:
    """The head needs too many pages, until the first of them are cached by another request."""
    bench = CoreBench(config(tokens=8, rows=3), card(pages=9, size=4), function=counting)
    shared = list(range(16))
    bench.submit(0, [500], 30, stops=())
    bench.step()
    bench.submit(1, [*shared, 600], 1, stops=())
    bench.plan()
    bench.plan()
    bench.submit(2, [*shared, 700, 701, 702, 703, 704, 705], 1, stops=())
    while len(bench.ended) < 2:
        if bench.plan() is None:
            bench.result()
    bench.finish()


def test_many_equal_prompts_are_looked_at_in_small_portions(num_matches: list[int]) -> None:
    bench = CoreBench(config(tokens=8, rows=2), card(pages=64, size=4), function=counting)
    for key in range(300):
        bench.submit(key, range(20), 1, stops=())
    bench.plan()
    assert len(num_matches) == 1  # the first took the budget
    num_matches.clear()
    bench.plan()
    assert len(num_matches) == 0
    bench.result()
    num_matches.clear()
    bench.run()
    assert len(bench.ended) == 300
    assert len(num_matches) < 3 * 300


def test_parked_requests_are_bounded_in_one_step(num_matches: list[int]) -> None:
    bench = CoreBench(config(tokens=64, rows=2), card(pages=64, size=4), function=counting)
    for key in range(200):
        bench.submit(key, range(20), 1, stops=())
    bench.plan()
    assert len(num_matches) == 1 + 64
    bench.finish()


def test_ended_requests_do_not_pile_up_in_the_queue() -> None:
    bench = CoreBench(config(rows=1), card(pages=64, size=4), function=counting)
    bench.submit(0, [1], 200, stops=(), deadline=1e9)
    bench.step()
    for key in range(1, 400):
        bench.submit(key, [key], 1, stops=(), deadline=1e6 + key, time_limit=1e7)
        bench.cancel(key)
    worker = bench.core._placement.workers["w"]  # type: ignore[index]
    (line,) = worker.queue._lines.values()
    assert len(line._heap) < 200
    assert len(bench.core._registry._expiry._heap) < 300
    bench.now = 2e9
    bench.expire()
    assert len(bench.ended) == 400


def test_a_merged_heap_comes_out_in_order_with_the_rest() -> None:
    bench = CoreBench(config(), card())
    for key in range(10):
        bench.submit(key, [1], 1)
    request: dict[int, Request] = dict(bench.core._registry._requests)

    queue = WaitingQueue()
    for key in (2, 5, 8):
        queue.push(request[key])
    parked = [(request[key].order, request[key]) for key in (1, 3, 4, 9)]
    gone = parked[1][1]
    queue.merge({gone.account: parked})
    queue.merge({})
    gone.move(State.ENDED)
    order = []
    while (head := queue.peek()) is not None:
        order.append(head.key)
        queue.pop()
    assert order == [1, 2, 4, 5, 8, 9]
    assert queue.peek() is None
