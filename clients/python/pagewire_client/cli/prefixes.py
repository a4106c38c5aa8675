"""``pagewire quote``, ``pin``, ``pins`` and ``unpin``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ..results import Pin
from . import arguments as arg
from .access import open_client
from .output import print_json

Prompt = Annotated[str, typer.Argument(help="A text; - reads it from stdin.")]
Salt = Annotated[str, typer.Option("--cache-salt", help="As requests give it.")]


def quote(
    prompt: Prompt, target: arg.Target = arg.TARGET_DEFAULT, json: arg.Json = False, cache_salt: Salt = ""
) -> None:
    """Predict what a request would meet now: cached tokens, wait, first token. Nothing runs."""
    with open_client(target) as client:
        found = client.quote(_text(prompt), cache_salt=cache_salt)
    if json:
        print_json(found)
        return
    print(f"{found.cached_tokens} of {found.prompt_tokens} tokens are cached")
    print(f"begins in {_seconds(found.queue_seconds)}, first token in {_seconds(found.first_token_seconds)}")


def pin(
    prompt: Prompt,
    ttl: Annotated[float, typer.Option("--ttl", min=0.001, metavar="SECONDS", help="How long.")],
    target: arg.Target = arg.TARGET_DEFAULT,
    json: arg.Json = False,
    cache_salt: Salt = "",
) -> None:
    """Keep the pages of a text cached; they are computed if they are not there."""
    with open_client(target) as client:
        _print(client.pin_prefix(_text(prompt), ttl_seconds=ttl, cache_salt=cache_salt), json)


def pins(target: arg.Target = arg.TARGET_DEFAULT, json: arg.Json = False) -> None:
    """List the pins."""
    with open_client(target) as client:
        for each in client.pins():
            _print(each, json)


def unpin(
    pin_id: Annotated[str, typer.Argument(help="As `pin` printed it.")], target: arg.Target = arg.TARGET_DEFAULT
) -> None:
    """End a pin."""
    with open_client(target) as client:
        client.unpin_prefix(pin_id)


def _print(found: Pin, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        pages = "1 page" if found.num_pages == 1 else f"{found.num_pages} pages"
        print(f"{found.pin_id}  {pages}  {found.ttl_seconds:.0f} s left")


def _text(prompt: str) -> str:
    return sys.stdin.read() if prompt == "-" else prompt


def _seconds(seconds: float | None) -> str:
    return "a time not known" if seconds is None else f"{seconds:.3f} s"
