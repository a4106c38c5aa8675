"""``pagewire generate`` and ``pagewire chat``."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import Annotated, Any

import typer
from typing_extensions import Unpack

from ..client import Client, Stream
from ..errors import ServerError
from ..results import ChatMessage
from . import arguments as arg
from .failures import UsageError
from .local import connection
from .output import print_events


@arg.takes_request_options
def generate(
    prompt: Annotated[str, typer.Argument(help="The text to continue; - reads it from stdin.")],
    **options: Unpack[arg.RequestOptions],
) -> None:
    """Continue a text, streamed to the terminal."""
    text = sys.stdin.read() if prompt == "-" else prompt
    with _connection(options) as client:
        _show(client.stream(text, timeout=options["timeout"], **_keywords(options)), options)


@arg.takes_request_options
def chat(
    message: Annotated[str | None, typer.Argument(help="What to say; without it, a conversation.")] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    **options: Unpack[arg.RequestOptions],
) -> None:
    """Answer a message, or hold a conversation, streamed to the terminal."""
    if message is None and not sys.stdin.isatty():
        message = sys.stdin.read().strip()
        if not message:
            raise UsageError("no message: give one, or write it to stdin")
    history = [ChatMessage(role="system", content=system)] if system else []
    with _connection(options) as client:
        if message is None:
            _converse(client, history, options)
        else:
            _answer(client, [*history, ChatMessage(role="user", content=message)], options)


def _converse(client: Client, history: list[ChatMessage], options: arg.RequestOptions) -> None:
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
            answer = _answer(client, asked, options)
        except KeyboardInterrupt:
            print(file=sys.stderr)
            continue
        except ServerError as error:
            print(f"error: {error}", file=sys.stderr)
            continue
        history[:] = [*asked, ChatMessage(role="assistant", content=answer)]


def _answer(client: Client, messages: list[ChatMessage], options: arg.RequestOptions) -> str:
    return _show(client.stream_chat(messages, timeout=options["timeout"], **_keywords(options)), options)


def _show(stream: Stream, options: arg.RequestOptions) -> str:
    with stream:
        return print_events(stream, as_json=options["json"], stats=options["stats"])


def _connection(options: arg.RequestOptions) -> AbstractContextManager[Client]:
    return connection(options["target"], local=options["local"], model=options["model"])


_NOT_IN_REQUEST = ("target", "json", "local", "timeout", "stats")


def _keywords(given: arg.RequestOptions) -> dict[str, Any]:
    """The request's keywords among a command's options; what was not given stays unset."""
    left_out = (*_NOT_IN_REQUEST, "model") if given["local"] else _NOT_IN_REQUEST
    options: dict[str, Any] = {name: value for name, value in given.items() if name not in left_out}
    options["logit_bias"] = dict(map(_bias, given["logit_bias"] or [])) or None
    # A switch that is off and an empty list were not given; 0 was (it makes sampling greedy).
    return {name: value for name, value in options.items() if value is not None and value is not False and value != []}


def _bias(word: str) -> tuple[int, float]:
    """Raises: UsageError."""
    token_id, _, bias = word.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError:
        raise UsageError(f"--logit-bias {word}: must be ID=BIAS, for example 15=-2.5") from None
