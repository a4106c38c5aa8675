"""Structured output of the real model, through all processes: it has the form, and ends."""

import json
from typing import Any

import pytest
from pagewire_client import FinishReason
from support.stack import Stack
from support.structured_forms import has_form, has_no_blanks

BLANKS = [198, 216, 197, 256, 1116, 289]
"""Token ids of a newline, a blank, a tab, and several of them."""
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["kind", "tall", None]}, "minItems": 1, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
PROMPT = "A person, as JSON:"


def test_outputs_have_their_forms(roomy: Stack) -> None:
    client = roomy.client
    for sampling in ({"temperature": 0.0}, {"temperature": 1.3, "seed": 5, "n": 2}):
        for output in client.generate(PROMPT, json_schema=PERSON, max_tokens=120, **sampling).outputs:
            assert output.finish_reason is FinishReason.STOP
            assert has_form(json.loads(output.text), PERSON)
            assert has_no_blanks(output.text)
    chat = [{"role": "user", "content": "Is fire cold?"}]
    assert client.chat(chat, choice=["yes", "no"]).text in ("yes", "no")
    roomy.await_idle()


@pytest.mark.parametrize("skip_special_tokens", [True, False])
def test_str_03_blanks_come_to_an_end(roomy: Stack, skip_special_tokens: bool) -> None:
    """Logits strongly prefer blanks; also behind an assistant's text that was begun."""
    wanted: dict[str, Any] = {
        "json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        "logit_bias": {**dict.fromkeys(BLANKS, 50.0), 2: 20.0},
        "max_tokens": 200,
        "temperature": 0.0,
        "skip_special_tokens": skip_special_tokens,
    }
    chat = [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": "Here it is: "}]
    for answer in (
        roomy.client.generate(PROMPT, **wanted),
        roomy.client.chat(chat, continue_final_message=True, add_generation_prompt=False, **wanted),
    ):
        assert len(answer.text) < 60
        assert isinstance(json.loads(answer.text)["a"], int)
        assert "<|" not in answer.text
        assert answer.outputs[0].finish_reason is FinishReason.STOP
