"""The whole stack equals transformers, token for token, in float32: alone, in batches, chunked, cached, preempted."""

from pathlib import Path

import pytest
from support.e2e_prompts import CASES
from support.greedy import Mode, assert_equal, run_cases, run_many
from support.reference_outputs import Reference
from support.stack import ONE_THREAD, Stack, attached_log

# 737,280 bytes a page of 16 tokens: 2 x 30 layers x 3 heads x 64 x 4 bytes x 16.
SMALL_PAGE_BYTES = 737_280
ALONE = slice(0, 32, 5)


def pool(num_pages: int) -> tuple[str, ...]:
    """A pool of so many pages of 16 tokens, and a length limit that fits."""
    size = ("--page-size", "16", "--kv-cache-memory-bytes", str(num_pages * SMALL_PAGE_BYTES))
    return (*size, "--max-model-len", "256")


def test_prompts_are_tokenized_as_transformers_does(roomy: Stack, reference: list[Reference]) -> None:
    for expected in reference:
        chat = [{"role": role, "content": content} for role, content in expected.case.chat]
        assert roomy.client.tokenize(chat or expected.case.text) == expected.prompt_ids


def test_alone_without_prefix_hits(roomy: Stack, reference: list[Reference]) -> None:
    with attached_log(roomy):
        mode = Mode(at_once=1, streamed=False, bypass_prefix_cache=True)
        generations = run_cases(roomy.target, CASES[ALONE], mode)
        assert_equal(generations, reference[ALONE])
        assert not any(generation.usage.cached_tokens for generation in generations)
        roomy.await_idle()


def test_sixteen_at_a_time_with_and_without_prefix_hits(roomy: Stack, reference: list[Reference]) -> None:
    with attached_log(roomy):
        assert_equal(run_cases(roomy.target, CASES, Mode(bypass_prefix_cache=True)), reference)
        assert_equal(run_cases(roomy.target, CASES, Mode(streamed=False)), reference)
        again = run_cases(roomy.target, CASES, Mode())
        assert_equal(again, reference)
        for generation, expected in zip(again, reference, strict=True):
            full_pages = (len(expected.prompt_ids) - 1) // 32
            assert generation.usage.cached_tokens == full_pages * 32
        roomy.await_idle()


@pytest.mark.parametrize("max_tokens", [1, 4])
def test_many_equal_cold_prompts_compute_each_shared_page_once(roomy: Stack, max_tokens: int) -> None:
    """64 prompts of 500 tokens: 15 full pages once, the 20 tokens behind them and the outputs 64 times."""
    num_prompts, prompt = 64, [(7919 * i) % 40_000 + 100 + max_tokens for i in range(500)]
    with attached_log(roomy):
        before = roomy.await_idle()
        outputs = run_many(roomy.target, [prompt] * num_prompts, max_tokens=max_tokens)
        after = roomy.await_idle()
    shared = (len(prompt) - 1) // 32 * 32
    computed = after.num_computed_tokens - before.num_computed_tokens
    # The last output is never computed: nothing follows it.
    assert computed == shared + num_prompts * (len(prompt) - shared + max_tokens - 1)
    assert after.num_cached_tokens - before.num_cached_tokens == (num_prompts - 1) * shared
    assert len(set(outputs)) == 1


@pytest.mark.parametrize("budget", [16, 64])
def test_chunked_by_a_small_budget(gguf: Path, reference: list[Reference], budget: int) -> None:
    scheduler = ("--no-enable-prefix-caching", "--max-num-batched-tokens", str(budget))
    worker = (*ONE_THREAD, "--max-num-batched-tokens", str(budget))
    cases = slice(None) if budget == 64 else slice(0, 32, 2)
    with Stack(gguf, scheduler=scheduler, worker=worker) as stack:
        generations = run_cases(stack.target, CASES[cases], Mode())
        assert_equal(generations, reference[cases])
        assert not any(generation.usage.cached_tokens for generation in generations)
        stack.await_idle()


def test_preempted_by_a_small_pool(gguf: Path, reference: list[Reference]) -> None:
    """The pool holds the longest case and little more, so that requests of a batch push each other out."""
    with Stack(gguf, worker=(*ONE_THREAD, *pool(20))) as stack:
        generations = run_cases(stack.target, CASES, Mode())
        assert_equal(generations, reference)
        load = stack.await_idle()
        assert load.num_preemptions > 0
        assert sum(generation.usage.recomputed_tokens for generation in generations) > 0


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("num_pages", [20, 2000])
@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("budget", [16, 64, 512])
def test_every_combination(
    gguf: Path, reference: list[Reference], budget: int, prefix_caching: bool, num_pages: int
) -> None:
    switch = "--enable-prefix-caching" if prefix_caching else "--no-enable-prefix-caching"
    limit = ("--max-num-batched-tokens", str(budget))
    with Stack(gguf, scheduler=(switch, *limit), worker=(*ONE_THREAD, *limit, *pool(num_pages))) as stack:
        for mode in (Mode(), Mode(at_once=1), Mode(streamed=False), Mode(bypass_prefix_cache=True)):
            assert_equal(run_cases(stack.target, CASES, mode), reference)
            stack.await_idle()
