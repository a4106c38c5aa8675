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


def chat_message(body: ChatBody) -> generation_pb2.GenerateRequest:
    """Raises: BadRequestError."""
    message = _message(body, body.limit)
    for each in body.messages:
        message.chat.messages.add(role=each.role, content=each.text)
    variables = dict(body.chat_template_kwargs or {})
    if body.tools and body.tool_choice != "none":
        variables["tools"] = body.tools
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
    form = body.response_format
    if form is not None and form.type == "json_object":
        message.structured.json_object = True
    elif form is not None and form.json_schema is not None:
        message.structured.json_schema = json.dumps(form.json_schema.content)
    return message


def _put(part: Any, name: str, value: Any) -> None:
    _set(name, lambda: setattr(part, name, value))


def _set(name: str, act: Any) -> None:
    """Raises: BadRequestError: no value of this field's type."""
    try:
        act()
    except (ValueError, TypeError) as error:
        raise BadRequestError(name, str(error)) from None
