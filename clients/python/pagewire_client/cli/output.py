"""What commands print: JSON lines, streamed text, tables. Text goes to stdout, everything about it to stderr.

Invariant: what a model wrote cannot steer a terminal: control characters other than newline and tab are left out there.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from rich.console import Console
from tqdm import tqdm

from ..client import Stream
from ..fetch import Progress
from ..results import Delta, Event, Finished, Summary

_CONTROL = {c: None for c in (*range(32), *range(127, 160)) if c not in (9, 10)}


def plain(value: Any) -> Any:
    """A result as what JSON knows."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value


def print_json(value: Any, **more: Any) -> None:
    """One JSON object as one line; ``more`` comes first."""
    print(json.dumps({**more, **plain(value)}, ensure_ascii=False), flush=True)


def printable(text: str) -> str:
    """Text that cannot steer a terminal."""
    return text.translate(_CONTROL)


def print_events(stream: Stream, *, as_json: bool, stats: bool | None) -> str:
    """Prints a stream as it comes; returns the text of output 0."""
    texts: dict[int, str] = {}
    on_terminal = sys.stdout.isatty()
    shown: int | None = None
    for event in stream:
        if isinstance(event, Delta):
            texts[event.index] = texts.get(event.index, "") + event.text
        if as_json:
            print_json(event, event=event_name(event), request_id=stream.request_id)
        elif isinstance(event, Delta) and event.text:
            if event.index != shown and (shown is not None or event.index != 0):
                # Outputs of one request interleave; each piece says whose it is.
                sys.stdout.write(f"\n[{event.index}] ")
            shown = event.index
            sys.stdout.write(printable(event.text) if on_terminal else event.text)
            sys.stdout.flush()
        elif isinstance(event, Summary):
            sys.stdout.write("\n")
            sys.stdout.flush()
        if not as_json and (sys.stderr.isatty() if stats is None else stats):
            _print_ending(event, stream.request_id)
    return texts.get(0, "")


def event_name(event: Event) -> str:
    """As the API calls it: `prompt_logprobs`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(event).__name__).lower()


def _print_ending(event: Event, request_id: str) -> None:
    if isinstance(event, Finished) and event.index > 0:
        print(f"\n[{event.index}: {event.finish_reason.value}]", file=sys.stderr)
    if isinstance(event, Summary):
        print(f"{describe(event)}, request {request_id}", file=sys.stderr)


def describe(summary: Summary) -> str:
    """Usage and speed in one line."""
    usage, timings = summary.usage, summary.timings
    speed = f", {rate(usage.output_tokens, timings.decode_seconds):.1f} tokens/s" if usage.output_tokens > 1 else ""
    return (
        f"{usage.prompt_tokens} prompt tokens ({usage.cached_tokens} cached), {usage.output_tokens} output tokens, "
        f"first token after {timings.first_token_seconds:.2f} s{speed}"
    )


def rate(num_tokens: int, decode_seconds: float) -> float:
    """Tokens a second of one output, whose first token decode does not count."""
    return (num_tokens - 1) / decode_seconds if decode_seconds > 0 and num_tokens > 1 else 0.0


def stderr_console() -> Console:
    """A console for everything that is not the answer."""
    return Console(stderr=True, highlight=False)


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Bars on stderr, one for each thing that is going on."""
    bars: dict[str, tqdm[Any]] = {}

    def show(what: str, done: int, total: int) -> None:
        if what not in bars:
            bars[what] = tqdm(total=total, desc=what, unit="B", unit_scale=True, mininterval=0.2, file=sys.stderr)
        bars[what].update(done - bars[what].n)

    try:
        yield show
    finally:
        for bar in bars.values():
            bar.close()
