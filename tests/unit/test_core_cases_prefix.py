"""Known faults of prefix caches, each by its id: none of them here."""

from random import Random

import pytest
from support.core_bench import CoreBench, card, config


def cached(bench: CoreBench, key: int) -> int:
    return bench.ended[key].num_cached_tokens


@pytest.mark.parametrize("length", [1, 16, 31, 32, 33, 48])
def test_pfx_01_the_last_token_of_a_cached_prompt_is_computed(length: int) -> None:
    bench = CoreBench(config(), card(size=16))
    for key in range(3):
        bench.submit(key, range(100, 100 + length), 8, stops=())
        bench.run()
        assert cached(bench, key) == (0 if key == 0 else (length - 1) // 16 * 16)
    bench.check_outputs()  # the worker refuses chunks of no tokens


def test_pfx_03_names_follow_absolute_positions_when_chunks_are_not_page_aligned() -> None:
    bench = CoreBench(config(tokens=40), card(pages=100, size=16))
    first = list(range(1, 201))
    prompts = [first, first[100:] + first[:100], first, first[:120] + [7] * 80, first[16:]]
    for key, prompt in enumerate(prompts):
        bench.submit(key, prompt, 2, stops=())
        bench.run()
    assert [cached(bench, key) for key in range(5)] == [0, 0, 192, 112, 0]
    bench.check_outputs()


@pytest.mark.parametrize("fate", ["cancelled", "failed", "preempted", "alive"])
def test_pfx_04_pages_are_shared_only_when_their_result_is_in(fate: str) -> None:
    """A's second chunk is planned and has no result when something happens to A and B comes with the same prompt."""
    bench = CoreBench(config(tokens=64), card(pages=80, size=16))
    prompt = list(range(512))
    bench.submit(0, prompt, 4, stops=())
    bench.plan()
    bench.plan()
    bench.result()  # 64 tokens are known to be there
    if fate == "cancelled":
        bench.cancel(0)
    elif fate == "preempted":
        bench.lose()
        bench.join(card(pages=80, size=16))
    bench.submit(1, prompt, 4, stops=())
    if fate == "failed":
        bench.result(failed=True)
    bench.run()
    bench.check_outputs()
    bench.check_ledger()
    expected = {"cancelled": 64, "failed": 64, "preempted": 496, "alive": 496}  # waits for A where A goes on
    assert cached(bench, 1) == expected[fate]


def test_pfx_04_at_random_moments() -> None:
    random = Random(4)
    for _ in range(30):
        bench = CoreBench(config(tokens=random.choice((16, 40, 64))), card(pages=80, size=16))
        prompt = list(range(300))
        bench.submit(0, prompt, 2, stops=())
        for _ in range(random.randint(1, 8)):
            bench.plan()
            if random.random() < 0.7 and bench.workers[bench.plans[0].worker_id].plans:
                bench.result(failed=random.random() < 0.1)
        bench.cancel(0)
        bench.submit(1, prompt, 2, stops=())
        bench.run()
        bench.check_outputs()


def test_pfx_06_a_page_used_again_has_lost_its_old_name() -> None:
    bench = CoreBench(config(tokens=200), card(pages=6, size=16))
    one, other = list(range(1, 49)), list(range(501, 596))
    for key, prompt in enumerate((one, other, one, other[:32] + one[:32])):
        bench.submit(key, prompt, 1, stops=())
        bench.run()
    assert [cached(bench, key) for key in range(4)] == [0, 0, 0, 32]  # A again evicts the tail of B
    bench.check_outputs()


def test_pfx_07_a_page_in_use_is_never_evicted() -> None:
    random = Random(7)
    bench = CoreBench(config(tokens=256, rows=6), card(pages=40, size=16))
    trunk = [random.randrange(1000) for _ in range(160)]
    bench.submit(0, trunk, 300, stops=())
    for key in range(1, 301):
        prompt = trunk[: random.randint(0, 160)] + [random.randrange(1000) for _ in range(40)]
        bench.submit(key, prompt, random.randint(1, 8))
        for _ in range(2):
            bench.plan()
            if random.random() < 0.8 and bench.workers[bench.plans[0].worker_id].plans:
                bench.result()
        if random.random() < 0.2:
            bench.cancel(random.randint(1, key))
    bench.run()
    bench.check_outputs()
    bench.check_ledger()
    assert bench.core.counts().num_cached_tokens > 0


@pytest.mark.parametrize("max_tokens", [1, 6])
@pytest.mark.parametrize("tokens", [64, 256, 8192])
def test_equal_cold_prompts_compute_each_shared_page_once(tokens: int, max_tokens: int) -> None:
    """64 prompts of 500 tokens at once, two plans in flight: 15 pages of 32 are shared, 20 tokens each are not."""
    bench = CoreBench(config(tokens=tokens, rows=64), card(pages=512, size=32, tokens=8192))
    for key in range(64):
        bench.submit(key, range(500), max_tokens, stops=())
    bench.run()
    bench.check_outputs()
    bench.check_ledger()
    worker = next(iter(bench.workers.values()))
    times = sorted(worker.times_computed.values(), reverse=True)
    assert times.count(1) >= 480
    assert sum(times) == 480 + 64 * 20 + 64 * (max_tokens - 1)
    assert [cached(bench, key) for key in range(64)] == [0] + [480] * 63
