"""From keyword arguments to request messages.

Keywords are the field names of the API, flat: ``_PLACES`` says which message each belongs to. A keyword that is
None stays unset, so that the server's default holds. Only what protobuf itself cannot carry is refused here (a wrong
type, a number out of the field's range, an unknown keyword); ranges with a meaning are the server's to check, all at
once.
"""

from __future__ import annotations

import difflib
import json
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, cast

from google.protobuf.message import Message
from pagewire.v1 import cache_pb2
from pagewire.v1 import generation_pb2 as pb

from .errors import invalid_field
from .results import ChatMessage

PACKED_FROM = 128
"""Prompts of so many token ids are packed: they cost a tenth. Short ones can be read in what is sent."""

Prompt = str | Sequence[int]
Messages = Sequence[ChatMessage | Mapping[str, str]]


class GenerateOptions(TypedDict, total=False):
    """Keywords of ``generate``, ``stream`` and ``chat``; meaning, range and default of each as in docs/api.md."""

    request_id: str | None
    model: str | None
    adapter: str | None
    # prompt options
    truncate_prompt_tokens: int | None
    add_special_tokens: bool | None
    continue_final_message: bool | None
    add_generation_prompt: bool | None
    template_variables: Mapping[str, Any] | None
    # sampling
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seed: int | None
    frequency_penalty: float | None
    presence_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | None
    allowed_token_ids: Sequence[int] | None
    bad_words: Sequence[str] | None
    # stop
    max_tokens: int | None
    min_tokens: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    include_stop: bool | None
    # output
    n: int | None
    logprobs: int | None
    prompt_logprobs: int | None
    text: bool | None
    token_ids: bool | None
    prompt_token_ids: bool | None
    skip_special_tokens: bool | None
    progress_events: bool | None
    max_delay_ms: int | None
    # scheduling
    priority: int | None
    cache_salt: str | None
    bypass_prefix_cache: bool | None
    time_limit_ms: int | None
    resume_grace_ms: int | None
    # structured output: at most one
    json_schema: str | Mapping[str, Any] | None
    json_object: bool | None
    regex: str | None
    choice: Sequence[str] | None
    grammar: str | None


_PLACES: dict[str, str] = {
    **dict.fromkeys(("request_id", "model", "adapter"), ""),
    **dict.fromkeys(("truncate_prompt_tokens", "add_special_tokens", "continue_final_message"), "prompt_options"),
    **dict.fromkeys(("temperature", "top_p", "top_k", "min_p", "seed"), "sampling"),
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "repetition_penalty"), "sampling"),
    **dict.fromkeys(("logit_bias", "allowed_token_ids", "bad_words"), "sampling"),
    **dict.fromkeys(("max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "include_stop"), "stop"),
    **dict.fromkeys(("n", "logprobs", "prompt_logprobs", "text", "token_ids", "skip_special_tokens"), "output"),
    **dict.fromkeys(("progress_events", "max_delay_ms", "prompt_token_ids"), "output"),
    **dict.fromkeys(
        ("priority", "cache_salt", "bypass_prefix_cache", "time_limit_ms", "resume_grace_ms"), "scheduling"
    ),
    **dict.fromkeys(("json_schema", "json_object", "regex", "grammar"), "structured"),
}
_CHAT_ONLY = ("add_generation_prompt", "template_variables")
_STRUCTURED = ("json_schema", "json_object", "regex", "choice", "grammar")
_KEYWORDS = dict.fromkeys((*_PLACES, *_CHAT_ONLY, "choice"))
_REFUSED = (TypeError, ValueError, OverflowError, RecursionError)
"""What protobuf raises for a value that a field cannot hold."""


def text_request(prompt: Prompt, options: Mapping[str, Any]) -> pb.GenerateRequest:
    """A request that continues a text or token ids. Raises: InvalidRequestError, TypeError for an unknown keyword."""
    request = pb.GenerateRequest()
    if isinstance(prompt, str):
        _guard(lambda: setattr(request, "text", prompt), "text")
    elif isinstance(prompt, bytes):
        raise invalid_field("text", "needs a str, not bytes")
    elif not isinstance(prompt, Iterable):
        raise invalid_field("prompt", f"needs a text or token ids, has {type(prompt).__name__}")
    else:
        fill_token_ids(request.token_ids, prompt)
    for name in _CHAT_ONLY:
        if options.get(name) is not None:
            raise invalid_field(name, "only a chat takes it")
    return _fill(request, options)


def chat_request(messages: Messages, options: Mapping[str, Any]) -> pb.GenerateRequest:
    """A request that answers a conversation. Raises: InvalidRequestError, TypeError for an unknown keyword."""
    request = pb.GenerateRequest()
    fill_chat(request.chat, messages, options)
    return _fill(request, options)


def fill_chat(chat: pb.Chat, messages: Messages, options: Mapping[str, Any]) -> None:
    """Writes messages and the chat-only keywords into ``chat``."""
    if isinstance(messages, str | bytes | Mapping):
        raise invalid_field("chat.messages", f"needs a list of messages, has {type(messages).__name__}")
    chat.SetInParent()
    for i, message in enumerate(messages):
        values = message if isinstance(message, Mapping) else _said(message)
        if set(values) != {"role", "content"}:
            given = ", ".join(sorted(map(str, values))) or type(message).__name__
            raise invalid_field(f"chat.messages[{i}]", f"needs role and content, has {given}")
        added = chat.messages.add()
        set_field(added, "role", values["role"], f"chat.messages[{i}].role")
        set_field(added, "content", values["content"], f"chat.messages[{i}].content")
    if options.get("add_generation_prompt") is not None:
        set_field(chat, "add_generation_prompt", options["add_generation_prompt"], "chat.add_generation_prompt")
    variables = options.get("template_variables") or {}
    _guard(lambda: chat.template_variables.update(_as_json(variables)), "chat.template_variables")


def _said(message: Any) -> dict[str, Any]:
    """Role and content, of what has them."""
    return {name: getattr(message, name) for name in ("role", "content") if hasattr(message, name)}


def _as_json(variables: Any) -> dict[str, str]:
    """Template variables as they travel. Raises: TypeError, ValueError."""
    return {name: json.dumps(value) for name, value in dict(variables).items()}


def request(prompt: Prompt | Messages, options: Mapping[str, Any]) -> pb.GenerateRequest:
    """A request for a text, token ids or a conversation. Raises: InvalidRequestError, TypeError."""
    if _is_chat(prompt):
        return chat_request(cast(Messages, prompt), options)
    return text_request(cast(Prompt, prompt), options)


def _is_chat(prompt: Prompt | Messages) -> bool:
    return not isinstance(prompt, str | Mapping) and bool(prompt) and not isinstance(prompt[0], int)


def pin_request(prompt: Prompt | Messages, ttl_seconds: float, cache_salt: str) -> cache_pb2.PinPrefixRequest:
    """What to pin. Raises: InvalidRequestError."""
    message = cache_pb2.PinPrefixRequest(prefix=explain_prefix_request(prompt, cache_salt).prefix)
    _guard(lambda: setattr(message, "ttl_ms", int(ttl_seconds * 1000)), "ttl_ms")
    return message


def explain_prefix_request(prompt: Prompt | Messages, cache_salt: str) -> cache_pb2.ExplainPrefixRequest:
    """The question about a prompt's pages. Raises: InvalidRequestError."""
    message = cache_pb2.ExplainPrefixRequest()
    prefix = message.prefix
    if isinstance(prompt, str):
        set_field(prefix, "text", prompt, "text")
    elif _is_chat(prompt):
        fill_chat(prefix.chat, cast(Messages, prompt), {})
    else:
        fill_token_ids(prefix.token_ids, prompt)
    set_field(prefix, "cache_salt", cache_salt, "cache_salt")
    return message


def prompt_options(options: Mapping[str, Any]) -> pb.PromptOptions:
    """The prompt options among ``options``, for Tokenize."""
    message = pb.PromptOptions()
    for name, value in options.items():
        if _PLACES.get(name) == "prompt_options" and value is not None:
            set_field(message, name, value, f"prompt_options.{name}")
    return message


def _fill(request: pb.GenerateRequest, options: Mapping[str, Any]) -> pb.GenerateRequest:
    given = {name: value for name, value in options.items() if value is not None}
    if not options.keys() <= _KEYWORDS.keys():
        name = next(name for name in options if name not in _KEYWORDS)
        raise TypeError(f"unknown keyword {name!r}{nearest(name, _KEYWORDS)}")
    constraints = [name for name in _STRUCTURED if name in given]
    if len(constraints) > 1:
        raise invalid_field("structured", f"at most one of {', '.join(_STRUCTURED)}; given: {', '.join(constraints)}")
    for name, value in given.items():
        if name == "choice":
            request.structured.choice.SetInParent()  # also of an empty list, which is not to mean anything goes
            _extend(request.structured.choice, "choices", value, "structured.choice")
        elif name not in _CHAT_ONLY:
            place = _PLACES[name]
            target = getattr(request, place) if place else request
            _write(target, name, value, f"{place}.{name}" if place else name)
    return request


def _write(target: Message, name: str, value: Any, path: str) -> None:
    """Sets a scalar, list or map field."""
    if name == "stop":
        _extend(target, name, [value] if isinstance(value, str) else value, path)
    elif name == "json_schema" and isinstance(value, Mapping):
        _guard(lambda: setattr(target, name, json.dumps(value)), path)
    elif name == "logit_bias":
        _guard(lambda: getattr(target, name).update(value), path)
    elif name in ("allowed_token_ids", "bad_words", "stop_token_ids"):
        _extend(target, name, value, path)
    else:
        set_field(target, name, value, path)


def set_field(target: Message, name: str, value: Any, path: str) -> None:
    """Sets a scalar. Raises: InvalidRequestError naming ``path``."""
    try:
        setattr(target, name, value)
    except _REFUSED as error:
        raise invalid_field(path, str(error)) from None


def fill_token_ids(message: pb.TokenIds, prompt: Iterable[Any]) -> None:
    """Writes a prompt's ids, packed if they are many. Raises: InvalidRequestError."""
    message.SetInParent()
    listed = prompt
    try:
        listed = prompt if isinstance(prompt, list) else list(prompt)
        ids = array("I", listed)
    except (TypeError, ValueError, OverflowError):
        # What is wrong with them is told in protobuf's words.
        ids = array("I")
    if len(ids) < PACKED_FROM:
        _extend(message, "ids", listed, "token_ids")
        return
    if sys.byteorder == "big":
        ids.byteswap()
    message.packed_ids = ids.tobytes()


def token_ids_of(message: pb.TokenIds) -> list[int]:
    """The ids of a message, however they were written."""
    ids = array("I", message.packed_ids)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tolist() or list(message.ids)


def _extend(target: Message, name: str, values: Iterable[Any], path: str) -> None:
    if isinstance(values, str):
        raise invalid_field(path, "needs a list, not a string")
    _guard(lambda: getattr(target, name).extend(values), path)


def _guard(write: Any, path: str) -> None:
    """Runs ``write``; what protobuf refuses becomes an InvalidRequestError naming the field."""
    try:
        write()
    except _REFUSED as error:
        raise invalid_field(path, str(error)) from None


def nearest(name: str, known: Iterable[str], *, prefix: str = "") -> str:
    """``"; did you mean 'x'?"`` if a known name is close, else an empty string."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {prefix + found[0]!r}?" if found else ""
