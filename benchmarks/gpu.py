"""Speed on a GPU with dummy weights: `python -m benchmarks.gpu --shape qwen3-0.6b --workload b1,b64`.

The shipped path: ids in and out through one GenerateMany stream, front, scheduler and worker. Prints one JSON object a
figure, with the share of the byte and operation floor that it reaches.
"""

import argparse
import datetime
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import gpu_workloads as workloads
from benchmarks.engine import say
from benchmarks.gpu_shapes import CONFIGS, Floor, write_model
from benchmarks.gpu_workloads import GpuWorkload
from benchmarks.measure import commit
from benchmarks.ours import Pagewire

Figure = tuple[str, float, str, float]
"""Metric, value, unit, share of the floor."""
_WORKER = ("--load-format", "dummy", "--device", "cuda", "--max-model-len", "4096", "--max-num-seqs", "256")


class GpuRun:
    """One engine on one shape; every workload of it gets seeds of its own."""

    def __init__(self, engine: Pagewire, floor: Floor, repetitions: int) -> None:
        self._engine = engine
        self._floor = floor
        self._repetitions = repetitions
        self._seed = 0

    def one_stream(self) -> Iterator[Figure]:
        """Time to first token of 512, then per token of 256 more: least of the repetitions, as latencies are."""
        first = self._best(lambda seed: workloads.fixed(1, 512, 1, seed), 3)
        rest = self._best(lambda seed: workloads.fixed(1, 512, 257, seed), 2) - first
        yield "ttft", first * 1e3, "ms", self._floor.prefill_seconds(512) / first
        yield "tpot", rest / 256 * 1e3, "ms", self._floor.step_seconds(1, 640) / (rest / 256)

    def batch(self) -> Iterator[Figure]:
        yield from self._throughput(lambda seed: workloads.fixed(64, 1024, 256, seed))

    def ragged(self) -> Iterator[Figure]:
        yield from self._throughput(workloads.ragged)

    def prefix(self) -> Iterator[Figure]:
        yield from self._throughput(workloads.shared_prefix)

    def warm_up(self) -> None:
        self._wall(workloads.fixed(8, 128, 16, self._next_seed()))

    def _throughput(self, make: Callable[[int], GpuWorkload]) -> Iterator[Figure]:
        best = self._best(make, self._repetitions)
        work = make(0)
        share = self._floor.run_seconds(work.requests, work.num_shared) / best
        yield "time", best, "s", share
        yield "output_tokens_per_s", work.num_output_tokens / best, "tok/s", share

    def _best(self, make: Callable[[int], GpuWorkload], repetitions: int) -> float:
        return min(self._wall(make(self._next_seed())) for _ in range(repetitions))

    def _wall(self, work: GpuWorkload) -> float:
        outcome = self._engine.generate(work.requests, work.temperature)
        if outcome.num_output_tokens != work.num_output_tokens:
            raise SystemExit(f"{outcome.num_output_tokens} tokens of {work.num_output_tokens}")
        return outcome.wall_s

    def _next_seed(self) -> int:
        self._seed += 1
        return self._seed


WORKLOADS: dict[str, Callable[[GpuRun], Iterator[Figure]]] = {
    "b1": GpuRun.one_stream,
    "b64": GpuRun.batch,
    "ragged256": GpuRun.ragged,
    "prefix64": GpuRun.prefix,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description="Speed on a GPU with dummy weights.")
    parser.add_argument("--shape", choices=tuple(CONFIGS), default="qwen3-0.6b")
    parser.add_argument("--workload", default=",".join(WORKLOADS), help="names, with commas between them")
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--worker-arguments", default="", help="more flags for the worker, one string")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        model = write_model(options.shape, Path(directory))
        arguments = (*_WORKER, *options.worker_arguments.split())
        engine = Pagewire(str(model), "bfloat16", worker_arguments=arguments)
        try:
            run = GpuRun(engine, Floor.of(options.shape), options.repetitions)
            run.warm_up()
            for name in options.workload.split(","):
                say(f"{options.shape}: {name}")
                for metric, value, unit, share in WORKLOADS[name](run):
                    print(json.dumps(_row(options.shape, name, metric, value, unit, share)), flush=True)
        finally:
            engine.stop()


def _row(shape: str, workload: str, metric: str, value: float, unit: str, share: float) -> dict[str, object]:
    return {
        "engine": "pagewire",
        "model": shape,
        "workload": workload,
        "metric": metric,
        "value": float(f"{value:.5g}"),
        "unit": unit,
        "floor_share": round(share, 3),
        "commit": commit(),
        "date": datetime.datetime.now(tz=datetime.timezone.utc).isoformat(timespec="seconds"),
    }


if __name__ == "__main__":
    main()
