"""``pagewire generate`` and ``pagewire chat``."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from ..client import Client, Stream
from ..errors import ServerError
from ..results import ChatMessage
from . import arguments as arg
from .failures import UsageError
from .local import connection
from .output import print_events


def generate(
    prompt: Annotated[str, typer.Argument(help="The text to continue; - reads it from stdin.")],
    target: arg.Target = arg.TARGET_DEFAULT,
    json: arg.Json = False,
    local: arg.Local = False,
    model: arg.ModelName = None,
    timeout: arg.Timeout = None,
    stats: arg.Stats = None,
    temperature: arg.Temperature = None,
    top_p: arg.TopP = None,
    top_k: arg.TopK = None,
    min_p: arg.MinP = None,
    seed: arg.Seed = None,
    frequency_penalty: arg.FrequencyPenalty = None,
    presence_penalty: arg.PresencePenalty = None,
    repetition_penalty: arg.RepetitionPenalty = None,
    max_tokens: arg.MaxTokens = arg.MAX_TOKENS_DEFAULT,
    min_tokens: arg.MinTokens = None,
    stop: arg.Stop = None,
    stop_token_ids: arg.StopTokenIds = None,
    ignore_eos: arg.IgnoreEos = False,
    n: arg.Outputs = None,
    token_ids: arg.TokenIds = False,
    progress_events: arg.Progress = False,
    priority: arg.Priority = None,
    cache_salt: arg.CacheSalt = None,
) -> None:
    """Continue a text, streamed to the terminal."""
    options = _options(dict(locals()), model_in_request=not local)
    text = sys.stdin.read() if prompt == "-" else prompt
    with connection(target, local=local, model=model) as client:
        _show(client.stream(text, timeout=timeout, **options), as_json=json, stats=stats)


def chat(
    message: Annotated[str | None, typer.Argument(help="What to say; without it, a conversation.")] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    target: arg.Target = arg.TARGET_DEFAULT,
    json: arg.Json = False,
    local: arg.Local = False,
    model: arg.ModelName = None,
    timeout: arg.Timeout = None,
    stats: arg.Stats = None,
    temperature: arg.Temperature = None,
    top_p: arg.TopP = None,
    top_k: arg.TopK = None,
    min_p: arg.MinP = None,
    seed: arg.Seed = None,
    frequency_penalty: arg.FrequencyPenalty = None,
    presence_penalty: arg.PresencePenalty = None,
    repetition_penalty: arg.RepetitionPenalty = None,
    max_tokens: arg.MaxTokens = arg.MAX_TOKENS_DEFAULT,
    min_tokens: arg.MinTokens = None,
    stop: arg.Stop = None,
    stop_token_ids: arg.StopTokenIds = None,
    ignore_eos: arg.IgnoreEos = False,
    n: arg.Outputs = None,
    token_ids: arg.TokenIds = False,
    progress_events: arg.Progress = False,
    priority: arg.Priority = None,
    cache_salt: arg.CacheSalt = None,
) -> None:
    """Answer a message, or hold a conversation, streamed to the terminal."""
    options = _options(dict(locals()), model_in_request=not local)
    if message is None and not sys.stdin.isatty():
        message = sys.stdin.read().strip()
        if not message:
            raise UsageError("no message: give one, or write it to stdin")
    history = [ChatMessage(role="system", content=system)] if system else []
    with connection(target, local=local, model=model) as client:
        if message is None:
            _converse(client, history, options, timeout=timeout, as_json=json, stats=stats)
        else:
            history.append(ChatMessage(role="user", content=message))
            _show(client.stream_chat(history, timeout=timeout, **options), as_json=json, stats=stats)


def _converse(
    client: Client,
    history: list[ChatMessage],
    options: dict[str, Any],
    *,
    timeout: float | None,
    as_json: bool,
    stats: bool | None,
) -> None:
    """Asks and answers until Ctrl-D. Ctrl-C ends an answer; at the prompt it ends the conversation."""
    print("Ctrl-D ends the conversation, Ctrl-C an answer.", file=sys.stderr)
    while True:
        try:
            said = input("> ").strip()
        except EOFError:
            return
        if not said:
            continue
        asked = [*history, ChatMessage(role="user", content=said)]
        try:
            answer = _show(client.stream_chat(asked, timeout=timeout, **options), as_json=as_json, stats=stats)
        except KeyboardInterrupt:
            print(file=sys.stderr)
            continue
        except ServerError as error:
            print(f"error: {error}", file=sys.stderr)
            continue
        history[:] = [*asked, ChatMessage(role="assistant", content=answer)]


def _show(stream: Stream, *, as_json: bool, stats: bool | None) -> str:
    with stream:
        return print_events(stream, as_json=as_json, stats=stats)


_NOT_IN_REQUEST = ("prompt", "message", "system", "target", "json", "local", "timeout", "stats")


def _options(given: dict[str, Any], *, model_in_request: bool) -> dict[str, Any]:
    """The request's keywords among a command's parameters; what was not given stays unset."""
    options = {name: value for name, value in given.items() if name not in _NOT_IN_REQUEST}
    if not model_in_request:
        del options["model"]
    # A switch that is off and an empty list were not given; 0 was (it makes sampling greedy).
    return {name: value for name, value in options.items() if value is not None and value is not False and value != []}
