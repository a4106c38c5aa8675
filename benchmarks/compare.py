"""Runs two engines in turn on the same workloads and tells the ratio.

`python -m benchmarks.compare --engines pagewire,vllm --workload A,D --pairs 5`

Both engines stay loaded; only one works at a time, the other idles or is stopped. Within a workload the order is A B,
B A, A B ...: a slow drift of the machine, or what an engine leaves in the caches, falls on both. Each pair is one
ratio; the median and the spread of the pairs are told. Rows are appended to docs/benchmarks/cpu.json unless
`--no-record`.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.engine import ROOT, Engine, EngineError, say
from benchmarks.measure import Outcome, Row, as_json
from benchmarks.options import ENGINES, add_engine_options, make_engine, workload_names
from benchmarks.run import measured, table, warm_up, warm_up_work
from benchmarks.workloads import workload

RECORD = ROOT / "docs" / "benchmarks" / "cpu.json"
# What a ratio is made of; larger is better for the first kind only.
HIGHER = ("output_tokens_per_s",)
LOWER = ("ttft_p50", "tpot_mean", "itl_p50", "itl_p99")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """First engine over second for one metric of one workload, in favour of the first where above 1."""

    workload: str
    metric: str
    pairs: Sequence[float]

    def line(self) -> str:
        """A table row: median and spread of the pairs."""
        median, low, high = statistics.median(self.pairs), min(self.pairs), max(self.pairs)
        return f"| {self.workload} | {self.metric} | {median:.3f} | {low:.3f} to {high:.3f} | {len(self.pairs)} |"


@dataclass(slots=True)
class Comparison:
    """Runs pairs and keeps their rows."""

    engines: tuple[Engine, Engine]
    rows: list[Row] = field(default_factory=list)
    equal_outputs: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def run_pair(self, name: str, pair: int) -> None:
        """One run of each engine, in an order that alternates from pair to pair."""
        outcomes: dict[str, Outcome] = {}
        for engine in self.engines if pair % 2 == 0 else tuple(reversed(self.engines)):
            work = workload(name, pair)
            say(f"pair {pair + 1}, {name}: {engine.name}")
            engine.resume()
            engine.run(warm_up_work(streams=work.num_clients > 0))
            outcomes[engine.name], rows = measured(engine, work, pair)
            engine.pause()
            self.rows += rows
        first, second = (outcomes[engine.name].outputs for engine in self.engines)
        equal = sum(a == b and len(a) > 0 for a, b in zip(map(list, first), map(list, second), strict=True))
        self.equal_outputs.setdefault(name, []).append((equal, len(first)))

    def ratios(self) -> list[Ratio]:
        """Every ratio both engines have figures for."""
        values = {(row.engine, row.workload, row.repetition, row.metric): row.value for row in self.rows}
        first, second = (engine.name for engine in self.engines)
        made: dict[tuple[str, str], list[float]] = {}
        for (engine, name, repetition, metric), ours in values.items():
            other = values.get((second, name, repetition, metric))
            if engine == first and other and ours and metric in HIGHER + LOWER:
                made.setdefault((name, metric), []).append(ours / other if metric in HIGHER else other / ours)
        return [Ratio(workload=name, metric=metric, pairs=pairs) for (name, metric), pairs in made.items()]


def record(rows: Sequence[Row], path: Path) -> None:
    """Appends ``rows`` to the JSON list in ``path``, one object a line."""
    kept: list[dict[str, object]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    kept += map(as_json, rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[\n" + ",\n".join(map(json.dumps, kept)) + "\n]\n", encoding="utf-8")


def report(comparison: Comparison) -> str:
    """The table of all runs, the ratios, and how many outputs were equal."""
    first, second = (engine.name for engine in comparison.engines)
    lines = [*table(comparison.rows), ""]
    lines += [f"{first} : {second}, above 1 in favour of {first}", ""]
    lines += ["| workload | metric | median of pairs | spread | pairs |", "|---|---|---|---|---|"]
    lines += [ratio.line() for ratio in comparison.ratios()]
    for name, counts in comparison.equal_outputs.items():
        if any(equal for equal, _ in counts):
            lines.append(f"\n{name}: equal outputs in each pair: " + ", ".join(f"{a} of {b}" for a, b in counts))
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.compare", description="Compares two engines in the same run.")
    parser.add_argument("--engines", default="pagewire,vllm", help="two names, the first over the second")
    parser.add_argument("--workload", type=workload_names, default="A,D")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--no-record", action="store_true")
    add_engine_options(parser)
    options = parser.parse_args()
    names = options.engines.split(",")
    if len(names) != 2 or len(set(names)) != 2 or not set(names) <= set(ENGINES):
        parser.error(f"--engines {options.engines}: two different names among {', '.join(ENGINES)}")
    return options


def main() -> int:
    options = arguments()
    engines: list[Engine] = []
    try:
        engines += [make_engine(name, options) for name in options.engines.split(",")]
        for engine in engines:
            warm_up(engine, options.workload)
            engine.pause()
        comparison = Comparison((engines[0], engines[1]))
        for name in options.workload:
            for pair in range(options.pairs):
                comparison.run_pair(name, pair)
    except EngineError as error:
        say(f"error: {error}")
        return 1
    finally:
        for engine in engines:
            engine.stop()
    if not options.no_record:
        record(comparison.rows, options.record)
    print(report(comparison))
    return 0


if __name__ == "__main__":
    sys.exit(main())
