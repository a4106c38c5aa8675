"""``pagewire top``: what a server does now, as a table that keeps up with it.

Everything comes from GetLoad and ListWorkers, which only count: rates and latencies are differences between two looks.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import Annotated

import typer
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ..admin import AdminClient, Worker
from ..results import Distribution, Load
from . import arguments as arg
from .access import open_client

_BAR_CELLS = 24
_SPARKS = " ▁▂▃▄▅▆▇█"
_HISTORY = 60
_SECONDS_SHOWN = 10
"""Rates and latencies are those of about so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a server said at one moment."""

    at: float
    load: Load
    workers: tuple[Worker, ...]


def look(client: AdminClient) -> Look:
    """Asks a server."""
    return Look(at=time.monotonic(), load=client.load(timeout=5.0), workers=client.workers(timeout=5.0))


def top(
    target: arg.InternalTarget = arg.INTERNAL_TARGET_DEFAULT,
    interval: Annotated[float, typer.Option(min=0.2, max=60, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one frame, of what happened in one interval.")] = False,
) -> None:
    """Show requests, tokens a second, latencies, pages and workers of a server, until Ctrl-C."""
    console = Console(highlight=False)
    with open_client(target, is_internal=True) as client:
        looks = deque([look(client)], maxlen=max(2, int(_SECONDS_SHOWN / interval) + 1))
        if once:
            time.sleep(interval)
            looks.append(look(client))
            console.print(frame(target, looks[0], looks[-1], deque()))
            return
        if not sys.stdout.isatty():
            print("top needs a terminal; --once prints one frame", file=sys.stderr)
            raise typer.Exit(2)
        with contextlib.suppress(KeyboardInterrupt):  # the way to end it
            _follow(client, target, looks, console, interval)


def _follow(client: AdminClient, target: str, looks: deque[Look], console: Console, interval: float) -> None:
    """Draws a frame after each interval, for ever. ``looks`` begins with one."""
    rates: deque[float] = deque(maxlen=_HISTORY)
    with Live(frame(target, looks[0], looks[-1], rates), console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            looks.append(look(client))
            rates.append(_rate(looks[-2], looks[-1], "num_output_tokens"))
            live.update(frame(target, looks[0], looks[-1], rates), refresh=True)


def frame(target: str, before: Look, now: Look, rates: deque[float]) -> Group:
    """One picture: of the moment ``now``, and of what happened since ``before``."""
    return Group(
        Panel(_overview(before, now, rates), title=f"pagewire top - {target}", box=box.ROUNDED),
        _workers(before, now),
    )


def _overview(before: Look, now: Look, rates: deque[float]) -> Table:
    load, old = now.load, before.load
    table = Table.grid(padding=(0, 3))
    hits, asked = load.num_hit_pages - old.num_hit_pages, load.num_asked_pages - old.num_asked_pages
    computed = max(0.0, _rate(before, now, "num_computed_tokens") - _rate(before, now, "num_output_tokens"))
    rows = (
        ("requests", f"{load.num_requests_running} running  {load.num_requests_waiting} waiting"),
        ("output tokens", Text(f"{_rate(before, now, 'num_output_tokens'):,.0f}/s  ") + Text(_spark(rates), "green")),
        (
            "prompt tokens",
            f"{computed:,.0f}/s computed  {_rate(before, now, 'num_cached_tokens'):,.0f}/s from the cache",
        ),
        ("first token", _latency(old.first_token_seconds, load.first_token_seconds)),
        ("between tokens", _latency(old.inter_token_seconds, load.inter_token_seconds)),
        ("pages held", _bar(load.num_held_pages, load.num_pages) + Text(f"  {load.num_cached_pages} cached")),
        ("prefix hits", f"{_share(hits, asked)} now  {_share(load.num_hit_pages, load.num_asked_pages)} since start"),
        ("steps", f"{_rate(before, now, 'num_steps'):,.0f}/s"),
        ("lost work", f"{load.num_preemptions} preemptions  {load.num_wasted_tokens} tokens wasted"),
    )
    for name, value in rows:
        table.add_row(Text(name, "bold"), value)
    return table


def _workers(before: Look, now: Look) -> Table:
    table = Table(box=box.SIMPLE_HEAD, expand=True)
    for name, side in (("worker", "left"), ("device", "left"), ("running", "right"), ("steps/s", "right")):
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    table.add_column("pages held")
    table.add_column("cached", justify="right")
    known = {worker.worker_id: worker for worker in before.workers}
    seconds = max(now.at - before.at, 1e-9)
    for worker in now.workers:
        old = known.get(worker.worker_id)
        steps = (worker.num_steps - (old.num_steps if old else 0)) / seconds
        table.add_row(
            worker.worker_id,
            worker.device,
            str(worker.num_requests_running),
            f"{steps:,.0f}",
            _bar(worker.num_held_pages, worker.num_pages),
            str(worker.num_cached_pages),
        )
    if not now.workers:
        table.add_row(Text("no worker has joined", "dim"))
    return table


def quantile(before: Distribution, now: Distribution, share: float) -> float | None:
    """The value below which this share of what came in between lies, interpolated in its part; None: nothing came."""
    old = before.counts or (0,) * len(now.counts)
    counts = [new - had for new, had in zip(now.counts, old, strict=True)]
    wanted, below = share * sum(counts), 0
    for place, count in enumerate(counts):
        if count and below + count >= wanted:
            lower = now.bounds[place - 1] if place else 0.0
            upper = now.bounds[place] if place < len(now.bounds) else lower
            return lower + (upper - lower) * (wanted - below) / count
        below += count
    return None


def _latency(before: Distribution, now: Distribution) -> str:
    middle, high = quantile(before, now, 0.5), quantile(before, now, 0.99)
    return "-" if middle is None or high is None else f"p50 {middle * 1000:,.1f} ms  p99 {high * 1000:,.1f} ms"


def _rate(before: Look, now: Look, name: str) -> float:
    grown = getattr(now.load, name) - getattr(before.load, name)
    return max(0.0, float(grown) / max(now.at - before.at, 1e-9))


def _bar(part: int, whole: int) -> Text:
    share = part / whole if whole else 0.0
    cells = round(share * _BAR_CELLS)
    color = "green" if share < 0.7 else "yellow" if share < 0.9 else "red"
    return Text("█" * cells, color) + Text("░" * (_BAR_CELLS - cells), "dim") + Text(f" {share:4.0%} of {whole}")


def _spark(rates: deque[float]) -> str:
    most = max(rates, default=0.0) or 1.0
    return "".join(_SPARKS[round(rate / most * (len(_SPARKS) - 1))] for rate in rates)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"
