"""How many slots of held pages hold no token, as users of vLLM know the claim."""

import pytest
from support.core_bench import CoreBench, card, config
from support.core_worker import counting


def test_no_page_held_is_no_waste() -> None:
    assert CoreBench(config(), card()).core.counts().page_waste_ratio == 0.0


def test_slots_behind_the_last_token_are_dead() -> None:
    bench = CoreBench(config(), card(pages=16, size=4), function=counting)
    bench.submit(0, range(5), 9, stops=())
    bench.submit(1, range(100, 104), 9, stops=())
    bench.step()
    assert bench.core.counts().page_waste_ratio == pytest.approx(3 / 12)
    bench.step()  # the second begins a page
    assert bench.core.counts().page_waste_ratio == pytest.approx((2 + 3) / 16)


@pytest.mark.parametrize("size", [16, 32])
def test_at_a_mean_length_of_1024_nearly_all_slots_are_live(size: int) -> None:
    """At most 0.55 page a running request is wasted on average, and 95 % of the slots of held pages are live."""
    limits = config(tokens=8192, rows=64, enable_prefix_caching=False)
    bench = CoreBench(limits, card(pages=64 * 2048 // size, size=size, tokens=8192), function=counting)
    for key in range(64):
        bench.submit(key, range(900 + 31 * key % 257), 200, stops=())
    wasted, ratios = [], []
    while len(bench.ended) < 1:
        bench.step()
        counts = bench.core.counts()
        if counts.num_waiting == 0 and counts.num_running == 64:
            pages = counts.pages[bench.workers["w"].card.worker_id]  # type: ignore[index]
            wasted.append(pages.num_dead_slots / size / counts.num_running)
            ratios.append(counts.page_waste_ratio)
    assert len(wasted) > 100
    assert sum(wasted) / len(wasted) <= 0.55
    assert max(ratios) <= 0.05
