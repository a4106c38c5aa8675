"""The offline API's values: names that become flags and options, names that are refused, outputs of failed prompts."""

import warnings
from dataclasses import replace
from typing import Any

import grpc
import pytest
from pagewire_client import (
    LLM,
    Generation,
    GuidedDecodingParams,
    InvalidRequestError,
    SamplingParams,
    StructuredOutputsParams,
)
from pagewire_client.engine_arguments import stack_arguments
from pagewire_client.options import text_request, token_ids_of
from pagewire_client.request_output import request_output
from pagewire_client.results import FinishReason, Output, Summary, Timings, Usage
from pagewire_client.stack import worker_commands


def test_arguments_become_flags() -> None:
    made = stack_arguments(
        {
            "dtype": "half",
            "quantization": None,
            "max_model_len": 4096,
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 256,
            "enable_prefix_caching": False,
            "gpu_memory_utilization": 0.95,
            "block_size": 16,
            "tensor_parallel_size": 2,
            "served_model_name": "mine",
            "tokenizer": "path",
            "seed": 3,
            "num_workers": 2,
            "trust_remote_code": False,
        }
    )
    both = ["--max-model-len", "4096", "--max-num-batched-tokens", "8192", "--max-num-seqs", "256"]
    assert made.scheduler == [*both, "--no-enable-prefix-caching"]
    assert made.worker == [
        *("--dtype", "float16", *both, "--gpu-memory-utilization", "0.95", "--page-size", "16"),
        *("--tensor-parallel-size", "2", "--served-model-name", "mine", "--tokenizer", "path"),
    ]
    assert (made.seed, made.num_workers, made.num_ranks) == (3, 2, 2)


def test_every_rank_of_every_worker_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    commands = worker_commands("model", [], 2, 2)
    assert [command.environment["CUDA_VISIBLE_DEVICES"] for command in commands] == ["4,5", "6,7"]
    assert worker_commands("model", [], 1, 2)[0].environment == {}


@pytest.mark.parametrize("name", ["swap_space", "enforce_eager", "disable_log_stats"])
def test_arguments_without_effect_say_so_once(name: str) -> None:
    with pytest.warns(UserWarning, match=f"{name} has no effect") as seen:
        made = stack_arguments({name: 4})
    assert len(seen) == 1
    assert made.scheduler + made.worker == []


def test_code_of_a_model_is_refused() -> None:
    with pytest.raises(ValueError, match="trust_remote_code=True is refused: code"):
        LLM("model", trust_remote_code=True)


def test_unknown_names_tell_the_nearest_known_one() -> None:
    call: Any = LLM
    with pytest.raises(TypeError, match="LLM has no argument 'max_num_sequences'; did you mean 'max_num_seqs'"):
        call("model", max_num_sequences=3)
    make: Any = SamplingParams
    with pytest.raises(TypeError, match="SamplingParams has no argument 'temprature'; did you mean 'temperature'"):
        make(temprature=0.5)


def test_sampling_parameters_become_options() -> None:
    params = SamplingParams(
        temperature=0.5,
        top_k=-1,
        seed=-1,
        stop="x",
        detokenize=False,
        include_stop_str_in_output=True,
        logit_bias={3: 1.0},
    )
    request = text_request("a", params.options())
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.top_k) == (0.5, 1.0, 0)
    assert request.sampling.HasField("top_k")
    assert not request.sampling.HasField("seed")
    assert (request.stop.max_tokens, list(request.stop.stop), request.stop.include_stop) == (16, ["x"], True)
    assert request.output.HasField("text")
    assert not request.output.text
    assert dict(request.sampling.logit_bias) == {3: 1.0}
    assert not text_request("a", SamplingParams(max_tokens=None).options()).stop.HasField("max_tokens")


def test_neutral_parameters_are_left_out() -> None:
    request = text_request("a", SamplingParams().options())
    assert not request.stop.HasField("min_tokens")
    assert not request.sampling.HasField("presence_penalty")
    assert request.sampling.HasField("repetition_penalty")  # a checkpoint may have another default


def _generation(stop_reason: str | int | None) -> Generation:
    output = Output(index=0, text="t", token_ids=(1, 2), finish_reason=FinishReason.STOP, stop_reason=stop_reason)
    usage = Usage(prompt_tokens=2, cached_tokens=1, output_tokens=2, recomputed_tokens=0)
    timings = Timings(queue_seconds=0, first_token_seconds=0, decode_seconds=0, total_seconds=1)
    summary = Summary(usage=usage, timings=timings, seed=1, worker_id="w", prompt_token_ids=(7, 8))
    return Generation(request_id="5", outputs=(output,), summary=summary)


@pytest.mark.parametrize(("told", "shown"), [("s", "s"), (2, 2), (3, None), (None, None)])
def test_outputs_have_the_known_names(told: str | int | None, shown: str | int | None) -> None:
    params = SamplingParams(stop_token_ids=[2])
    result = request_output("5", "p", "p", params, _generation(told))
    assert (result.prompt, result.prompt_token_ids, result.num_cached_tokens) == ("p", [7, 8], 1)
    only = result.outputs[0]
    assert (only.text, only.token_ids, only.finish_reason, only.stop_reason) == ("t", [1, 2], "stop", shown)


def test_ids_of_a_prompt_are_the_callers_own_unless_the_answer_tells_them() -> None:
    told = _generation(None)
    untold = replace(told, summary=replace(told.summary, prompt_token_ids=()))
    for ids in (list(range(5)), list(range(500))):
        sent = token_ids_of(text_request(ids, {}).token_ids)
        assert request_output("5", None, ids, None, untold, sent).prompt_token_ids == ids
        assert request_output("5", None, ids, None, told, sent).prompt_token_ids == [7, 8]


def test_a_failed_prompt_has_an_empty_output_and_its_error() -> None:
    error = InvalidRequestError("no", code=grpc.StatusCode.INVALID_ARGUMENT)
    with warnings.catch_warnings():
        result = request_output("5", None, [1, 2], None, error)
    assert (result.prompt_token_ids, result.error) == ([1, 2], error)
    assert [(each.text, each.finish_reason) for each in result.outputs] == [("", "failed")]


@pytest.mark.parametrize(
    ("name", "kind"), [("structured_outputs", StructuredOutputsParams), ("guided_decoding", GuidedDecodingParams)]
)
def test_forms_are_asked_for_by_the_names_people_know(name: str, kind: type[StructuredOutputsParams]) -> None:
    def structured(**form: Any) -> Any:
        params = SamplingParams(**{name: kind(**form)})
        return text_request("hi", params.options()).structured

    assert structured(json={"type": "object"}).json_schema == '{"type": "object"}'
    assert list(structured(choice=["a", "b"]).choice.choices) == ["a", "b"]
    assert structured(regex="a+").regex == "a+"
    assert structured().WhichOneof("constraint") is None
    with pytest.raises(InvalidRequestError, match="at most one of"):
        structured(regex="a", json_object=True)
    with pytest.raises(TypeError, match="did you mean 'choice'"):
        structured(choices=["a"])


def test_half_a_surrogate_pair_is_no_prompt() -> None:
    with pytest.raises(InvalidRequestError) as refused:
        text_request("x\udcff", {})
    assert [violation.field for violation in refused.value.field_violations] == ["text"]


def test_a_form_of_another_type_is_named() -> None:
    form: Any = {"regex": "a"}
    with pytest.raises(TypeError, match="structured_outputs is dict, not StructuredOutputsParams"):
        SamplingParams(structured_outputs=form).options()
