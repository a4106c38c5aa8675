"""One stream from a GGUF file on a CPU: the worker's model beside llama.cpp, in turns.

    python -m benchmarks.single_stream MODEL.gguf --llama-python PYTHON [--threads 1,2] [--turns 5]

PYTHON is the interpreter of an environment with llama-cpp-python, built for this processor. Each turn is a process of
either side, one after the other, so that a busy neighbour meets both: a short prompt, some steps to warm up, then the
median of many decode steps, in milliseconds of wall and of processor time. llama.cpp is given ids; ours samples them.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

PROMPT = tuple(range(100, 132))
WARM_STEPS, STEPS = 10, 150
CONTEXT = 512
ENGINES = ("llama.cpp", "pagewire")
Figures = dict[str, float]


def main() -> None:
    options = _parser().parse_args()
    if options.side:
        sides = {"pagewire": _pagewire, "llama.cpp": _llama_cpp}
        print(json.dumps(_measure(sides[options.side](options.model, options.side_threads))), flush=True)
        return
    for threads in map(int, options.threads.split(",")):
        rows = [_turn(engine, options, threads) for _ in range(options.turns) for engine in ENGINES]
        print(_summary(threads, rows), flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.single_stream")
    parser.add_argument("model", type=Path, help="a .gguf file")
    parser.add_argument("--llama-python", default=sys.executable, help="interpreter with llama-cpp-python")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--side", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--side-threads", type=int, default=1, help=argparse.SUPPRESS)
    return parser


def _turn(engine: str, options: argparse.Namespace, threads: int) -> Figures:
    """Measures one side in a process of its own, and prints it."""
    python = options.llama_python if engine == "llama.cpp" else sys.executable
    command = [python, __file__, str(options.model), "--side", engine, "--side-threads", str(threads)]
    answer = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    figures: Figures = json.loads(answer.stdout.splitlines()[-1])
    print(json.dumps({"threads": threads, "engine": engine, **figures}), flush=True)
    return figures


def _summary(threads: int, rows: list[Figures]) -> str:
    """Ratios of turns, not of medians: the machine is another one in each. ``rows`` alternate as ENGINES do."""
    parts = []
    for name in ("wall_ms", "cpu_ms"):
        ratios = [ours[name] / theirs[name] for theirs, ours in zip(rows[::2], rows[1::2], strict=True)]
        parts.append(f"{name} {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    return f"threads {threads}: pagewire / llama.cpp, median of {len(rows) // 2} turns: {', '.join(parts)}"


def _measure(step: Callable[[int], None]) -> Figures:
    """``step(token_id)`` computes one more token; ours takes the one it sampled."""
    walls, processor = [], []
    for number in range(WARM_STEPS + STEPS):
        began, used = time.perf_counter(), time.process_time()
        step(50 + number)
        walls.append(time.perf_counter() - began)
        processor.append(time.process_time() - used)
    medians = [statistics.median(seconds[WARM_STEPS:]) * 1e3 for seconds in (walls, processor)]
    return {"wall_ms": round(medians[0], 2), "cpu_ms": round(medians[1], 2)}


def _llama_cpp(model: Path, threads: int) -> Callable[[int], None]:
    from llama_cpp import Llama

    llama = Llama(str(model), n_ctx=CONTEXT, n_threads=threads, n_threads_batch=threads, verbose=False)
    llama.eval(list(PROMPT))
    return lambda token_id: llama.eval([token_id])


def _pagewire(model: Path, threads: int) -> Callable[[int], None]:
    """The model as a worker loads it, and whole steps: inputs, model, a greedy sampler."""
    import gpu_worker.__main__  # noqa: F401 - decides how OpenMP's threads wait, before torch is loaded
    from gpu_worker import startup
    from gpu_worker.batch_plan import BatchPlan, int32s
    from gpu_worker.config import WorkerConfig
    from gpu_worker.warm_up import new_rows

    limits = {"max_model_len": CONTEXT, "max_num_seqs": 1, "cpu_threads": threads}
    config = WorkerConfig(model=model, scheduler="ipc:///unused", device="cpu", **limits)
    runner = startup.build(config, lambda sentence: None).runner
    pages = range(-(-CONTEXT // runner.limits.page_size))
    prompt = BatchPlan(
        new_rows=new_rows(1, len(PROMPT)),
        append_rows=int32s([0] * len(pages)),
        append_pages=int32s(pages),
        chunk_rows=int32s([0]),
        chunk_tokens=int32s([len(PROMPT)]),
        num_scheduled_rows=1,
        num_scheduled_tokens=len(PROMPT),
    )
    runner.launch(prompt).wait()
    decode = BatchPlan(num_scheduled_rows=1, num_scheduled_tokens=1)
    return lambda token_id: _succeed(runner.launch(decode).wait().failure)


def _succeed(failure: str | None) -> None:
    if failure is not None:
        raise SystemExit(failure)


if __name__ == "__main__":
    main()
