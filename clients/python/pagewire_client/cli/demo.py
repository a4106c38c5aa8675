"""``pagewire demo``: the whole product on this machine, in a minute.

Fetches the embedded model, starts the stack on free ports, streams a chat answer, then eight completions at once
that share a long prefix, prints what each used and how fast it was, stops. Exit code 0 only if every part went
well.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass, field
from textwrap import shorten

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..aio import AsyncClient
from ..child import describe_exit
from ..results import ChatMessage, Delta, Finished, FinishReason, Summary
from ..stack import private_stack
from .failures import EXIT_FAILED
from .local import started
from .models import local_model
from .output import print_events, printable, rate

QUESTION = "What is a page table, in two sentences?"
SYSTEM = """\
You are the guide of a small museum of computing in a town by the sea. Visitors of all ages ask you questions, \
and you answer them in one or two short sentences that a twelve-year-old understands. The museum has five \
rooms. The first room shows mechanical calculators with brass wheels, and a loom that reads its patterns from \
punched cards. The second room holds a computer with vacuum tubes; it fills three walls, needs its own \
cooling, and adds five thousand numbers in a second. The third room is about memory: beads of ferrite on \
copper wires, spinning drums, magnetic tape, and the first chips. A panel there explains how an operating \
system gives each program its own numbered pages of memory, keeps a table of where each page really lies, and \
lets two programs share a page when both only read it. The fourth room is about networks: telegraph keys, \
telephone exchanges, modems that sing, and the undersea cable that lands on the beach below the town. The \
fifth room is a workshop where visitors write a small program, print it, and take it home. The museum opens at \
ten and closes at six, children enter free, and the cafe sells very good lemon cake. Be kind, be exact, never \
invent exhibits, and say so when you do not know. Now answer the visitor's question."""
QUESTIONS = (
    "What can I see in the first room?",
    "How fast is the computer with vacuum tubes?",
    "What are the ferrite beads for?",
    "Why do programs share pages?",
    "What lands on the beach below the town?",
    "What do visitors do in the workshop?",
    "When does the museum open?",
    "Is there anything to eat?",
)
MAX_TOKENS = 48


@dataclass(slots=True)
class _Row:
    """One completion as it runs."""

    question: str
    text: str = ""
    first_token_seconds: float | None = None
    finish_reason: FinishReason | None = None
    summary: Summary | None = None
    started_at: float = field(default_factory=time.monotonic)


def demo(
    model: str | None = typer.Argument(None, help="A model to use instead of the embedded one."),
    device: str = typer.Option("auto", help="auto, cuda or cpu."),
) -> None:
    """Show the whole product on this machine."""
    console = Console(highlight=False)
    path = local_model(model)
    began = time.monotonic()
    stack = private_stack(path, worker_arguments=("--device", device))
    with started(stack), stack.client() as client:
        processes = ", ".join(f"{name} (pid {pid})" for name, pid in stack.pids().items())
        console.print(f"[bold]ready[/] after {time.monotonic() - began:.1f} s on {stack.target}: {processes}\n")
        console.print(f"[bold]one chat[/]: {QUESTION}")
        messages = [ChatMessage(role="user", content=QUESTION)]
        with client.stream_chat(messages, max_tokens=80, temperature=0.0) as stream:
            print_events(stream, as_json=False, stats=True)
        console.print(f"\n[bold]{len(QUESTIONS)} completions at once[/] that share a prefix")
        rows = asyncio.run(_complete_all(stack.target, console))
    console.print(_result_table(rows))
    problems = _problems(rows) + [
        f"{name} ended with {describe_exit(code)}" for name, code in stack.exit_codes().items() if code != 0
    ]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if problems:
        raise typer.Exit(EXIT_FAILED)
    console.print("stopped cleanly")


async def _complete_all(target: str, console: Console) -> list[_Row]:
    """Runs all of them; on a terminal their texts grow side by side."""
    rows = [_Row(question) for question in QUESTIONS]
    async with AsyncClient(target) as client:
        calls = asyncio.gather(*(_complete(client, row) for row in rows))
        if console.is_terminal:
            with Live(console=console, refresh_per_second=10, get_renderable=lambda: _live(rows)):
                await calls
        else:
            await calls
            for row in rows:
                console.print(f"  {row.question} -> {_one_line(row.text)}", markup=False, soft_wrap=True)
    return rows


async def _complete(client: AsyncClient, row: _Row) -> None:
    messages = [ChatMessage(role="system", content=SYSTEM), ChatMessage(role="user", content=row.question)]
    row.started_at = time.monotonic()
    async with client.stream_chat(messages, max_tokens=MAX_TOKENS, temperature=0.0) as stream:
        async for event in stream:
            if isinstance(event, Delta):
                if row.first_token_seconds is None:
                    row.first_token_seconds = time.monotonic() - row.started_at
                row.text += event.text
            elif isinstance(event, Finished):
                row.finish_reason = event.finish_reason
            elif isinstance(event, Summary):
                row.summary = event


def _live(rows: list[_Row]) -> Group:
    table = Table("question", "answer", expand=True)
    for row in rows:
        table.add_row(Text(row.question), Text(_one_line(row.text)[-160:], style="" if row.summary else "cyan"))
    return Group(table)


def _one_line(text: str) -> str:
    return " ".join(printable(text).split())


def _result_table(rows: list[_Row]) -> Table:
    table = Table(caption="prompt, cached, output: tokens", caption_justify="left")
    table.add_column("request")
    for name in ("prompt", "cached", "output", "TTFT", "tokens/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        if row.summary is not None:
            usage, timings = row.summary.usage, row.summary.timings
            counts = (str(usage.prompt_tokens), str(usage.cached_tokens), str(usage.output_tokens))
            speed = f"{rate(usage.output_tokens, timings.decode_seconds):.1f}"
            # Cut, so that the table fits a terminal of 80 columns.
            table.add_row(
                shorten(row.question, 28, placeholder=" ..."), *counts, f"{row.first_token_seconds or 0.0:.2f} s", speed
            )
    return table


def _problems(rows: list[_Row]) -> list[str]:
    """What went wrong, if anything: an output that did not end well, or a prefix that was computed eight times."""
    ended_well = (FinishReason.STOP, FinishReason.LENGTH)
    found = [f"no good end: {row.question}" for row in rows if row.finish_reason not in ended_well or not row.summary]
    num_hits = sum(1 for row in rows if row.summary is not None and row.summary.usage.cached_tokens > 0)
    if not found and num_hits < len(rows) - 1:
        found.append(f"only {num_hits} of {len(rows)} requests found the shared prefix cached")
    return found
