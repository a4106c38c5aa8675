"""Rows with options on a GPU: what they say on a CPU, behind CUDA graphs too, with two steps in flight."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pagewire_kernels import load_kernels
from support.gpu_parts import build
from support.plan_driver import Generation, PlanMaker, drive, generate
from support.rule_distribution import CASES, check_rule_distribution
from support.tiny_models import EOS_ID, make_model, random_prompt

from gpu_worker.batch_plan import RowLogprobs, RowOptions, int32s
from gpu_worker.model_runner import ModelRunner

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
TOKENS = 20
OPTIONS = (
    RowOptions(repetition_penalty=3.0),
    RowOptions(repetition_penalty=1.3, frequency_penalty=0.7, presence_penalty=0.4, logprobs=3),
    RowOptions(bias_token_ids=int32s([7, 9]), biases=np.array([3.5, -20.0], dtype=np.float32)),
    RowOptions(allowed_token_ids=int32s([3, 5, 8, 13, 21]), bad_words=[(3, 3), (5, 8), (8,), (13, 21, 13)]),
    RowOptions(min_tokens=9, stop_token_ids=int32s(list(range(0, 300, 2)))),
    RowOptions(logprobs=20),
    RowOptions(prompt_logprobs=2, logprobs=0),
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(
        tmp_path_factory.mktemp("options"), num_attention_heads=6, num_key_value_heads=2, head_dim=16
    ).path


@pytest.fixture(scope="module")
def on_cpu(path: Path) -> ModelRunner:
    return build(path, device="cpu", kernels="cpu", max_num_seqs=24).runner


@pytest.fixture(scope="module", params=[False, True], ids=["graphs", "eager"])
def on_gpu(path: Path, request: pytest.FixtureRequest) -> ModelRunner:
    runner = build(path, max_num_seqs=24, enforce_eager=request.param).runner
    assert bool(len(runner.graphs)) is not request.param
    return runner


def requests() -> list[Generation]:
    """Each option greedy and drawn, beside plain rows."""
    rows: list[Generation] = []
    for number, options in enumerate((*OPTIONS, None)):
        prompt = random_prompt(20 + 5 * number)
        rows.append(Generation(prompt=prompt, max_tokens=TOKENS, options=options))
        drawn = {"temperature": 0.8, "top_p": 0.9, "top_k": 50, "seed": number}
        rows.append(Generation(prompt=prompt, max_tokens=TOKENS, options=options, **drawn))
    return rows


def test_options_say_what_they_say_on_a_cpu(on_gpu: ModelRunner, on_cpu: ModelRunner) -> None:
    expected = generate(on_cpu, requests())
    for _ in range(2):  # slots are used again
        assert generate(on_gpu, requests()) == expected
    assert generate(on_gpu, requests(), chunk=7, seed=3) == expected


def test_alone_is_as_together(on_gpu: ModelRunner) -> None:
    together = generate(on_gpu, requests())
    for place in (2, 7, 9):
        assert generate(on_gpu, [requests()[place]]) == [together[place]]


def logprobs(runner: ModelRunner) -> list[RowLogprobs]:
    runner.reset()
    maker = PlanMaker(num_rows=24, num_pages=runner.limits.num_pages, page_size=16, budget=512, seed=1)
    maker.submit(*requests())
    drive(runner, maker)
    return maker.logprobs


def test_log_probabilities_are_those_of_a_cpu(on_gpu: ModelRunner, on_cpu: ModelRunner) -> None:
    found, expected = logprobs(on_gpu), logprobs(on_cpu)
    assert len(found) == len(expected) > 6 * TOKENS
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.row, ours.width, ours.first_position) == (theirs.row, theirs.width, theirs.first_position)
        assert ours.num_prompt_positions == theirs.num_prompt_positions
        assert np.array_equal(ours.token_ids, theirs.token_ids)
        assert np.array_equal(ours.ranks, theirs.ranks)
        assert np.allclose(ours.logprobs, theirs.logprobs, atol=1e-3)


def test_forms_are_kept_as_on_a_cpu(on_gpu: ModelRunner, on_cpu: ModelRunner) -> None:
    """Beside plain rows and rows with other options, with two steps in flight."""
    pytest.importorskip("llguidance")
    grammars = [
        json.dumps({"grammars": [{"lark_grammar": f"start: /{expression}/"}]})
        for expression in (r'\{"[a-f]{3,9}": [1-9][0-9]{0,3}\}', "[a-p]+", "(yes|no) [0-9]{3}")
    ]

    def structured() -> list[Generation]:
        rows = requests()
        for number, grammar in enumerate(grammars):
            options = RowOptions(grammar=grammar, min_tokens=4, stop_token_ids=int32s([EOS_ID]))
            prompt = random_prompt(30 + number)
            rows.append(Generation(prompt=prompt, max_tokens=TOKENS, options=options))
            rows.append(Generation(prompt=prompt, max_tokens=TOKENS, options=options, temperature=1.0, seed=number))
        return rows

    expected = generate(on_cpu, structured())
    assert all(EOS_ID in output for output in expected[-6:-4])
    for _ in range(2):
        assert generate(on_gpu, structured()) == expected
    assert generate(on_gpu, structured(), chunk=7, seed=3) == expected


@pytest.mark.parametrize(("options", "parameters"), CASES)
def test_rows_with_options_have_exact_probabilities(options: dict[str, Any], parameters: dict[str, float]) -> None:
    check_rule_distribution(load_kernels("triton"), options, parameters, "cuda", rows=20_000)
