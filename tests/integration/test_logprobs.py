"""Log probabilities of outputs and prompts through core, codecs and a real small model are transformers' in float32."""

from array import array
from typing import Any

import pytest
import torch
from pagewire.internal.v1 import worker_pb2
from support.core_runner import CoreRunner, build_runner
from support.tiny_models import TinyModel, make_model, random_prompt

from gpu_worker.model_runner import ModelRunner

PROMPT = list(range(100, 137))
TOKENS = 12


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_model(tmp_path_factory.mktemp("logprobs"))


@pytest.fixture(scope="module", params=["cpu", "reference"])
def runner(tiny: TinyModel, request: pytest.FixtureRequest) -> ModelRunner:
    return build_runner(tiny.path, kernels=request.param)


def asks(**options: Any) -> bytes:
    return bytes(worker_pb2.RowOptions(**options).SerializeToString())


def exact(tiny: TinyModel, ids: list[int]) -> torch.Tensor:
    """[positions, vocabulary]: the distribution behind each token."""
    with torch.inference_mode():
        return torch.log_softmax(tiny.reference(torch.tensor([ids])).logits[0].float(), dim=-1)


def check(found: list[Any], distributions: torch.Tensor, chosen: list[int], num_top: int) -> None:
    """The columns of consecutive positions are the likeliest tokens and the chosen one, with their exact values."""
    width = num_top + 1
    ids, values, ranks = array("i"), array("f"), array("i")
    for each in found:
        assert each.width == width
        ids.frombytes(each.token_ids)
        values.frombytes(each.logprobs)
        ranks.frombytes(each.ranks)
    assert len(ids) == len(values) == len(ranks) == width * len(chosen)
    for place, (distribution, token_id) in enumerate(zip(distributions, chosen, strict=True)):
        here = slice(place * width, (place + 1) * width)
        best = distribution.topk(num_top).indices.tolist()
        rank = 1 + int((distribution > distribution[token_id]).sum())
        named = [*best, -1 if token_id in best else token_id]
        assert list(ids[here]) == named
        assert list(ranks[here]) == [*range(1, width), 0 if token_id in best else rank]
        for named_id, value in zip(named, values[here], strict=True):
            if named_id >= 0:
                assert value == pytest.approx(float(distribution[named_id]), abs=2e-4)


@pytest.mark.parametrize("budget", [16, 1000])
def test_output_tokens_have_their_log_probabilities(runner: ModelRunner, tiny: TinyModel, budget: int) -> None:
    """Rows that ask for different numbers, with penalties and temperature or not, beside rows that do not ask."""
    bench = CoreRunner(runner, max_num_batched_tokens=budget)
    rows: list[dict[str, Any]] = [
        {"options": asks(logprobs=0)},
        {"options": asks(logprobs=3, repetition_penalty=3.0)},
        {"options": asks(logprobs=20), "temperature": 1.5, "seed": 4},
    ]
    for number, options in enumerate(rows):
        bench.submit(random_prompt(20 + number), TOKENS)
        bench.submit(random_prompt(30 + number), TOKENS, **options)
    bench.run()
    for number, num_top in enumerate((0, 3, 20)):
        prompt, output = random_prompt(30 + number), bench.outputs[2 * number + 1]
        distributions = exact(tiny, prompt + output)[len(prompt) - 1 : -1]
        check(bench.logprobs[2 * number + 1], distributions, output, num_top)
        assert bench.logprobs[2 * number] == []


@pytest.mark.parametrize("budget", [16, 1000])
def test_lgp_01_prompts_are_computed_whole_and_cut_anyhow(runner: ModelRunner, tiny: TinyModel, budget: int) -> None:
    """Twice, after another request has cached its beginning, beside others; in chunks and at once."""
    bench = CoreRunner(runner, max_num_batched_tokens=budget)
    bench.submit(PROMPT[:33], 3)
    bench.run()
    keys = []
    for _ in range(2):
        bench.submit(random_prompt(25), 10, options=asks(logprobs=2))
        keys.append(bench.submit(PROMPT, 2, caches=False, options=asks(prompt_logprobs=1)))
        bench.submit(PROMPT, 5)
        keys.append(bench.submit(PROMPT[:1], 2, caches=False, options=asks(prompt_logprobs=1, logprobs=1)))
        bench.run()
    distributions = exact(tiny, PROMPT)[:-1]
    for key in keys[::2]:
        parts = bench.logprobs[key]
        starts = [part.first_position for part in parts]
        assert starts == [1 + sum(part.num_prompt_positions for part in parts[:place]) for place in range(len(parts))]
        check(parts, distributions, PROMPT[1:], 1)
        assert bench.ended[key].num_cached_tokens == 0
    for key in keys[1::2]:
        assert [part.num_prompt_positions for part in bench.logprobs[key]] == [0, 0]


def test_many_positions_are_taken_in_slices(tiny: TinyModel) -> None:
    runner = build_runner(tiny.path, max_model_len=1024)
    prompt = random_prompt(700)
    bench = CoreRunner(runner, max_num_batched_tokens=1000)
    key = bench.submit(prompt, 1, caches=False, options=asks(prompt_logprobs=2, logprobs=2))
    bench.run()
    distributions = exact(tiny, prompt)
    check(bench.logprobs[key][:-1], distributions[:-1], prompt[1:], 2)
    check(bench.logprobs[key][-1:], distributions[-1:], bench.outputs[key], 2)


def test_a_preempted_request_goes_on_where_it_was(runner: ModelRunner, tiny: TinyModel) -> None:
    bench = CoreRunner(runner, num_pages=9)
    prompts = [random_prompt(30, seed=number) for number in range(4)]
    for prompt in prompts:
        bench.submit(prompt, 24, options=asks(logprobs=2))
    bench.run()
    assert bench.core.counts().num_preemptions > 0
    for prompt, output, found in zip(prompts, bench.outputs, bench.logprobs, strict=True):
        check(found, exact(tiny, prompt + output)[len(prompt) - 1 : -1], output, 2)


def test_smp_07_padded_rows_are_not_among_the_likeliest(tmp_path: Any) -> None:
    model = make_model(tmp_path, vocab_size=320, num_hidden_layers=1)
    with torch.no_grad():
        model.reference.lm_head.weight[300:] = 100.0
    model.reference.save_pretrained(tmp_path)
    bench = CoreRunner(build_runner(tmp_path))
    bench.submit(PROMPT, 5, options=asks(logprobs=20))
    bench.run()
    for found in bench.logprobs[0]:
        ids = array("i")
        ids.frombytes(found.token_ids)
        assert max(ids) < 300
