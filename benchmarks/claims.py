"""`python -m benchmarks.claims`: what users of such servers expect, measured end to end; JSON, a line a claim.

    prefix    time to the first token of requests that share a system prompt of 500 tokens, the later ones beside the
              first (the embedded model on the CPU); aim: a quarter at most
    caching   processor seconds of the whole stack with the prefix cache and without it, where no two prompts share
              anything (the embedded model on the CPU); aim: 1 % more at most
    structured  median gap between the tokens of four plain streams beside four others that have a form (JSON by a
              schema), and beside four that have none (the embedded model on the CPU); aim: 1.05 at most
    rows      output tokens a second with 1,024 rows beside 256 (a scripted worker whose steps take 400 and 100 ms, so
              that both could give the same number of tokens); aim: 0.98 at least

With `--shape qwen3-0.6b` prefix, structured and rows are measured on a GPU with dummy weights of that shape.

Pairs alternate (A B, B A, ...); the figure is the median of the pairs' ratios, its spread the least and the greatest.
"""

import argparse
import itertools
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from pagewire.v1 import generation_pb2 as pb
from pagewire_client import Client, Delta, PagewireError
from pagewire_client.fetch import fetch_embedded
from pagewire_client.stack import LocalStack, private_stack

from benchmarks.front import service
from benchmarks.gpu_shapes import CONFIGS, write_model

SYSTEM_TOKENS, OWN_TOKENS = 500, 20
VOCABULARY = 49_152
ROWS_TOKENS = 72
TOY_LETTERS = range(97, 123)
GPU_ARGUMENTS = (
    *("--device", "cuda", "--load-format", "dummy"),
    *("--gpu-memory-utilization", "0.4", "--max-model-len", "2048"),
)


def stack_of(shape: str | None, *worker_arguments: str) -> LocalStack:
    """The embedded model on the CPU, or dummy weights of ``shape`` on a GPU; in bfloat16."""
    if shape is None:
        return private_stack(fetch_embedded(), worker_arguments=("--dtype", "bfloat16", *worker_arguments))
    model = write_model(shape, Path(tempfile.gettempdir()) / "pagewire-bench" / "claims")
    arguments = ("--dtype", "bfloat16", *GPU_ARGUMENTS, *worker_arguments)
    return private_stack(str(model), worker_arguments=arguments)


def paired(first: Callable[[], float], second: Callable[[], float], num_pairs: int) -> list[float]:
    """first / second of each pair; who goes first alternates."""
    ratios = []
    for number in range(num_pairs):
        if number % 2 == 0:
            one, other = first(), second()
        else:
            other, one = second(), first()
        ratios.append(one / other)
    return ratios


def row(claim: str, ratios: Sequence[float], aim: str) -> dict[str, object]:
    ratios = sorted(round(ratio, 4) for ratio in ratios)
    return {"claim": claim, "ratio": statistics.median(ratios), "spread": [ratios[0], ratios[-1]], "aim": aim}


def prefix(num_pairs: int, shape: str | None = None) -> dict[str, object]:
    """Each pair is a new system prompt: its first request, then the median of seven more."""
    chance = random.Random(0)

    def ids(count: int) -> list[int]:
        return [chance.randrange(100, VOCABULARY) for _ in range(count)]

    def first_token(client: Client, prompt: list[int]) -> float:
        start = time.perf_counter()
        with client.stream(prompt, max_tokens=2, temperature=0.0, ignore_eos=True) as stream:
            next(iter(stream))
            return time.perf_counter() - start

    ratios = []
    with stack_of(shape) as stack, Client(stack.target) as client:
        first_token(client, ids(SYSTEM_TOKENS + OWN_TOKENS))
        for _ in range(num_pairs):
            system = ids(SYSTEM_TOKENS)
            cold = first_token(client, system + ids(OWN_TOKENS))
            warm = statistics.median(first_token(client, system + ids(OWN_TOKENS)) for _ in range(7))
            ratios.append(warm / cold)
    return row("prefix", ratios, "<= 0.25")


def caching(num_pairs: int, _shape: str | None = None) -> dict[str, object]:
    """32 requests of 256 tokens in and 32 out at once, other tokens each time; two stacks that take turns."""
    chance = random.Random(1)
    arguments = ("--dtype", "bfloat16")
    stacks = [
        private_stack(fetch_embedded(), scheduler_arguments=[flag], worker_arguments=arguments)
        for flag in ("--enable-prefix-caching", "--no-enable-prefix-caching")
    ]

    def cpu_seconds(stack: LocalStack) -> float:
        prompts = [[chance.randrange(100, VOCABULARY) for _ in range(256)] for _ in range(32)]
        before = _processor_seconds(stack)
        with Client(stack.target) as client:
            run_all(client, prompts, 32)
        return _processor_seconds(stack) - before

    with stacks[0] as cached, stacks[1] as plain:
        for stack in (cached, plain):
            cpu_seconds(stack)
        ratios = paired(lambda: cpu_seconds(cached), lambda: cpu_seconds(plain), num_pairs)
    return row("caching", ratios, "<= 1.01")


def _processor_seconds(stack: LocalStack) -> float:
    roots = [psutil.Process(pid) for pid in stack.pids().values()]
    processes = {process.pid: process for root in roots for process in (root, *root.children(recursive=True))}
    return sum(sum(process.cpu_times()[:2]) for process in processes.values())


def structured(num_pairs: int, shape: str | None = None) -> dict[str, object]:
    """Eight streams of 32 tokens in and 64 out; other prompts each time."""
    chance = random.Random(2)
    person = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
    form = json.dumps({"type": "array", "items": {**person, "required": ["name", "age"]}, "minItems": 50})

    def gap(client: Client, json_schema: str | None) -> float:
        def gaps(number: int) -> list[float]:
            """Of one stream; those with an odd number are the others."""
            prompt = [chance.randrange(100, VOCABULARY) for _ in range(32)]
            schema = json_schema if number % 2 else None
            with client.stream(prompt, json_schema=schema, max_tokens=64, temperature=0.0, ignore_eos=True) as stream:
                times = [time.perf_counter() for event in stream if isinstance(event, Delta)]
            return [] if number % 2 else [later - earlier for earlier, later in itertools.pairwise(times)]

        with ThreadPoolExecutor(8) as threads:
            return statistics.median(itertools.chain.from_iterable(threads.map(gaps, range(8))))

    with stack_of(shape) as stack, Client(stack.target) as client:
        gap(client, form)
        ratios = paired(lambda: gap(client, form), lambda: gap(client, None), num_pairs)
    return row("structured", ratios, "<= 1.05")


def rows(num_pairs: int, shape: str | None = None) -> dict[str, object]:
    return scripted_rows(num_pairs) if shape is None else rows_of_a_model(num_pairs, shape)


def rows_of_a_model(num_pairs: int, shape: str) -> dict[str, object]:
    """2,048 requests of 64 tokens in and 96 out; two stacks that take turns."""
    chance = random.Random(3)

    def tokens_per_second(stack: LocalStack) -> float:
        prompts = [[chance.randrange(100, VOCABULARY) for _ in range(64)] for _ in range(2048)]
        with Client(stack.target) as client:
            start = time.perf_counter()
            run_all(client, prompts, 96)
            return len(prompts) * 96 / (time.perf_counter() - start)

    with stack_of(shape, "--max-num-seqs", "1024") as many, stack_of(shape, "--max-num-seqs", "256") as few:
        for stack in (many, few):
            tokens_per_second(stack)
        ratios = paired(lambda: tokens_per_second(many), lambda: tokens_per_second(few), num_pairs)
    return row("rows", ratios, ">= 0.98")


def scripted_rows(num_pairs: int) -> dict[str, object]:
    """2,048 requests of 8 tokens in and 72 out: a step takes the prompts of all rows.

    They take a second to arrive, in which steps of 1,024 rows are partly filled: with few tokens a request that counts.
    """
    prompts = [[*start, *itertools.repeat(97, 5)] for start in itertools.product(TOY_LETTERS, repeat=3)][:2048]

    def tokens_per_second(max_num_seqs: int, step_seconds: float) -> float:
        with service(step_seconds, max_num_seqs) as running, Client(running.target) as client:
            start = time.perf_counter()
            run_all(client, prompts, ROWS_TOKENS)
            return len(prompts) * ROWS_TOKENS / (time.perf_counter() - start)

    ratios = paired(lambda: tokens_per_second(1024, 0.4), lambda: tokens_per_second(256, 0.1), num_pairs)
    return row("rows", ratios, ">= 0.98")


def run_all(client: Client, prompts: Sequence[Sequence[int]], num_output_tokens: int) -> None:
    """All at once over one GenerateMany stream; each gives all its tokens."""
    requests = [
        pb.GenerateRequest(
            request_id=str(number),
            token_ids=pb.TokenIds(ids=prompt),
            stop=pb.StopOptions(max_tokens=num_output_tokens, ignore_eos=True),
            output=pb.OutputOptions(text=False, token_ids=True),
        )
        for number, prompt in enumerate(prompts)
    ]
    for _, outcome in client.run_many(requests):
        if isinstance(outcome, PagewireError) or len(outcome.outputs[0].token_ids) != num_output_tokens:
            raise SystemExit(f"a request failed: {outcome}")


CLAIMS = {"prefix": (prefix, 7), "caching": (caching, 7), "structured": (structured, 11), "rows": (rows, 5)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("claims", nargs="*", choices=[*CLAIMS, []], help="which; default: all")
    parser.add_argument("--pairs", type=int, help="other numbers of pairs than 7, 7, 11 and 5")
    parser.add_argument("--shape", choices=tuple(CONFIGS), help="on a GPU, with dummy weights of this shape")
    given = parser.parse_args()
    for name in given.claims or CLAIMS:
        measure, num_pairs = CLAIMS[name]
        print(json.dumps(measure(given.pairs or num_pairs, given.shape)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
