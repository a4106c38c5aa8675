"""What the core counts of the prefix cache: pages found, evicted before, diverged, salted, cold, and tails not full."""

import pytest
from support.core_bench import CoreBench, card, config
from support.core_transcript import check_transcript


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


def test_counts_say_why_pages_were_missed() -> None:
    check_transcript("""
    worker w pages=5 size=4
    submit a 1..13 max=1
    run
    hits
    submit b 1..8,50..54 max=1
    run
    hits
    submit c 1..8,60 max=1 salt=1
    run
    hits
    submit d 1..8,60 max=1 salt=1
    submit e 31..33 max=1
    run
    hits
    ----
    1 steps: a +1
    a ended: length, 1 tokens, in decode
    asked 3, hit 0, evicted 0, diverged 0, salted 0, tail 1
    1 steps: b +1
    b ended: length, 1 tokens, in decode
    asked 6, hit 2, evicted 0, diverged 1, salted 0, tail 2
    1 steps: c +1
    c ended: length, 1 tokens, in decode
    asked 8, hit 2, evicted 0, diverged 1, salted 2, tail 3
    1 steps: d +1, e +1
    d ended: length, 1 tokens, in decode
    e ended: length, 1 tokens, in decode
    asked 10, hit 4, evicted 0, diverged 1, salted 2, tail 5
    """)


def test_first_pages_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler_svc.core.hit_counts.MOST_ROOTS", 1)
    bench = CoreBench(config(), card())
    for key, (start, salt) in enumerate([(0, 0), (10, 0), (0, 1), (10, 1)]):
        bench.submit(key, range(start, start + 5), 1, salt=salt)
        bench.run()
    assert bench.core.counts().num_salted_pages == 0
