"""Why the pages of a prompt are cached or not, as a tenant may know it; salt 0 is no salt."""

from array import array

import pytest
from support.core_bench import CoreBench, card, config
from support.core_transcript import check_transcript

from scheduler_svc.core.errors import RejectCode, RequestRejected
from scheduler_svc.core.types import PageStatus, PrefixQuestion


def statuses(bench: CoreBench, prompt: list[int], **whose: int | str) -> list[PageStatus]:
    return [page.status for page in bench.explain_prefix(prompt, **whose)]  # type: ignore[arg-type]


def test_pages_are_hit_or_cold_or_a_tail() -> None:
    check_transcript("""
    worker w pages=16 size=4
    prefix 1..10
    submit a 1..10 max=1
    plan
    prefix 1..10
    result
    prefix 1..10
    prefix 1..12
    prefix 1..3
    ----
    cold, cold, tail not full
    a admitted on w, 0 cached
    step 1: a on row 0 pages 0,1,2 computes 10
    cold, cold, tail not full
    step 1: a0
    a prefilled 10 of 10
    a ended: length, 1 tokens, in decode
    hit, hit, tail not full
    hit, hit, diverged at 10
    tail not full
    """)


def test_a_prompt_diverges_from_the_closest_one() -> None:
    """Its own tokens tell, those generated for it too; of the first page at least half must agree."""
    check_transcript("""
    worker w pages=32 size=4
    submit a 1..14 max=3
    submit b 1..5,70..80 max=1
    run
    prefix 1..9,50..60
    prefix 1..6,50..60
    prefix 1..14,1000,1001,50,51,52
    prefix 1..14,1000,50..56
    prefix 1,2,50..60
    prefix 1,50..60
    prefix 1..14
    prefix 1..13
    ----
    3 steps: a +3, b +1
    b ended: length, 1 tokens, in decode
    a ended: length, 3 tokens, in decode
    hit, hit, diverged at 9, cold, cold
    hit, diverged at 6, cold, cold, tail not full
    hit, hit, hit, hit, tail not full
    hit, hit, hit, diverged at 15, cold, tail not full
    diverged at 2, cold, cold, tail not full
    cold, cold, cold
    hit, hit, hit, tail not full
    hit, hit, hit, tail not full
    """)


def test_evicted_pages_are_told_to_who_sent_them() -> None:
    check_transcript("""
    worker w pages=4 size=4
    submit a 1..9 max=1 tenant=x
    run
    submit b 21..31 max=1 tenant=y
    run
    prefix 1..9 tenant=x
    prefix 1..9 tenant=y
    prefix 1..9
    prefix 1..9 salt=1 tenant=x
    ----
    1 steps: a +1
    a ended: length, 1 tokens, in decode
    1 steps: b +1
    b ended: length, 1 tokens, in decode
    hit, evicted, tail not full
    hit, cold, tail not full
    hit, cold, tail not full
    salted, cold, tail not full
    """)


def test_salts_hide_prompts_from_who_does_not_know_them() -> None:
    """Without tenants all callers are one: they learn of what was sent without a salt, never of what was with one."""
    check_transcript("""
    worker w pages=32 size=4
    submit a 1..9 max=1
    submit b 21..29 max=1 salt=1
    run
    prefix 1..9 salt=1
    prefix 21..29
    prefix 21..29 salt=2
    prefix 21..29 salt=1
    prefix 21..26,50..60
    ----
    1 steps: a +1, b +1
    a ended: length, 1 tokens, in decode
    b ended: length, 1 tokens, in decode
    salted, salted, tail not full
    cold, cold, tail not full
    cold, cold, tail not full
    hit, hit, tail not full
    cold, cold, cold, cold, tail not full
    """)


def test_a_known_tenant_learns_of_its_own_salts_and_of_nobody_elses_prompts() -> None:
    check_transcript("""
    worker w pages=32 size=4
    submit a 1..9 max=1 salt=1 tenant=x
    run
    prefix 1..9 salt=2 tenant=x
    prefix 1..9 tenant=x
    prefix 1..9 salt=2 tenant=y
    prefix 1..6,50..60 salt=1 tenant=x
    prefix 1..6,50..60 salt=1 tenant=y
    ----
    1 steps: a +1
    a ended: length, 1 tokens, in decode
    salted, salted, tail not full
    salted, salted, tail not full
    cold, cold, tail not full
    hit, diverged at 6, cold, cold, tail not full
    hit, cold, cold, cold, tail not full
    """)


def test_the_history_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler_svc.core.prefix_history.MOST_TOKENS", 16)
    bench = CoreBench(config(), card(pages=2))
    for key in range(3):
        bench.submit(key, range(100 * key, 100 * key + 7), 1)
        bench.run()
    pages = [bench.explain_prefix([*range(100 * key, 100 * key + 6), 1, 2])[1] for key in range(3)]
    assert [page.diverged_at for page in pages] == [None, 6, 6]


def test_live_requests_count_the_newest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler_svc.core.prefix_history.MOST_TOKENS", 16)
    bench = CoreBench(config(), card())
    for key in range(3):
        bench.submit(key, range(100 * key, 100 * key + 8), 1, tenant="x")
    bench.submit(3, range(8), 1, tenant="x", cached=False)
    asked = [[100 * key, 100 * key + 1, 100 * key + 2, 7] for key in range(3)]
    assert [statuses(bench, prompt, tenant="x") for prompt in asked] == [
        [PageStatus.COLD],
        [PageStatus.DIVERGED],
        [PageStatus.DIVERGED],
    ]


def test_what_cannot_be_explained_is_refused() -> None:
    bench = CoreBench(config())
    with pytest.raises(RequestRejected) as refused:
        bench.explain_prefix([1, 2, 3, 4])
    assert refused.value.code is RejectCode.NO_WORKER
    bench.join(card())
    question = PrefixQuestion(prompt=array("i", [1, 2, 3, 4]), page_hashes=(), root_hash=b"", unsalted_root=b"")
    with pytest.raises(RequestRejected) as refused:
        bench.core.explain_prefix(question)
    assert refused.value.code is RejectCode.INVALID


def test_without_a_prefix_cache_all_pages_are_cold() -> None:
    bench = CoreBench(config(enable_prefix_caching=False), card())
    bench.submit(0, range(9), 1)
    bench.run()
    assert statuses(bench, [*range(8)]) == [PageStatus.COLD, PageStatus.COLD]
    assert bench.core.counts().num_asked_pages == 0
