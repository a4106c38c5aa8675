"""Known faults of chunking, preemption, cancelling and lengths, each by its id: none of them here."""

from random import Random

import pytest
from support.core_bench import CoreBench, card, config
from support.core_worker import counting

from scheduler_svc.core.errors import RejectCode, RequestRejected
from scheduler_svc.core.types import EndReason


@pytest.mark.parametrize("neighbours", [0, 5])
def test_chk_01_an_unfinished_chunk_gives_no_token(neighbours: int) -> None:
    """The worker reports a token for every row of every plan."""
    bench = CoreBench(config(tokens=32), card(pages=64, size=16))
    for key in range(1, neighbours + 1):
        bench.submit(key, [key], 20, stops=())
    bench.submit(0, range(100), 3, stops=())
    while bench.plan() is not None:
        first = bench.ended.get(0) is None and not bench.outputs[0]
        bench.result(eager=True)
        if first and bench.outputs[0]:
            assert sum(bench.plans[-1].chunk_tokens) < 32  # the chunk with position 99 was the last one
    assert len(bench.outputs[0]) == 3
    bench.check_outputs()


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("tokens", [1, 7, 16, 17, 31, 33, 1000])
def test_chk_02_any_chunk_size_gives_the_same_tokens(tokens: int, caching: bool) -> None:
    limits = config(tokens=tokens, enable_prefix_caching=caching)
    bench = CoreBench(limits, card(pages=64, size=16))
    key = 0
    for _ in range(2):
        for length in (1, 15, 16, 17, 100):  # alone
            bench.submit(key, range(length), 20)
            bench.run()
            key += 1
        for length in (1, 15, 16, 17, 100):  # together
            bench.submit(key, range(length), 20)
            key += 1
        bench.run()
    bench.check_outputs()
    bench.check_ledger()


@pytest.mark.parametrize("decoding", [False, True])
def test_chk_05_two_long_prompts_do_not_block_each_other(decoding: bool) -> None:
    bench = CoreBench(config(tokens=64), card(pages=20, size=16, length=300))
    needed = 2 * (4 + 20)
    if decoding:
        bench.submit(2, range(600, 700), 150, stops=())
        bench.step()
        needed += 151
    bench.submit(0, range(250), 20, stops=())
    bench.submit(1, range(300, 550), 20, stops=())
    assert bench.run() < 3 * needed  # ``run`` ends when nothing can be done: with all ended, or stuck
    bench.check_outputs()
    bench.check_ledger()


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("tokens", [32, 1000])
@pytest.mark.parametrize("case", [[(5, 101), (5, 101)], [(3, 60), (40, 60), (90, 60)]])
def test_pre_01_preemption_changes_no_token(case: list[tuple[int, int]], tokens: int, caching: bool) -> None:
    bench = CoreBench(config(tokens=tokens, enable_prefix_caching=caching), card(pages=10, size=16))
    for key, (length, max_tokens) in enumerate(case):
        bench.submit(key, range(100 * key, 100 * key + length), max_tokens, stops=())
    bench.run()
    bench.check_outputs()
    bench.check_ledger()
    assert bench.core.counts().num_preemptions > 0
    assert [len(bench.outputs[key]) for key in range(len(case))] == [max_tokens for _, max_tokens in case]
    assert {ended.reason for ended in bench.ended.values()} == {EndReason.LENGTH}


def test_pre_03_what_never_fits_is_refused_and_what_fills_the_pool_ends() -> None:
    bench = CoreBench(config(), card(pages=10, size=16, length=1024))
    with pytest.raises(RequestRejected) as refusal:
        bench.submit(99, range(200), 5)
    assert (refusal.value.code, refusal.value.field) == (RejectCode.TOO_LARGE, "prompt")
    bench.submit(0, range(100), 500, stops=())
    for key in range(1, 11):
        bench.submit(key, range(1000 * key, 1000 * key + 10), 5, stops=())
    bench.run(limit=500)
    bench.check_outputs()
    bench.check_ledger()
    assert bench.ended[0].reason is EndReason.LENGTH
    assert len(bench.outputs[0]) == 60
    assert bench.core.counts().num_preemptions < 20


@pytest.mark.parametrize("moment", range(6))
def test_pre_05_late_results_reach_nobody_else(moment: int) -> None:
    """R is cancelled with steps in flight, a successor takes its row; then the results come, twice."""
    bench = CoreBench(config(rows=1), card(pages=4, size=4), function=counting)
    bench.submit(0, range(5), 6, stops=())
    results = []
    for _ in range(moment):
        if bench.plan() is None:
            results.append(bench.execute())
            bench.commit(results[-1])
    bench.cancel(0)
    bench.submit(1, range(50, 55), 4, stops=())
    bench.plan()
    worker = next(iter(bench.workers.values()))
    while worker.plans:
        results.append(bench.execute())
        bench.commit(results[-1])
        for result in results:
            bench.commit(result)
        bench.plan()
    bench.check_outputs()
    bench.check_ledger()
    assert bench.outputs[1] == [2000, 2001, 2002, 2003]


@pytest.mark.parametrize("caching", [True, False])
def test_pre_07_a_full_pool_costs_the_newest_requests_only(caching: bool) -> None:
    bench = CoreBench(config(tokens=200, enable_prefix_caching=caching), card(pages=17, size=16))
    for key in range(8):
        bench.submit(key, range(100 * key, 100 * key + 16), 64, stops=())
    preempted: list[int] = []
    worker = next(iter(bench.workers.values()))
    while bench.plan() is not None or worker.plans:
        preempted += [event.key for event in bench.events if type(event).__name__ == "Preempted"]
        if len(worker.plans) == 2 or bench.plan() is None:
            preempted += [event.key for event in bench.events if type(event).__name__ == "Preempted"]
            bench.result()
    bench.check_outputs()
    assert preempted
    assert not {0, 1} & set(preempted)
    assert preempted[0] == 7
    assert all(len(output) == 64 for output in bench.outputs.values())


def test_pre_07_cached_pages_are_evicted_before_anybody_is_preempted() -> None:
    bench = CoreBench(config(tokens=500), card(pages=17, size=16))
    bench.submit(50, range(5000, 5255), 1, stops=())
    bench.run()
    pages = bench.core.counts().pages
    assert next(iter(pages.values())).num_free < 4
    for key in range(3):
        bench.submit(key, range(100 * key, 100 * key + 16), 64, stops=())
    bench.run()
    bench.check_outputs()
    assert bench.core.counts().num_preemptions == 0


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("chunk", [1, 2, 5, 12])
@pytest.mark.parametrize("waiting", [True, False])
@pytest.mark.parametrize("in_flight", [True, False])
def test_can_02_cancel_between_chunks_leaves_nothing(chunk: int, waiting: bool, in_flight: bool, caching: bool) -> None:
    bench = CoreBench(config(tokens=64, enable_prefix_caching=caching), card(pages=64, size=16))
    bench.submit(0, range(800), 5, stops=())
    if waiting:
        bench.submit(1, range(800), 2, stops=())
    for _ in range(chunk):
        bench.plan()
        if not in_flight or len(bench.workers["w"].plans) == 2:  # type: ignore[index]
            bench.result()
    bench.cancel(0)
    if not waiting:
        bench.submit(2, range(2000, 2010), 1, stops=())
        bench.plan()
        assert 2 in {event.key for event in bench.events}, "the next prompt begins at once"
    bench.run()
    bench.check_outputs()
    bench.check_ledger()


def test_can_03_what_is_cancelled_while_it_waits_is_never_computed() -> None:
    bench = CoreBench(config(rows=1), card(pages=64, size=16))
    bench.submit(0, range(10), 30, stops=())
    bench.plan()
    for key in range(1, 6):
        bench.submit(key, range(10 * key, 10 * key + 5), 2, stops=(), deadline=0.2 if key == 4 else None)
    bench.cancel(2)
    assert bench.ended[2].reason is EndReason.CANCELLED
    bench.cancel(3)
    bench.now = 0.3
    bench.expire()
    assert bench.ended[4].reason is EndReason.DEADLINE
    bench.cancel(2)
    bench.cancel(77)
    bench.run()
    begun = [new.sampling.seed for plan in bench.plans for new in plan.new_rows]
    assert begun == [0, 1, 5]
    assert {key: ended.num_output_tokens for key, ended in bench.ended.items()} == {0: 30, 1: 2, 2: 0, 3: 0, 4: 0, 5: 2}
    bench.check_ledger()


def test_fai_01_running_streams_get_a_token_every_step_while_prompts_keep_coming() -> None:
    bench = CoreBench(config(tokens=256, rows=16), card(pages=1200, size=16, length=8192), function=counting)
    for key in range(8):
        bench.submit(key, [key], 60, stops=())
    bench.step()
    submitted = []
    for step in range(59):
        if step % 10 == 0:
            submitted.append(100 + step)
            bench.submit(submitted[-1], range(1000 * step, 1000 * step + 500), 1, stops=())
        before = {key: len(bench.outputs[key]) for key in range(8)}
        assert bench.step()
        assert all(len(bench.outputs[key]) == before[key] + 1 for key in range(8)), "a stream stalled"
    bench.run()
    assert [key for key in bench.ended if key >= 100] == submitted, "prompts are answered in their order"


@pytest.mark.parametrize(("length", "max_tokens", "expected"), [(63, 10, 1), (62, 10, 2), (62, 1, 1), (1, 100, 63)])
def test_len_01_the_context_is_used_to_its_last_slot(length: int, max_tokens: int, expected: int) -> None:
    bench = CoreBench(config(), card(pages=20, size=16, length=64))
    bench.submit(0, range(length), max_tokens, stops=())
    bench.run()
    bench.check_outputs()
    assert (bench.ended[0].reason, len(bench.outputs[0])) == (EndReason.LENGTH, expected)
    assert max(page for plan in bench.plans for page in plan.append_pages) < 4  # the last token's slot is not needed


@pytest.mark.parametrize("length", [64, 65])
def test_len_01_a_prompt_without_room_for_a_token_is_refused(length: int) -> None:
    bench = CoreBench(config(), card(pages=20, size=16, length=64))
    with pytest.raises(RequestRejected, match=f"{length} tokens.*at most 64 fit") as refusal:
        bench.submit(0, range(length), 1)
    assert refusal.value.code is RejectCode.TOO_LARGE


def test_par_04_more_outputs_than_rows_run_in_waves() -> None:
    bench = CoreBench(config(rows=4), card(pages=20, size=16))
    for key in range(16):
        bench.submit(key, range(20), 30, stops=())
    bench.run()
    bench.check_outputs()
    bench.check_ledger()


def test_cancels_at_random_moments_leave_nothing() -> None:
    random = Random(1)
    for _ in range(60):
        bench = CoreBench(config(tokens=16), card(pages=12, size=4))
        for key in range(4):
            bench.submit(key, range(random.randint(1, 12)), 20)
        for _ in range(random.randint(0, 12)):
            bench.plan()
            if random.random() < 0.6 and bench.workers["w"].plans:  # type: ignore[index]
                bench.result()
        bench.cancel(random.randrange(4))
        bench.run()
        bench.check_outputs()
        bench.check_ledger()
