"""What vLLM's users send beside OpenAI's fields becomes the API's own."""

from typing import Any

import pytest
from pagewire.v1 import generation_pb2 as pb
from pagewire_client.gateway.bodies import ChatBody, CompletionBody
from pagewire_client.gateway.conversion import chat_message, completion_message
from pagewire_client.gateway.failures import BadRequestError


def completion(**given: Any) -> pb.GenerateRequest:
    return completion_message(CompletionBody.model_validate({"model": "m", "prompt": "p", **given}), "p")


@pytest.mark.parametrize(
    ("given", "form"),
    [
        ({"structured_outputs": {"json": {"type": "null"}}}, {"json_schema": '{"type": "null"}'}),
        ({"structured_outputs": {"json": '{"type": "null"}'}}, {"json_schema": '{"type": "null"}'}),
        ({"structured_outputs": {"json_object": True}}, {"json_object": True}),
        ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
        ({"structured_outputs": {"choice": ["a", "b"]}}, {"choice": {"choices": ["a", "b"]}}),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, {"grammar": 'root ::= "a"'}),
        ({"guided_json": {"type": "null"}}, {"json_schema": '{"type": "null"}'}),
        ({"guided_regex": "a+"}, {"regex": "a+"}),
        ({"guided_choice": ["a", "b"]}, {"choice": {"choices": ["a", "b"]}}),
        ({"guided_grammar": "g"}, {"grammar": "g"}),
        ({"structured_outputs": None, "guided_regex": None}, {}),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
    ],
)
def test_forms(given: dict[str, Any], form: dict[str, Any]) -> None:
    assert completion(**given).structured == pb.StructuredOutput(**form)


def test_two_forms_are_refused_by_name() -> None:
    for given in ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"choice": ["a"]}}):
        with pytest.raises(BadRequestError, match="structured_outputs: at most one form; given: regex, "):
            completion(guided_regex="a", **given)


def test_other_fields() -> None:
    message = completion(
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        bad_words=["no"],
        allowed_token_ids=[1, 2],
        truncate_prompt_tokens=5,
        add_special_tokens=False,
        cache_salt="s",
    )
    assert (message.stop.include_stop, message.output.skip_special_tokens) == (True, False)
    assert (list(message.sampling.bad_words), list(message.sampling.allowed_token_ids)) == (["no"], [1, 2])
    assert message.prompt_options == pb.PromptOptions(truncate_prompt_tokens=5, add_special_tokens=False)
    assert message.scheduling == pb.SchedulingOptions(cache_salt="s")
    assert not completion().HasField("prompt_options")
    with pytest.raises(BadRequestError, match="truncate_prompt_tokens"):
        completion(truncate_prompt_tokens=-1)


def chat(content: Any, **given: Any) -> pb.GenerateRequest:
    messages = [{"role": "user", "content": content}]
    return chat_message(ChatBody.model_validate({"model": "m", "messages": messages, **given}))


def test_a_conversation_that_is_left_open() -> None:
    message = chat("a", add_generation_prompt=False, continue_final_message=True)
    assert message.chat.HasField("add_generation_prompt")
    assert not message.chat.add_generation_prompt
    assert message.prompt_options.continue_final_message
    assert not chat("a").chat.HasField("add_generation_prompt")


def test_a_part_that_is_no_text_is_named() -> None:
    assert chat([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]).chat.messages[0].content == "ab"
    with pytest.raises(BadRequestError, match="messages: a part of type 'image_url': only text is served"):
        chat([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}])
