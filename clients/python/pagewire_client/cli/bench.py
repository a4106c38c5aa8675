"""``pagewire bench``: the speed of a server as its callers see it, by requests of random token ids.

Times are taken here, at the client, from the moment a request is sent. What travels together counts as one: the time
between tokens is the time between messages with text, and a token's mean time comes from the whole answer. Every prompt
is another, so that none finds another's pages. One request goes first and is not counted.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from ..aio import AsyncClient
from ..errors import ServerError
from ..results import Delta, Summary
from . import arguments as arg
from .access import open_async_client
from .failures import EXIT_FAILED, error_line
from .output import print_json

SHARES = (0.5, 0.9, 0.99)
Length = typer.Option(min=1, max=1 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What is asked of the server. A rate of 0 sends each request as soon as fewer than ``max_concurrency`` run."""

    num_prompts: int
    input_len: int
    output_len: int
    max_concurrency: int
    request_rate: float
    seed: int


@dataclass(slots=True, kw_only=True)
class Measured:
    """One request: when it was sent, when text came, and how many tokens in all. ``error`` if it failed."""

    sent_at: float
    came_at: list[float] = field(default_factory=list)
    output_tokens: int = 0
    error: ServerError | None = None

    @property
    def first(self) -> float:
        """Seconds to the first token."""
        return self.came_at[0] - self.sent_at

    @property
    def whole(self) -> float:
        """Seconds to the last."""
        return self.came_at[-1] - self.sent_at


def bench(
    target: arg.Target = arg.TARGET_DEFAULT,
    json: arg.Json = False,
    num_prompts: Annotated[int, typer.Option(min=1, help="Requests.")] = 100,
    input_len: Annotated[int, Length] = 256,
    output_len: Annotated[int, Length] = 64,
    max_concurrency: Annotated[int, typer.Option(min=1, max=1000, help="Most requests at once.")] = 16,
    request_rate: Annotated[
        float, typer.Option(min=0.0, help="Requests a second, at random times (Poisson); 0: as fast as answers come.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Of prompts and times.")] = 0,
) -> None:
    """Measure a server: random prompts of --input-len tokens, answers of --output-len."""
    demand = Demand(
        num_prompts=num_prompts,
        input_len=input_len,
        output_len=output_len,
        max_concurrency=max_concurrency,
        request_rate=request_rate,
        seed=seed,
    )
    measured, seconds = asyncio.run(_measure(target, demand))
    report = report_of(measured, seconds, input_len)
    if json:
        print_json({}, **report)
    else:
        _print(report)
    failed = next((each.error for each in measured if each.error is not None), None)
    if failed is not None:
        Console(stderr=True, highlight=False, markup=False).print(error_line(failed))
        raise typer.Exit(EXIT_FAILED)


async def _measure(target: str, demand: Demand) -> tuple[list[Measured], float]:
    """Raises: ServerError if the first request, which is not counted, fails."""
    draw = random.Random(demand.seed)
    async with open_async_client(target) as client:
        vocab_size = (await client.model()).vocab_size
        prompts = [draw.choices(range(vocab_size), k=demand.input_len) for _ in range(demand.num_prompts + 1)]
        warm_up = await _ask(client, prompts.pop(), demand.output_len)
        if warm_up.error is not None:
            raise warm_up.error
        rows = asyncio.Semaphore(demand.max_concurrency)
        began = time.perf_counter()
        tasks = [
            asyncio.create_task(_in_turn(rows, client, each, demand)) async for each in _paced(prompts, demand, draw)
        ]
        return list(await asyncio.gather(*tasks)), time.perf_counter() - began


async def _paced(prompts: Sequence[list[int]], demand: Demand, draw: random.Random) -> AsyncIterator[list[int]]:
    due = time.perf_counter()
    for prompt in prompts:
        if demand.request_rate:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            due += draw.expovariate(demand.request_rate)
        yield prompt


async def _in_turn(rows: asyncio.Semaphore, client: AsyncClient, prompt: list[int], demand: Demand) -> Measured:
    async with rows:
        return await _ask(client, prompt, demand.output_len)


async def _ask(client: AsyncClient, prompt: list[int], output_len: int) -> Measured:
    measured = Measured(sent_at=time.perf_counter())
    try:
        async with client.stream(prompt, max_tokens=output_len, ignore_eos=True, token_ids=True) as events:
            async for event in events:
                if isinstance(event, Delta) and event.token_ids:
                    measured.came_at.append(time.perf_counter())
                elif isinstance(event, Summary):
                    measured.output_tokens = event.usage.output_tokens
    except ServerError as error:
        measured.error = error
    return measured


def report_of(measured: Sequence[Measured], seconds: float, input_len: int) -> dict[str, Any]:
    """Rates over all, and of each time its mean and quantiles in milliseconds, of the requests that succeeded."""
    done = [each for each in measured if each.error is None and each.came_at]
    output_tokens = sum(each.output_tokens for each in done)
    times = {
        "ttft_ms": [each.first for each in done],
        "tpot_ms": [(each.whole - each.first) / (each.output_tokens - 1) for each in done if each.output_tokens > 1],
        "itl_ms": [late - soon for each in done for soon, late in pairwise(each.came_at)],
        "e2el_ms": [each.whole for each in done],
    }
    return {
        "completed": len(done),
        "failed": len(measured) - len(done),
        "duration_seconds": seconds,
        "request_throughput": len(done) / seconds,
        "output_throughput": output_tokens / seconds,
        "total_token_throughput": (output_tokens + input_len * len(done)) / seconds,
        **{name: _spread(values) for name, values in times.items()},
    }


def _spread(seconds: list[float]) -> dict[str, float] | None:
    """Mean and quantiles (nearest rank) in milliseconds; None of nothing."""
    if not seconds:
        return None
    ordered = sorted(each * 1000 for each in seconds)
    quantiles = {f"p{share * 100:.0f}": ordered[round(share * (len(ordered) - 1))] for share in SHARES}
    return {"mean": sum(ordered) / len(ordered), **quantiles}


_ROWS = {
    "ttft_ms": "first token",
    "tpot_ms": "a token, behind the first",
    "itl_ms": "between messages",
    "e2el_ms": "whole answer",
}


def _print(report: dict[str, Any]) -> None:
    print(f"{report['completed']} requests in {report['duration_seconds']:.2f} s, {report['failed']} failed")
    print(
        f"{report['request_throughput']:.2f} requests/s, {report['output_throughput']:.1f} output tokens/s, "
        f"{report['total_token_throughput']:.1f} tokens/s with prompts"
    )
    table = Table("ms", "mean", *(f"p{share * 100:.0f}" for share in SHARES), box=box.SIMPLE)
    for name, label in _ROWS.items():
        spread = report[name] or {}
        table.add_row(label, *(f"{value:.1f}" for value in spread.values()))
    Console(highlight=False).print(table)
