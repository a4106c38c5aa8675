"""`python -m benchmarks.arrivals`: what it costs to bring requests in, a request, in each process.

A real scheduler with one front, behind it a scripted worker that answers at once. Many requests of token ids come at
once through `Client.run_many`, or one after the other, each for one output token or some; no page of them is cached but
what they share. What counts is processor time, of all threads: other programs may share the machine. It holds
everything a request needs to its end, its answer included; the scheduler's holds the steps it was in. Of the time that
passes, what nothing is computed in: until the worker has the first plan, and from its last result to the end.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psutil
from pagewire_client import Client, ServerError
from pagewire_client.options import text_request

from benchmarks.front import service

WARM_UP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """``requests`` at once, of ``shared`` ids and ``own`` ones, for some tokens each; so often."""

    name: str
    requests: int
    shared: int
    own: int
    tokens: int = 1
    step_seconds: float = 0.0
    repeats: int


CASES = (
    Case(name="64 of 2112", requests=64, shared=2048, own=64, repeats=30),
    Case(name="64 of 512", requests=64, shared=0, own=512, repeats=30),
    Case(name="1 of 512", requests=1, shared=0, own=512, repeats=200),
    Case(name="64 to 64", requests=64, shared=2048, own=64, tokens=64, step_seconds=0.004, repeats=30),
)


def batches(case: Case) -> Iterator[Sequence[Sequence[int]]]:
    """Fresh prompts for each repetition."""
    draw = random.Random(1)
    for _ in range(WARM_UP + case.repeats):
        shared = [draw.randrange(256) for _ in range(case.shared)]
        yield [shared + [draw.randrange(256) for _ in range(case.own)] for _ in range(case.requests)]


def cpu_seconds(process: psutil.Process) -> float:
    """Of all threads a process has had, by its own clock (clock_getcpuclockid): ticks of 10 ms are too coarse."""
    return time.clock_gettime((~process.pid << 3) | 2)


def ask(client: Client, prompts: Sequence[Sequence[int]], num_tokens: int) -> None:
    """All of them, to their ends; as LLM.generate asks."""
    options = {
        "max_tokens": num_tokens,
        "ignore_eos": True,
        "temperature": 0.0,
        "token_ids": True,
        "max_delay_ms": 1000,
    }
    requests = (text_request(prompt, {**options, "request_id": str(place)}) for place, prompt in enumerate(prompts))
    for _, outcome in client.run_many(requests, at_hand=True):
        if isinstance(outcome, ServerError):
            raise outcome


def measure(case: Case) -> dict[str, str | float]:
    """Microseconds a request, and milliseconds before the first plan and after the last result; medians and minima over
    the repetitions."""
    spent: dict[str, list[float]] = {"client": [], "front": [], "scheduler": [], "wall": []}
    idle: dict[str, list[float]] = {"before_plan": [], "after_result": []}
    with service(case.step_seconds) as running, Client(running.target) as client:
        watched = {"client": psutil.Process(), "front": running.front, "scheduler": running.scheduler}
        for prompts in batches(case):
            time.sleep(0.02)
            before = {name: cpu_seconds(process) for name, process in watched.items()}
            running.step_times()
            began = time.monotonic()
            ask(client, prompts, case.tokens)
            ended = time.monotonic()
            spent["wall"].append(ended - began)
            for name, process in watched.items():
                spent[name].append(cpu_seconds(process) - before[name])
            steps = running.step_times()
            idle["before_plan"].append(steps[0] - began)
            idle["after_result"].append(ended - steps[-1])
    row: dict[str, str | float] = {"case": case.name}
    for name, values in spent.items():
        row[f"{name}_us"] = round(statistics.median(values[WARM_UP:]) / case.requests * 1e6, 1)
        row[f"{name}_least_us"] = round(min(values[WARM_UP:]) / case.requests * 1e6, 1)
    for name, values in idle.items():
        row[f"{name}_ms"] = round(statistics.median(values[WARM_UP:]) * 1e3, 2)
        row[f"{name}_least_ms"] = round(min(values[WARM_UP:]) * 1e3, 2)
    return row


def main() -> int:
    """Runs the cases whose names begin with one of the arguments; prints one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="beginnings of names; default: all")
    given = parser.parse_args()
    for case in CASES:
        if not given.cases or case.name.startswith(tuple(given.cases)):
            print(json.dumps(measure(case)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
