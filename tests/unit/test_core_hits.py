"""What the core counts of the prefix cache: pages found, evicted before, diverged, cold."""

import pytest
from support.core_bench import CoreBench, card, config


def counted(bench: CoreBench) -> tuple[int, int, int, int]:
    counts = bench.core.counts()
    return counts.num_asked_pages, counts.num_hit_pages, counts.num_evicted_pages, counts.num_diverged_pages


def serve(bench: CoreBench, *prompts: list[int]) -> tuple[int, int, int, int]:
    before = counted(bench)
    for prompt in prompts:
        bench.submit(len(bench.requests), prompt, 1, stops=())
        bench.run()
    asked, hit, evicted, diverged = (now - then for now, then in zip(counted(bench), before, strict=True))
    return asked, hit, evicted, diverged


def test_hits_and_misses_have_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler_svc.core.page_pool.MOST_FORGOTTEN", 3)
    bench = CoreBench(config(), card(pages=5))
    assert serve(bench, [*range(13)]) == (3, 0, 0, 0)  # cold
    assert serve(bench, [*range(13)]) == (3, 3, 0, 0)
    assert serve(bench, [*range(8), 50, 51, 52, 53, 54]) == (3, 2, 0, 1)
    assert serve(bench, [1, 2, 3]) == (0, 0, 0, 0)  # no full page
    assert serve(bench, [*range(60, 77)]) == (4, 0, 0, 0)
    asked, hit, evicted, _ = serve(bench, [*range(13)])
    assert (asked, hit) == (3, 0)
    assert 1 <= evicted <= 3
