"""Penalties, biases, allowed ids, bad words and min_tokens through core, codecs and a real small model: what a request
says depends on nothing but itself."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.core_runner import CoreRunner, build_runner
from support.option_outputs import expected_output, row_options
from support.plan_driver import Generation, PlanMaker
from support.tiny_models import TinyModel, greedy, make_model, random_prompt
from transformers import GenerationConfig

from gpu_worker.batch_plan import BatchPlan, RowOptions, int32s
from gpu_worker.model_runner import ModelRunner

TOKENS = 24
PROMPT = random_prompt(40)
Outputs = dict[str, list[int]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_model(tmp_path_factory.mktemp("options"))


@pytest.fixture(scope="module")
def plain(tiny: TinyModel) -> list[int]:
    return greedy(tiny.reference, PROMPT, TOKENS)


@pytest.fixture(scope="module")
def options(plain: list[int]) -> dict[str, dict[str, Any]]:
    """By name; each changes what the model would say."""
    first, second, third = plain[:3]
    return {
        "repetition": {"repetition_penalty": 5.0},
        "encouraged repetition": {"repetition_penalty": 0.5},
        "frequency": {"frequency_penalty": 2.0},
        "presence": {"presence_penalty": -2.0},
        "all penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.7, "presence_penalty": 0.4},
        "bias": {"bias": {first: -100.0, 7: 3.5}},
        "allowed": {"allowed_token_ids": [3, 5, 8, 13, 21, 34, 55, 89, 144, 233]},
        "bad words": {"bad_words": [[first], [second, third], [3, 5, 8]]},
        "bad pairs of allowed ids": {"allowed_token_ids": [3, 5, 8], "bad_words": [[a, a] for a in (3, 5, 8)]},
        "min tokens": {"min_tokens": 5, "stop_token_ids": plain[:5]},
    }


@pytest.fixture(scope="module")
def expected(tiny: TinyModel, options: dict[str, dict[str, Any]]) -> Outputs:
    return {name: expected_output(tiny.reference, PROMPT, TOKENS, **each) for name, each in options.items()}


@pytest.fixture(scope="module", params=["cpu", "reference"])
def runner(tiny: TinyModel, request: pytest.FixtureRequest) -> ModelRunner:
    return build_runner(tiny.path, kernels=request.param)


def test_the_reference_is_what_transformers_says(tiny: TinyModel, plain: list[int], expected: Outputs) -> None:
    config = GenerationConfig(
        max_new_tokens=TOKENS, do_sample=False, pad_token_id=0, eos_token_id=-1, repetition_penalty=5.0
    )
    ids = torch.tensor([PROMPT])
    output = tiny.reference.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    assert output[0, len(PROMPT) :].tolist() == expected["repetition"]
    for name, output in expected.items():
        assert output != plain, name


def test_alone_and_all_together_with_plain_rows(
    runner: ModelRunner, options: dict[str, dict[str, Any]], expected: Outputs, plain: list[int]
) -> None:
    for name, each in options.items():
        bench = CoreRunner(runner, enable_prefix_caching=False)
        bench.submit(PROMPT, TOKENS, options=row_options(**each))
        assert bench.run().outputs == [expected[name]], name
    bench = CoreRunner(runner, max_num_batched_tokens=48)
    bench.submit(PROMPT, TOKENS)
    for each in options.values():
        bench.submit(PROMPT, TOKENS, options=row_options(**each))
    bench.submit(PROMPT, TOKENS)
    assert bench.run().outputs == [plain, *expected.values(), plain]


@pytest.mark.parametrize("budget", [16, 1000])
def test_smp_05_counts_cover_what_came_from_the_cache(
    runner: ModelRunner, options: dict[str, dict[str, Any]], expected: Outputs, budget: int
) -> None:
    """Cold, warm, and on a row that another request with options had before."""
    bench = CoreRunner(runner, max_num_batched_tokens=budget, max_num_seqs=1)
    for name in ("repetition", "frequency", "presence", "repetition"):
        for _ in range(2):
            bench.submit(PROMPT, TOKENS, options=row_options(**options[name]))
            assert bench.run().outputs[-1] == expected[name]
    assert bench.ended[1].num_cached_tokens == 32


def test_smp_05_a_neighbour_that_leaves_changes_nothing(
    runner: ModelRunner, options: dict[str, dict[str, Any]], expected: Outputs
) -> None:
    bench = CoreRunner(runner)
    for number in range(3):
        bench.submit(random_prompt(20 + number), 3 + number)
        bench.submit(random_prompt(9), 4 + number, options=row_options(frequency_penalty=1.0))
    keys = {name: bench.submit(PROMPT, TOKENS, options=row_options(**options[name])) for name in options}
    bench.run()
    assert {name: bench.outputs[key] for name, key in keys.items()} == expected


def test_a_preempted_request_counts_its_whole_output(
    runner: ModelRunner, options: dict[str, dict[str, Any]], expected: Outputs
) -> None:
    for caching in (True, False):
        bench = CoreRunner(runner, num_pages=9, enable_prefix_caching=caching)
        for each in options.values():
            bench.submit(PROMPT, TOKENS, options=row_options(**each))
        bench.run()
        assert bench.core.counts().num_preemptions > 0
        assert bench.outputs == list(expected.values())


def test_steps_rounded_up_to_the_shapes_of_graphs_say_the_same(
    tiny: TinyModel, options: dict[str, dict[str, Any]], expected: Outputs, plain: list[int]
) -> None:
    runner = build_runner(tiny.path, kernels="reference", max_num_seqs=12)
    runner.round_shapes()
    bench = CoreRunner(runner)
    bench.submit(PROMPT, TOKENS)
    for each in options.values():
        bench.submit(PROMPT, TOKENS, options=row_options(**each))
    assert bench.run().outputs == [plain, *expected.values()]


def test_seeded_sampling_with_options_is_independent_of_its_neighbours(runner: ModelRunner) -> None:
    sampling = {
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.9,
        "seed": 11,
        "options": row_options(repetition_penalty=1.4),
    }
    alone = CoreRunner(runner)
    for index in range(3):
        alone.submit(PROMPT, TOKENS, output_index=index, **sampling)
        alone.run()
    together = CoreRunner(runner, max_num_batched_tokens=30)
    for number in range(4):
        together.submit(random_prompt(11 + number), 30, temperature=1.0, options=row_options(presence_penalty=1.0))
    for index in range(3):
        together.submit(PROMPT, TOKENS, output_index=index, **sampling)
    assert together.run().outputs[4:] == alone.outputs
    assert len({tuple(output) for output in alone.outputs}) == 3


def test_nothing_left_to_choose_ends_that_request_alone(runner: ModelRunner, plain: list[int]) -> None:
    bench = CoreRunner(runner)
    bench.submit(PROMPT, TOKENS)
    bench.submit(PROMPT, TOKENS, options=row_options(allowed_token_ids=[5], bad_words=[[5, 5]]))
    bench.run()
    assert bench.outputs == [plain, [5]]
    assert bench.ended[1].reason.name == "NAN"


def test_smp_01_not_a_number_is_noticed_behind_penalties(tmp_path: Path) -> None:
    model = make_model(tmp_path, num_hidden_layers=1)
    with torch.no_grad():
        model.reference.lm_head.weight[9] = float("nan")
    model.reference.save_pretrained(tmp_path)
    bench = CoreRunner(build_runner(tmp_path))
    bench.submit(PROMPT, 3, options=row_options(repetition_penalty=2.0, bias={9: -3.0}))
    assert bench.run().ended[0].reason.name == "NAN"


def test_a_step_that_fails_leaves_no_options_behind(tiny: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row it released has another request next, which has none."""
    runner = build_runner(tiny.path)

    def plan(options: dict[int, RowOptions], releases: Sequence[int] = ()) -> BatchPlan:
        maker = PlanMaker(num_rows=1, num_pages=4, page_size=16)
        maker.submit(Generation(prompt=[1, 2, 3], max_tokens=4))
        made = maker.next_plan()
        assert made is not None
        return replace(made, releases=int32s(releases), new_rows=replace(made.new_rows, options=options))

    word = RowOptions(repetition_penalty=2.0, bad_words=[(1, 2)])
    assert runner.launch(plan({0: word})).wait().failure is None
    with monkeypatch.context() as patch:
        patch.setattr(runner._device_rows, "upload", lambda *_: 1 / 0)
        assert "ZeroDivisionError" in str(runner.launch(plan({0: word}, releases=[0])).wait().failure)
        assert "ZeroDivisionError" in str(runner.launch(plan({}, releases=[0])).wait().failure)
    result = runner.launch(BatchPlan(num_scheduled_rows=1, num_scheduled_tokens=1)).wait()
    assert (result.failure, len(result.token_ids)) == (None, 1)
