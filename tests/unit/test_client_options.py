"""Keyword arguments become request messages, or are refused by name."""

from array import array
from typing import Any, get_type_hints

import pytest
from pagewire.v1 import generation_pb2
from pagewire_client.channel import call_metadata, call_timeout
from pagewire_client.errors import InvalidRequestError
from pagewire_client.options import GenerateOptions, chat_request, explain_prefix_request, pin_request, text_request
from pagewire_client.results import ChatMessage


def test_nothing_given_leaves_everything_unset() -> None:
    request = text_request("hi", {"temperature": None, "stop": None})
    assert request == generation_pb2.GenerateRequest(text="hi")
    assert not request.HasField("sampling")


def test_zero_and_false_are_sent() -> None:
    request = text_request("hi", {"temperature": 0.0, "ignore_eos": False, "n": 0})
    assert request.sampling.HasField("temperature")
    assert request.stop.HasField("ignore_eos")
    assert request.output.HasField("n")


def test_every_keyword_reaches_a_field_of_its_name() -> None:
    values: dict[str, Any] = {"logit_bias": {3: 1.5}, "template_variables": {"a": 1}, "choice": ["a", "b"]}
    lists = {"stop": ["x"], "stop_token_ids": [1], "allowed_token_ids": [1], "bad_words": ["w"]}
    texts = {"request_id", "model", "adapter", "cache_salt"}
    booleans = {"add_special_tokens", "continue_final_message", "add_generation_prompt", "ignore_eos", "include_stop"}
    booleans |= {"text", "token_ids", "skip_special_tokens", "progress_events", "bypass_prefix_cache"}
    for name in get_type_hints(GenerateOptions):
        if name in ("json_schema", "json_object", "regex", "grammar"):
            continue  # exclusive with choice
        default: Any = "t" if name in texts else name in booleans or 1
        values.setdefault(name, lists.get(name, default))
    request = chat_request([ChatMessage(role="user", content="hi")], values)
    shown = str(request)
    missing = [name for name in values if name not in ("choice", "template_variables") and f"{name}:" not in shown]
    assert [name for name in missing if name != "logit_bias"] == []
    assert dict(request.sampling.logit_bias) == {3: 1.5}
    assert list(request.structured.choice.choices) == ["a", "b"]
    assert request.chat.template_variables["a"] == "1"


def test_one_stop_string_needs_no_list() -> None:
    assert list(text_request("hi", {"stop": "END"}).stop.stop) == ["END"]


def test_empty_prompts_keep_their_kind() -> None:
    assert text_request("", {}).WhichOneof("prompt") == "text"
    assert text_request([], {}).WhichOneof("prompt") == "token_ids"
    assert chat_request([], {}).WhichOneof("prompt") == "chat"


def test_long_prompts_are_packed() -> None:
    ids = [*range(500), 2**32 - 1]
    for prompt in (ids, tuple(ids), array("Q", ids)):
        message = text_request(prompt, {}).token_ids
        assert array("I", message.packed_ids) == array("I", ids)
        assert not message.ids
    few: Any
    for few in (ids[:10], iter(ids[:10])):
        assert list(text_request(few, {}).token_ids.ids) == ids[:10]
    wrong: Any
    for wrong in (-1, 2**32, 1.5, "1", None):
        with pytest.raises(InvalidRequestError, match="token_ids"):
            text_request([*ids, wrong], {})


def test_structured_output_takes_a_schema_as_a_mapping() -> None:
    assert text_request("hi", {"json_schema": {"type": "object"}}).structured.json_schema == '{"type": "object"}'
    assert text_request("hi", {"json_object": True}).structured.json_object is True


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"top_k": -1}, "sampling.top_k"),
        ({"seed": 2**64}, "sampling.seed"),
        ({"max_tokens": "many"}, "stop.max_tokens"),
        ({"logit_bias": {-1: 1.0}}, "sampling.logit_bias"),
        ({"stop_token_ids": "12"}, "stop.stop_token_ids"),
        ({"regex": "a", "json_object": True}, "structured"),
        ({"add_generation_prompt": True}, "add_generation_prompt"),
        ({"json_schema": 3}, "structured.json_schema"),
        ({"temperature": 10**400}, "sampling.temperature"),
        ({"logit_bias": {1: 10**400}}, "sampling.logit_bias"),
        ({"ignore_eos": 2**64}, "stop.ignore_eos"),
    ],
)
def test_what_cannot_be_sent_names_its_field(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        text_request("hi", options)
    assert caught.value.field_violations[0].field == field


def test_schemas_that_are_no_json_name_their_field() -> None:
    circular: dict[str, Any] = {}
    circular["items"] = circular
    deep: dict[str, Any] = {}
    for _ in range(10_000):
        deep = {"items": deep}
    for schema in (circular, deep, {"const": object()}):
        with pytest.raises(InvalidRequestError, match=r"structured\.json_schema"):
            text_request("hi", {"json_schema": schema})


def test_bad_prompts_name_their_field() -> None:
    with pytest.raises(InvalidRequestError, match="token_ids"):
        text_request([1, -2], {})
    with pytest.raises(InvalidRequestError, match="needs a str, not bytes"):
        text_request(b"hi", {})
    with pytest.raises(InvalidRequestError, match=r"chat.messages\[1\]"):
        chat_request([{"role": "user", "content": "a"}, {"role": "user"}], {})
    with pytest.raises(InvalidRequestError, match="content"):
        chat_request([{"role": "user", "content": 3}], {})  # type: ignore[dict-item]


def test_what_is_no_prompt_and_no_conversation_is_said() -> None:
    with pytest.raises(InvalidRequestError, match="prompt: needs a text or token ids, has int"):
        text_request(5, {})  # type: ignore[arg-type]
    for wrong, kind in (("hello", "str"), ({"role": "user", "content": "hello"}, "dict")):
        with pytest.raises(InvalidRequestError, match=f"chat.messages: needs a list of messages, has {kind}"):
            chat_request(wrong, {})  # type: ignore[arg-type]


@pytest.mark.parametrize("message", ["hi", 3, None, [], {1: 2}])
def test_what_is_no_message_is_named(message: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"chat.messages\[0\]: needs role and content, has "):
        chat_request([message], {})


@pytest.mark.parametrize("variables", [3, "tools", {"a": object()}, {3: "a"}])
def test_what_are_no_template_variables_is_named(variables: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"chat.template_variables"):
        chat_request([{"role": "user", "content": "a"}], {"template_variables": variables})


def test_a_prefix_that_cannot_be_sent_names_its_field() -> None:
    with pytest.raises(InvalidRequestError, match=r"text: .*surrogates"):
        explain_prefix_request("\ud800", "")
    for seconds in (float("nan"), float("inf"), -1.0):
        with pytest.raises(InvalidRequestError, match="ttl_ms"):
            pin_request([1], seconds, "")


def test_a_token_that_is_no_metadata_is_named() -> None:
    assert call_metadata("abc", [("x-a", "b")]) == (("x-a", "b"), ("authorization", "Bearer abc"))
    for token in ("a\nb", "\u00e9"):
        with pytest.raises(InvalidRequestError, match="token: must be printable ASCII"):
            call_metadata(token, ())
    with pytest.raises(InvalidRequestError, match="x-a: must"):
        call_metadata(None, [("x-a", "\n")])


def test_a_timeout_grpc_cannot_count_is_none() -> None:
    assert [call_timeout(seconds) for seconds in (None, 0, -1.0, 1e9)] == [None, 0, -1.0, 1e9]
    assert call_timeout(float("inf")) is call_timeout(1e10) is None
    with pytest.raises(InvalidRequestError, match="timeout"):
        call_timeout(float("nan"))


def test_an_unknown_keyword_names_the_nearest() -> None:
    with pytest.raises(TypeError, match="did you mean 'temperature'"):
        text_request("hi", {"temprature": 1.0})
