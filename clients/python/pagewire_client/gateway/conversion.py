"""OpenAI's requests as GenerateRequest messages. Values are judged by the server, which names the fields at fault."""

from __future__ import annotations

import json
from typing import Any

from pagewire.v1 import generation_pb2

from .bodies import ChatBody, CompletionBody, Sampled
from .failures import BadRequestError

_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty"),
    "repetition_penalty",
)


_SAME = (
    ("stop", "include_stop", "include_stop_str_in_output"),
    ("output", "skip_special_tokens", "skip_special_tokens"),
    ("sampling", "bad_words", "bad_words"),
    ("sampling", "allowed_token_ids", "allowed_token_ids"),
    ("prompt_options", "truncate_prompt_tokens", "truncate_prompt_tokens"),
    ("prompt_options", "add_special_tokens", "add_special_tokens"),
    ("scheduling", "cache_salt", "cache_salt"),
)
"""Part and field of the message, and what vLLM's users call it."""


def chat_message(body: ChatBody) -> generation_pb2.GenerateRequest:
    """Raises: BadRequestError."""
    message = _message(body, body.limit)
    for each in body.messages:
        message.chat.messages.add(role=each.role, content=each.text)
    variables = dict(body.chat_template_kwargs or {})
    if body.tools and body.tool_choice != "none":
        variables["tools"] = body.tools
    if body.add_generation_prompt is not None:
        message.chat.add_generation_prompt = body.add_generation_prompt
    if body.continue_final_message is not None:
        message.prompt_options.continue_final_message = body.continue_final_message
    for name, value in variables.items():
        message.chat.template_variables[name] = json.dumps(value)
    if body.logprobs:
        message.output.logprobs = body.top_logprobs
        message.output.token_ids = True
    return message


def completion_message(body: CompletionBody, prompt: str | list[int]) -> generation_pb2.GenerateRequest:
    """One of the body's prompts. Raises: BadRequestError."""
    message = _message(body, body.limit)
    if isinstance(prompt, str):
        message.text = prompt
    else:
        _set("prompt", lambda: message.token_ids.ids.extend(prompt))
        message.token_ids.SetInParent()
    if body.logprobs is not None:
        message.output.logprobs = body.logprobs
        message.output.token_ids = True
    return message


def _message(body: Sampled, limit: int | None) -> generation_pb2.GenerateRequest:
    message = generation_pb2.GenerateRequest(model=body.model)
    message.output.n = body.n
    for name in _SAMPLING:
        value = getattr(body, name)
        if value is not None:
            _put(message.sampling, name, value)
    for token_id, bias in (body.logit_bias or {}).items():
        if not token_id.isdecimal():
            raise BadRequestError("logit_bias", f"{token_id[:40]!r} is no token id")
        _set("logit_bias", lambda: message.sampling.logit_bias.update({int(token_id): bias}))  # noqa: B023 - called now
    stops = [body.stop] if isinstance(body.stop, str) else body.stop
    message.stop.stop.extend(stops or ())
    _set("stop_token_ids", lambda: message.stop.stop_token_ids.extend(body.stop_token_ids or ()))
    for name, value in (("max_tokens", limit), ("min_tokens", body.min_tokens), ("ignore_eos", body.ignore_eos)):
        if value is not None:
            _put(message.stop, name, value)
    for part, own, theirs in _SAME:
        value = getattr(body, theirs)
        if value is not None:
            _set(theirs, lambda: _write(getattr(message, part), own, value))  # noqa: B023 - called now
    _add_form(message.structured, body.forms)
    return message


def _add_form(structured: generation_pb2.StructuredOutput, forms: dict[str, Any]) -> None:
    if len(forms) > 1:
        raise BadRequestError("structured_outputs", f"at most one form; given: {', '.join(forms)}")
    for name, value in forms.items():
        if name == "choice":
            structured.choice.choices.extend(value)
        else:
            setattr(structured, name, json.dumps(value) if isinstance(value, dict) else value)


def _write(part: Any, name: str, value: Any) -> None:
    if isinstance(value, list):
        getattr(part, name).extend(value)
    else:
        setattr(part, name, value)


def _put(part: Any, name: str, value: Any) -> None:
    _set(name, lambda: setattr(part, name, value))


def _set(name: str, act: Any) -> None:
    """Raises: BadRequestError: no value of this field's type."""
    try:
        act()
    except (ValueError, TypeError) as error:
        raise BadRequestError(name, str(error)) from None
