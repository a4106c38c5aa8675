"""Every field is checked, and all violations are told at once."""

import math
from array import array
from types import SimpleNamespace
from typing import Any

import pytest
from google.rpc import error_details_pb2
from pagewire.v1 import generation_pb2 as pb
from support.fake_scheduler import toy_card
from support.toy_tokenizer import VOCAB_SIZE

from scheduler_svc.front.errors import (
    MAX_DETAILS_BYTES,
    InvalidRequestError,
    UnavailableError,
    Violation,
    error_of_code,
)
from scheduler_svc.front.prompt import prompt_token_ids
from scheduler_svc.front.served_model import build_served_model
from scheduler_svc.front.validation import UNSUPPORTED, check_request, check_tokenize

MODEL = build_served_model(toy_card())


def violations(**fields: Any) -> dict[str, str]:
    request = pb.GenerateRequest(text="a")
    request.MergeFrom(pb.GenerateRequest(**fields))
    return {found.field: found.description for found in check_request(request, MODEL)}


def sampling(**fields: Any) -> dict[str, str]:
    return violations(sampling=pb.SamplingOptions(**fields))


def test_a_plain_request_is_fine() -> None:
    assert violations() == {}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -0.1, 100.5])
def test_smp_01_temperature(bad: float) -> None:
    assert list(sampling(temperature=bad)) == ["sampling.temperature"]


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0, 1.01])
def test_smp_03_top_p(bad: float) -> None:
    assert list(sampling(top_p=bad)) == ["sampling.top_p"]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.1, 1.5])
def test_smp_03_min_p(bad: float) -> None:
    assert list(sampling(min_p=bad)) == ["sampling.min_p"]


def test_smp_03_top_k_is_off_at_zero_and_has_no_other_limit() -> None:
    for top_k in (0, 1, 10**9, 2**31 - 1):
        assert sampling(top_k=top_k) == {}
    for top_k in (2**31, 2**32 - 1):
        assert list(sampling(top_k=top_k)) == ["sampling.top_k"]


def test_smp_03_min_p_of_one_is_fine() -> None:
    assert sampling(min_p=1.0) == {}


@pytest.mark.parametrize(
    ("field", "inside", "outside"),
    [
        ("frequency_penalty", (-2.0, 0.0, 2.0), (-2.1, 2.1, math.nan, math.inf)),
        ("presence_penalty", (-2.0, 0.0, 2.0), (-2.1, 2.1, math.nan, -math.inf)),
        ("repetition_penalty", (1e-3, 1.0, 10.0), (0.0, 1e-38, 9.99e-4, -1.0, 1e9, math.nan, math.inf)),
    ],
)
def test_smp_05_penalties_have_limits(field: str, inside: tuple[float, ...], outside: tuple[float, ...]) -> None:
    assert all(sampling(**{field: value}) == {} for value in inside)
    for value in outside:
        assert "must lie in" in sampling(**{field: value})[f"sampling.{field}"]


@pytest.mark.parametrize(
    ("fields", "at_fault"),
    [
        ({"logit_bias": {VOCAB_SIZE: 1.0}}, f"sampling.logit_bias[{VOCAB_SIZE}]"),
        ({"logit_bias": {5: math.nan}}, "sampling.logit_bias[5]"),
        ({"logit_bias": {5: 101.0}}, "sampling.logit_bias[5]"),
        ({"logit_bias": dict.fromkeys(range(1025), 0.0)}, "sampling.logit_bias"),
        ({"allowed_token_ids": [4, VOCAB_SIZE]}, "sampling.allowed_token_ids[1]"),
        ({"allowed_token_ids": [1] * (VOCAB_SIZE + 1)}, "sampling.allowed_token_ids"),
        ({"bad_words": ["a", ""]}, "sampling.bad_words[1]"),
        ({"bad_words": [" "]}, "sampling.bad_words[0]"),
        ({"bad_words": ["x" * 61]}, "sampling.bad_words[0]"),
        ({"bad_words": ["x"] * 65}, "sampling.bad_words"),
    ],
)
def test_what_names_tokens_has_limits(fields: dict[str, Any], at_fault: str) -> None:
    assert list(sampling(**fields)) == [at_fault]


def test_min_tokens_is_at_most_max_tokens() -> None:
    for fields, good in (
        ({"min_tokens": 4, "max_tokens": 4}, True),
        ({"min_tokens": 5, "max_tokens": 4}, False),
        ({"min_tokens": 2**32 - 1}, False),
    ):
        assert (violations(stop=pb.StopOptions(**fields)) == {}) is good


def test_min_tokens_is_at_most_the_checkpoints_max_tokens() -> None:
    card = toy_card()
    card.generation_defaults.max_tokens = 20
    model = build_served_model(card)
    for min_tokens, max_tokens, ok in ((20, None, True), (21, None, False), (21, 30, True)):
        request = pb.GenerateRequest(text="a", stop=pb.StopOptions(min_tokens=min_tokens, max_tokens=max_tokens))
        assert (not check_request(request, model)) is ok


@pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs"])
def test_lgp_02_log_probabilities_have_a_limit(field: str) -> None:
    for count in (0, 1, 20, 21, 2**32 - 1):
        assert list(violations(output=pb.OutputOptions(**{field: count}))) == (
            [f"output.{field}"] if count > 20 else []
        )


def test_what_is_not_built_is_refused_on_its_field() -> None:
    assert violations(adapter="lora") == {"adapter": UNSUPPORTED}


def test_a_resume_grace_has_a_limit_and_excludes_log_probabilities() -> None:
    for scheduling, output in (({"resume_grace_ms": 3_600_001}, {}), ({"resume_grace_ms": 1}, {"logprobs": 0})):
        found = violations(scheduling=pb.SchedulingOptions(**scheduling), output=pb.OutputOptions(**output))
        assert "scheduling.resume_grace_ms" in found
    assert violations(scheduling=pb.SchedulingOptions(resume_grace_ms=3_600_000)) == {}


def test_neutral_values_are_accepted() -> None:
    assert (
        violations(
            sampling=pb.SamplingOptions(temperature=0, top_k=0, min_p=0, top_p=1, seed=2**64 - 1),
            stop=pb.StopOptions(min_tokens=0, max_tokens=1),
            scheduling=pb.SchedulingOptions(resume_grace_ms=0, priority=-5),
            structured=pb.StructuredOutput(),
            output=pb.OutputOptions(n=16),
        )
        == {}
    )


def test_all_violations_at_once() -> None:
    found = violations(
        request_id="ü",
        sampling=pb.SamplingOptions(temperature=-1, top_p=2),
        stop=pb.StopOptions(max_tokens=0, stop=["ok", ""], stop_token_ids=[299, 300]),
        output=pb.OutputOptions(n=17, max_delay_ms=10**6),
        scheduling=pb.SchedulingOptions(cache_salt="x" * 300, time_limit_ms=0),
        prompt_options=pb.PromptOptions(truncate_prompt_tokens=0, continue_final_message=True),
    )
    assert sorted(found) == [
        "output.max_delay_ms",
        "output.n",
        "prompt_options.continue_final_message",
        "prompt_options.truncate_prompt_tokens",
        "request_id",
        "sampling.temperature",
        "sampling.top_p",
        "scheduling.cache_salt",
        "scheduling.time_limit_ms",
        "stop.max_tokens",
        "stop.stop[1]",
        "stop.stop_token_ids[1]",
    ]


@pytest.mark.parametrize("request_id", ["x" * 257, "a\n", "\x7f", "é"])
def test_request_ids_are_printable_ascii(request_id: str) -> None:
    assert list(violations(request_id=request_id)) == ["request_id"]


def test_prompt_must_be_set() -> None:
    assert [found.field for found in check_request(pb.GenerateRequest(), MODEL)] == ["prompt"]
    assert [found.field for found in check_tokenize(pb.TokenizeRequest(), MODEL)] == ["prompt"]


def test_first_bad_token_id_is_named() -> None:
    found = violations(token_ids=pb.TokenIds(ids=[1, 299, 300, 10**9]))
    assert found == {"token_ids.ids[2]": "300 is no token id; they are below 300"}


def test_truncated_ids_are_not_looked_at() -> None:
    options = pb.PromptOptions(truncate_prompt_tokens=1)
    assert violations(token_ids=pb.TokenIds(ids=[10**9, 1]), prompt_options=options) == {}
    assert list(violations(token_ids=pb.TokenIds(ids=[1, 10**9]), prompt_options=options)) == ["token_ids.ids[0]"]
    wide = pb.PromptOptions(truncate_prompt_tokens=10**9)
    assert list(violations(token_ids=pb.TokenIds(ids=[1, 2**32 - 1]), prompt_options=wide)) == ["token_ids.ids[1]"]


def packed(*ids: int) -> pb.TokenIds:
    return pb.TokenIds(packed_ids=array("I", ids).tobytes())


def test_packed_ids_are_judged_as_plain_ones() -> None:
    options = pb.PromptOptions(truncate_prompt_tokens=2)
    for ids in ([1, 2], [1, 299, 300, 10**9], [10**9, 1, 2], [0] * 400):
        for more in ({}, {"prompt_options": options}):
            assert violations(token_ids=packed(*ids), **more) == violations(token_ids=pb.TokenIds(ids=ids), **more)


def test_a_negative_packed_id_is_told_as_what_it_is() -> None:
    (told,) = violations(token_ids=packed(1, 2**32 - 1)).items()
    assert told == ("token_ids.ids[1]", "-1 is no token id; they are below 300")


def test_packed_ids_come_alone_and_whole() -> None:
    both = pb.TokenIds(ids=[1], packed_ids=bytes(4))
    assert violations(token_ids=both) == {"token_ids.packed_ids": "excludes token_ids.ids"}
    ragged = pb.TokenIds(packed_ids=bytes(5))
    assert violations(token_ids=ragged) == {"token_ids.packed_ids": "must be whole numbers of 4 bytes"}


def test_packed_ids_are_read_as_plain_ones() -> None:
    for ids, options in (([], {}), ([3, 1, 2], {}), ([3, 1, 2], {"truncate_prompt_tokens": 2})):
        plain = pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids), prompt_options=options)
        same = pb.GenerateRequest(token_ids=packed(*ids), prompt_options=options)
        assert prompt_token_ids(same, MODEL) == prompt_token_ids(plain, MODEL)


def test_violations_come_in_the_order_of_their_ids() -> None:
    found = sampling(logit_bias=dict.fromkeys([700, 3, 500, 299, 301], math.inf))
    assert list(found) == [f"sampling.logit_bias[{token_id}]" for token_id in (3, 299, 301, 500, 700)]


def test_chats() -> None:
    def chat(**fields: Any) -> list[str]:
        return list(violations(chat=pb.Chat(**fields)))

    hello = pb.ChatMessage(role="user", content="hello")
    assert chat(messages=[hello]) == []
    assert chat() == ["chat.messages"]
    assert chat(messages=[hello] * 257) == ["chat.messages"]
    assert chat(messages=[hello, pb.ChatMessage(content="x")]) == ["chat.messages[1].role"]
    variables = {"good": "[1]", "messages": "[]", "_x": "1", "broken": "{"}
    assert sorted(chat(messages=[hello], template_variables=variables)) == [
        "chat.template_variables[_x]",
        "chat.template_variables[broken]",
        "chat.template_variables[messages]",
    ]
    assert chat(messages=[hello], template_variables={"x": '"' + "y" * 70_000 + '"'}) == ["chat.template_variables"]


def test_continuing_excludes_the_generation_prompt() -> None:
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="a")], add_generation_prompt=True)
    found = violations(chat=chat, prompt_options=pb.PromptOptions(continue_final_message=True))
    assert list(found) == ["prompt_options.continue_final_message"]


def test_a_model_without_template_refuses_chats() -> None:
    model = build_served_model(toy_card(chat_template=""))
    request = pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(role="user", content="a")]))
    assert [found.field for found in check_request(request, model)] == ["chat"]


def test_status_details_stay_small() -> None:
    many = [Violation(f"stop.stop[{place}]", "é" * 2000) for place in range(1000)]
    error = InvalidRequestError(many)
    status = error.to_status()
    assert status.ByteSize() <= MAX_DETAILS_BYTES
    bad = error_details_pb2.BadRequest()
    assert status.details[1].Unpack(bad)
    assert "more violations" in bad.field_violations[-1].description


def test_retry_is_told_twice() -> None:
    error = UnavailableError("later", reason="NO_WORKER", retry_ms=1500)
    assert dict(error.trailers())["grpc-retry-pushback-ms"] == "1500"
    retry = error_details_pb2.RetryInfo()
    assert error.to_status().details[1].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 1500


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (1, "CANCELLED"),
        (3, "INVALID_ARGUMENT"),
        (4, "DEADLINE_EXCEEDED"),
        (5, "NOT_FOUND"),
        (6, "ALREADY_EXISTS"),
        (8, "RESOURCE_EXHAUSTED"),
        (12, "UNIMPLEMENTED"),
        (13, "INTERNAL"),
        (14, "UNAVAILABLE"),
        (99, "INTERNAL"),
    ],
)
def test_codes_of_the_scheduler(code: int, name: str) -> None:
    error = error_of_code(code, reason="WHY", message="because")
    assert error.code.name == name


def test_page_card_without_tokenizer_is_refused() -> None:
    card = SimpleNamespace(HasField=lambda name: False, tokenizer_json=b"no", chat_template="", special_tokens={})
    with pytest.raises(ValueError, match="tokenizer"):
        build_served_model(card)
