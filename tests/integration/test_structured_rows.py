"""Rows whose output has a form, through core, codecs and a real small model: whatever happens to a row its output keeps
the form, and its neighbours do not see it."""

import re
from typing import Any

import pytest
from support.core_runner import CoreRunner, build_runner
from support.option_outputs import row_options
from support.tiny_models import EOS_ID, TinyModel, greedy, make_model, random_prompt
from tokenizers import Tokenizer

from gpu_worker.grammar_vocabulary import GrammarVocabulary
from gpu_worker.model_runner import ModelRunner
from scheduler_svc.core.types import EndReason, WorkerId
from scheduler_svc.front.grammar_process import MAKERS

TOKENS = 24
PROMPT = random_prompt(40)
EXPRESSION = r'\{"[a-f]{3,9}": (?:[1-9][0-9]{0,3}|"[x-z]{5}")\}'
GRAMMAR = MAKERS["regex"](EXPRESSION)
UNENDING = MAKERS["regex"]("[a-p]+")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_model(tmp_path_factory.mktemp("structured"))


@pytest.fixture(scope="module", params=["cpu", "reference"])
def runner(tiny: TinyModel, request: pytest.FixtureRequest) -> ModelRunner:
    return build_runner(tiny.path, kernels=request.param)


@pytest.fixture(scope="module")
def tokenizer(tiny: TinyModel) -> Tokenizer:
    return Tokenizer.from_file(str(tiny.path / "tokenizer.json"))


@pytest.fixture(scope="module")
def alone(runner: ModelRunner) -> list[list[int]]:
    """Greedy, and drawn as three outputs: each by itself."""
    bench = CoreRunner(runner, max_num_seqs=1, enable_prefix_caching=False)
    submit_structured(bench)
    return bench.run().outputs


def submit_structured(bench: CoreRunner, **changes: Any) -> list[int]:
    """Keys of one greedy and three drawn outputs."""
    drawn = {"temperature": 1.0, "seed": 5, "top_p": 0.95}
    keys = [bench.submit(PROMPT, TOKENS, stops=[EOS_ID], grammar=GRAMMAR, **changes)]
    for index in range(3):
        given = {"output_index": index, **drawn, **changes}
        keys.append(bench.submit(PROMPT, TOKENS, stops=[EOS_ID], grammar=GRAMMAR, **given))
    return keys


def test_outputs_have_the_form_and_end(alone: list[list[int]], tokenizer: Tokenizer) -> None:
    for output in alone:
        assert output[-1] == EOS_ID
        assert re.fullmatch(EXPRESSION, tokenizer.decode(output))
    assert len({tuple(output) for output in alone}) > 2


@pytest.mark.parametrize("budget", [16, 1000])
def test_together_with_plain_rows_nobody_sees_the_other(
    tiny: TinyModel, runner: ModelRunner, alone: list[list[int]], budget: int
) -> None:
    plain = greedy(tiny.reference, PROMPT, TOKENS)
    for depth in (1, 2):
        bench = CoreRunner(runner, max_num_batched_tokens=budget, depth=depth)
        first = bench.submit(PROMPT, TOKENS)
        keys = submit_structured(bench)
        last = bench.submit(PROMPT, TOKENS)
        bench.run()
        assert [bench.outputs[key] for key in keys] == alone
        assert bench.outputs[first] == bench.outputs[last] == plain
        assert {bench.ended[key].reason for key in keys} == {EndReason.STOP_TOKEN}


def test_preempted_rows_go_on_where_they_were(runner: ModelRunner, alone: list[list[int]]) -> None:
    for caching in (True, False):
        bench = CoreRunner(runner, num_pages=9, enable_prefix_caching=caching)
        keys = submit_structured(bench)
        for number in range(4):
            bench.submit(random_prompt(30 + number), TOKENS)
        bench.run()
        assert bench.core.counts().num_preemptions > 0
        assert [bench.outputs[key] for key in keys] == alone


def test_rows_of_a_lost_worker_go_on_at_another(tiny: TinyModel, runner: ModelRunner, alone: list[list[int]]) -> None:
    bench = CoreRunner(runner, build_runner(tiny.path))
    keys = submit_structured(bench)
    while not all(bench.outputs):
        bench.step()
    bench.lose(WorkerId("w1"))
    assert [bench.run().outputs[key] for key in keys] == alone


def test_length_ends_an_output_in_the_middle_of_its_form(
    runner: ModelRunner, alone: list[list[int]], tokenizer: Tokenizer
) -> None:
    bench = CoreRunner(runner)
    bench.submit(PROMPT, 4, stops=[EOS_ID], grammar=GRAMMAR)
    bench.submit(
        PROMPT, TOKENS, stops=[EOS_ID], grammar=UNENDING, temperature=1.0, options=row_options(bias={EOS_ID: -100})
    )
    bench.run()
    assert bench.outputs[0] == alone[0][:4]
    assert re.fullmatch("[a-p]+", tokenizer.decode(bench.outputs[1]))
    assert [each.reason for each in bench.ended.values()] == [EndReason.LENGTH] * 2


def test_min_tokens_puts_the_end_off_as_long_as_the_form_goes_on(runner: ModelRunner) -> None:
    late = row_options(min_tokens=12, stop_token_ids=[EOS_ID], bias={EOS_ID: 100.0})
    bench = CoreRunner(runner)
    bench.submit(PROMPT, TOKENS, stops=[EOS_ID], grammar=UNENDING, options=late)
    bench.submit(PROMPT, TOKENS, stops=[EOS_ID], grammar=MAKERS["choice"](["abc"]), options=late)
    bench.run()
    assert [len(output) for output in bench.outputs] == [13, 4]
    assert {each.reason for each in bench.ended.values()} == {EndReason.STOP_TOKEN}


def test_log_probabilities_and_penalties_beside_a_form(runner: ModelRunner, alone: list[list[int]]) -> None:
    bench = CoreRunner(runner)
    keys = submit_structured(bench, options=row_options(logprobs=2))
    penalised = bench.submit(
        PROMPT,
        TOKENS,
        stops=[EOS_ID],
        grammar=UNENDING,
        options=row_options(frequency_penalty=2.0, min_tokens=9, stop_token_ids=[EOS_ID]),
    )
    bench.run()
    assert [bench.outputs[key] for key in keys] == alone
    assert [len(bench.logprobs[key]) for key in keys] == [len(output) for output in alone]
    assert len(set(bench.outputs[penalised])) > 5


@pytest.mark.parametrize(
    ("grammar", "options"),
    [
        ("no grammar at all", {}),
        (MAKERS["regex"]("("), {}),
        (GRAMMAR, {"allowed_token_ids": [EOS_ID]}),
    ],
    ids=["no grammar", "unusable", "nothing left"],
)
def test_a_form_that_cannot_be_kept_ends_that_request_alone(
    runner: ModelRunner, alone: list[list[int]], grammar: str, options: dict[str, Any]
) -> None:
    bench = CoreRunner(runner)
    bad = bench.submit(PROMPT, TOKENS, stops=[EOS_ID], grammar=grammar, options=row_options(**options))
    keys = submit_structured(bench)
    bench.run()
    assert (bench.outputs[bad], bench.ended[bad].reason) == ([], EndReason.GRAMMAR)
    assert [bench.outputs[key] for key in keys] == alone


def test_a_matcher_that_breaks_ends_its_request_alone(
    runner: ModelRunner, alone: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a thread raises, the worker goes on."""
    bench = CoreRunner(runner)
    with monkeypatch.context() as patch:
        patch.setattr(GrammarVocabulary, "matcher", lambda *_: 1 / 0)
        bad = bench.submit(PROMPT, TOKENS, grammar=GRAMMAR)
        bench.run()
    assert bench.ended[bad].reason is EndReason.GRAMMAR
    keys = submit_structured(bench)
    assert [bench.run().outputs[key] for key in keys] == alone


def test_steps_rounded_up_to_the_shapes_of_graphs_say_the_same(tiny: TinyModel, alone: list[list[int]]) -> None:
    runner = build_runner(tiny.path, kernels="reference", max_num_seqs=12)
    runner.round_shapes()
    bench = CoreRunner(runner)
    bench.submit(PROMPT, TOKENS)
    keys = submit_structured(bench)
    assert [bench.run().outputs[key] for key in keys] == alone
