"""Known faults of paging, chunking, preemption and sampling, each by its id, on the worker's own kernels.

The real core plans, both codecs carry, a tiny random model in float32 computes; what it says alone is the truth.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.core_runner import CoreRunner, build_runner, recorded_logits
from support.tiny_models import VOCAB_SIZE, TinyModel, greedy, make_model, random_prompt

from gpu_worker.model_runner import ModelRunner

LENGTHS = (1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 100)
LONGEST = 33

Reference = Callable[[int, int], list[int]]
"""(prompt length, tokens) -> what transformers says."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_model(tmp_path_factory.mktemp("cases"), num_attention_heads=6, num_key_value_heads=2)


@pytest.fixture(scope="module")
def solo(tiny: TinyModel) -> Reference:
    known = {length: greedy(tiny.reference, random_prompt(length), LONGEST) for length in LENGTHS}
    return lambda length, tokens: known[length][:tokens]


@pytest.fixture(scope="module")
def runner(tiny: TinyModel) -> ModelRunner:
    return build_runner(tiny.path)


@pytest.mark.parametrize("length", [32, 16, 31, 33, 48, 1])
def test_pfx_01_a_cached_prompt_still_computes_its_last_token(
    runner: ModelRunner, solo: Reference, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(runner._kernels, "sample", recorded_logits(runner, seen))
    bench, firsts = CoreRunner(runner, depth=1), []
    for _ in range(3):
        seen.clear()
        bench.submit(random_prompt(length), 8)
        bench.run()
        firsts.append(seen[0])
    assert bench.outputs == [solo(length, 8)] * 3
    assert torch.allclose(firsts[1], firsts[0], atol=1e-5)
    assert torch.equal(firsts[2], firsts[1])
    assert min(count for plan in bench.plans for count in plan.chunk_tokens) >= 1
    assert [bench.ended[key].num_cached_tokens for key in range(3)] == [0] + [(length - 1) // 16 * 16] * 2


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("budget", [1, 7, 16, 17, 31, 33, 1000])
def test_chk_02_any_chunk_size(runner: ModelRunner, solo: Reference, budget: int, caching: bool) -> None:
    """Alone, then all together beside one that decodes; with a cache, together once more."""
    lengths = (1, 15, 16, 17, 100)
    bench = CoreRunner(runner, max_num_batched_tokens=budget, enable_prefix_caching=caching)
    expected = []
    for length in lengths if budget in (16, 31) else ():
        bench.submit(random_prompt(length), 20)
        bench.run()
        expected.append(solo(length, 20))
    for _ in range(2 if caching else 1):
        bench.submit(random_prompt(33), LONGEST)
        expected.append(solo(33, LONGEST))
        for _ in range(4):
            bench.step()
        for length in lengths:
            bench.submit(random_prompt(length), 20)
            expected.append(solo(length, 20))
        bench.run()
    assert bench.outputs == expected


@pytest.mark.parametrize(("page_size", "caching"), [(16, True), (16, False), (1, True), (8, True), (64, False)])
def test_len_04_page_boundaries(tiny: TinyModel, solo: Reference, page_size: int, caching: bool) -> None:
    runner = build_runner(tiny.path, page_size=page_size)
    pairs = [(length, tokens) for length in LENGTHS[:-1] for tokens in (1, 2, 15, 16, 17, 33)]
    bench = CoreRunner(runner, enable_prefix_caching=caching)
    for length, tokens in pairs:
        bench.submit(random_prompt(length), tokens)
    bench.run()
    assert bench.outputs == [solo(length, tokens) for length, tokens in pairs]


def test_len_04_pages_of_a_request_alone(runner: ModelRunner, solo: Reference) -> None:
    """Every step holds the pages of the tokens computed so far, and no more."""
    for length in (1, 15, 16, 17, 32, 33):
        for tokens in (1, 2, 17):
            bench = CoreRunner(runner, depth=1, enable_prefix_caching=False)
            bench.submit(random_prompt(length), tokens)
            while bench.step():
                held = next(iter(bench.core.counts().pages.values())).num_held
                generated = len(bench.outputs[0])
                assert held in (0, -(-(length + max(generated, 1) - 1) // 16), -(-(length + generated) // 16))
            assert bench.outputs == [solo(length, tokens)]


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("budget", [32, 1000])
@pytest.mark.parametrize("case", [[(5, 101), (5, 101)], [(3, 60), (40, 60), (90, 60)]], ids=["two", "three"])
def test_pre_01_preemption_changes_no_token(
    runner: ModelRunner, tiny: TinyModel, case: list[tuple[int, int]], budget: int, caching: bool
) -> None:
    prompts = [random_prompt(length, seed=number) for number, (length, _) in enumerate(case)]
    bench = CoreRunner(runner, num_pages=10, max_num_batched_tokens=budget, enable_prefix_caching=caching)
    for prompt, (_, tokens) in zip(prompts, case, strict=True):
        bench.submit(prompt, tokens)
    bench.run()
    assert bench.core.counts().num_preemptions > 0
    assert bench.outputs == [
        greedy(tiny.reference, prompt, tokens) for prompt, (_, tokens) in zip(prompts, case, strict=True)
    ]
    assert {ended.reason.name for ended in bench.ended.values()} == {"LENGTH"}


SEEDED: dict[str, Any] = {"temperature": 1.0, "top_p": 0.9, "seed": 42}


def test_smp_04_seed_is_independent_of_its_neighbours(tiny: TinyModel, runner: ModelRunner) -> None:
    prompt, tokens = random_prompt(40), 24
    alone = _sampled(CoreRunner(runner), prompt, tokens)
    for seeds in ([1000 + number for number in range(7)], [42] * 7):
        bench = CoreRunner(runner, max_num_batched_tokens=20)
        for number, seed in enumerate(seeds):
            bench.submit(random_prompt(10 + number), 30, temperature=1.0, seed=seed)
        assert _sampled(bench, prompt, tokens) == alone, "with neighbours, in chunks"
    assert _sampled(bench, prompt, tokens) == alone, "with a prefix hit"
    assert bench.ended[len(bench.outputs) - 1].num_cached_tokens == 32
    assert _sampled(_joining_and_leaving(runner), prompt, tokens) == alone
    pair = CoreRunner(runner)
    pair.submit(prompt, tokens, **SEEDED)
    assert _sampled(pair, prompt, tokens) == pair.outputs[0] == alone, "two at once"
    small = CoreRunner(runner, num_pages=7)
    small.submit(random_prompt(30), 60, temperature=1.0, seed=1)
    assert _sampled(small, prompt, tokens) == alone, "preempted"
    assert small.core.counts().num_preemptions > 0
    restarted = build_runner(tiny.path)
    assert _sampled(CoreRunner(restarted), prompt, tokens) == alone, "after a restart"
    two = CoreRunner(runner, restarted)
    two.submit(random_prompt(20), 30)
    assert _sampled(two, prompt, tokens) == alone, "on the second of two workers"
    assert {plan.worker_id for plan in two.plans} == {"w1", "w2"}
    other = CoreRunner(runner)
    other.submit(prompt, tokens, **{**SEEDED, "seed": 43})
    assert other.run().outputs[0] != alone


def _sampled(bench: CoreRunner, prompt: list[int], tokens: int) -> list[int]:
    key = bench.submit(prompt, tokens, **SEEDED)
    bench.run()
    return bench.outputs[key]


class _Joining(CoreRunner):
    """A neighbour joins with every step, and each leaves after two tokens."""

    def step(self) -> bool:
        if len(self.outputs) < 40:
            self.submit(random_prompt(len(self.outputs) + 1), 2, temperature=1.0, seed=len(self.outputs))
        return super().step()


def _joining_and_leaving(runner: ModelRunner) -> CoreRunner:
    return _Joining(runner)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_smp_01_tiny_temperatures_are_greedy(tiny: TinyModel, dtype: str) -> None:
    """All in one batch, beside a neighbour that says what it says alone; nothing overflows in 16 bits."""
    runner = build_runner(tiny.path, dtype=dtype)
    prompt, neighbour = random_prompt(17), random_prompt(20)
    alone = CoreRunner(runner, enable_prefix_caching=False)
    alone.submit(prompt, 20)
    reference = alone.run().outputs[0]
    beside = CoreRunner(runner, enable_prefix_caching=False)
    beside.submit(neighbour, 20, temperature=1.0, seed=3)
    undisturbed = beside.run().outputs[0]
    temperatures = (0.0, -0.0, 1e-45, 1e-38, 1e-10, 1e-5, 1e-4)
    bench = CoreRunner(runner, enable_prefix_caching=False)
    bench.submit(neighbour, 20, temperature=1.0, seed=3)
    for number, temperature in enumerate((*temperatures, 1e-2, 3e38)):
        bench.submit(prompt, 20, temperature=temperature, seed=number)
    bench.run()
    assert {ended.reason.name for ended in bench.ended.values()} == {"LENGTH"}
    if dtype == "float32":  # in 16 bits a batch of another size may round otherwise
        assert bench.outputs[0] == undisturbed
        assert bench.outputs[1 : 1 + len(temperatures)] == [reference] * len(temperatures)
    else:
        assert bench.outputs[2 : 1 + len(temperatures)] == [bench.outputs[1]] * (len(temperatures) - 1)


def test_smp_07_padded_rows_are_never_sampled(tmp_path: Path) -> None:
    """Head rows past the vocabulary are huge; 20,000 tokens at a high temperature are none of them."""
    model = make_model(tmp_path, vocab_size=VOCAB_SIZE + 20, num_hidden_layers=1)
    with torch.no_grad():
        model.reference.lm_head.weight[VOCAB_SIZE:] = 100.0
    model.reference.save_pretrained(tmp_path)
    runner = build_runner(tmp_path, max_num_seqs=256, max_model_len=96)
    bench = CoreRunner(runner, max_num_seqs=256, max_num_batched_tokens=512)
    for seed in range(220):
        bench.submit(random_prompt(3), 91, temperature=5.0, seed=seed, top_k=VOCAB_SIZE if seed % 2 else 0)
    bench.submit(random_prompt(3), 91)
    bench.run()
    tokens = [token for output in bench.outputs for token in output]
    assert len(tokens) >= 20_000
    assert max(tokens) < VOCAB_SIZE
