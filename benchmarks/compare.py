"""Runs two engines in turn on the same workloads and tells the ratio.

`python -m benchmarks.compare --engines pagewire,vllm --workload A,D --pairs 5`

Both engines stay loaded; only one works at a time, the other idles or is stopped. A round has a pair of every workload,
in the order A B, B A, A B ...: a slow drift of the machine, or what an engine leaves in the caches, falls on both. Each
pair is one ratio; the median and the spread of the pairs are told. With `--seconds` no pair begins later than that;
with `--state FILE` rows are kept as they are measured and a later run adds the pairs that lack. The workload `open`
arrives at 80 % of the rate that the second engine reached in serve256.

Rows of A to E are appended to docs/benchmarks/cpu.json; of workloads on a GPU, medians with their ratios go to
docs/benchmarks/h200.json (`--no-record`: neither).
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.engine import ROOT, Engine, EngineError, say
from benchmarks.measure import Outcome, Row, as_json
from benchmarks.options import ENGINES, Workloads, add_engine_options, make_engine
from benchmarks.run import Measurement, table, warm_up
from benchmarks.targets import target

RECORDS = ROOT / "docs" / "benchmarks"
RATIO_METRICS = ("output_tokens_per_s", "time", "ttft", "tpot", "ttft_p50", "ttft_p99", "tpot_mean")
RATIO_METRICS += ("itl_p50", "itl_p99", "goodput")
OPEN_SHARE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """First engine over second for one metric of one workload."""

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
    chosen: Workloads
    measurement: Measurement
    state: Path | None = None
    open_rate: float = 0.0
    rows: list[Row] = field(default_factory=list)
    equal_outputs: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def load(self) -> None:
        """Takes the rows that an earlier run left in the state file."""
        if self.state is not None and self.state.exists():
            self.rows += [Row(**json.loads(line)) for line in self.state.read_text(encoding="utf-8").splitlines()]

    def run_round(self, pair: int, until: float) -> None:
        """A pair of every workload that has none of this number yet; none begins after ``until``."""
        for name in itertools.takewhile(lambda _: time.monotonic() < until, self.chosen.names):
            there = {row.engine for row in self.rows if (row.workload, row.repetition) == (name, pair)}
            if len(there) < len(self.engines):
                self.rows = [row for row in self.rows if (row.workload, row.repetition) != (name, pair)]
                self.run_pair(name, pair)

    def run_pair(self, name: str, pair: int) -> None:
        """One run of each engine, in an order that alternates from pair to pair."""
        outcomes: dict[str, Outcome] = {}
        for engine in self.engines if pair % 2 == 0 else tuple(reversed(self.engines)):
            work = self.chosen.make(name, pair, self.open_rate or self._open_rate())
            engine.resume()
            engine.run(self.chosen.warm_up(is_served=work.is_served))
            outcomes[engine.name], rows = self.measurement.run(engine, work, pair)
            engine.pause()
            self._keep(rows)
        first, second = (outcomes[engine.name].outputs for engine in self.engines)
        equal = sum(a == b and len(a) > 0 for a, b in zip(map(list, first), map(list, second), strict=True))
        self.equal_outputs.setdefault(name, []).append((equal, len(first)))
        ours = [ratio for ratio in self.ratios() if ratio.workload == name]
        say(f"pair {pair + 1}, {name}: " + ", ".join(f"{each.metric} {each.pairs[-1]:.3f}" for each in ours))

    def ratios(self) -> list[Ratio]:
        """Every ratio both engines have figures for."""
        values = {(row.engine, row.workload, row.repetition, row.metric): row.value for row in self.rows}
        first, second = (engine.name for engine in self.engines)
        made: dict[tuple[str, str], list[float]] = {}
        for (engine, name, repetition, metric), ours in values.items():
            other = values.get((second, name, repetition, metric))
            if engine == first and other and ours and metric in RATIO_METRICS:
                made.setdefault((name, metric), []).append(ours / other)
        return [Ratio(workload=name, metric=metric, pairs=pairs) for (name, metric), pairs in made.items()]

    def summary(self) -> list[dict[str, object]]:
        """Medians of every engine, workload and metric; of the first engine with the ratios of its pairs."""
        ratios = {(ratio.workload, ratio.metric): list(ratio.pairs) for ratio in self.ratios()}
        groups: dict[tuple[str, str, str], list[Row]] = {}
        for row in self.rows:
            groups.setdefault((row.engine, row.workload, row.metric), []).append(row)
        made = []
        for (engine, name, metric), rows in groups.items():
            pairs = ratios.get((name, metric), []) if engine == self.engines[0].name else []
            made.append(_median_row(rows, pairs))
        return made

    def _keep(self, rows: Sequence[Row]) -> None:
        self.rows += rows
        if self.state is not None:
            with self.state.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(as_json(row)) + "\n" for row in rows)

    def _open_rate(self) -> float:
        """From the second engine's serve256; 0 if it has none."""
        rates = [
            row.value
            for row in self.rows
            if (row.engine, row.workload, row.metric) == (self.engines[1].name, "serve256", "requests_per_s")
        ]
        return OPEN_SHARE * statistics.median(rates) if rates else 0.0


def _median_row(rows: Sequence[Row], pairs: Sequence[float]) -> dict[str, object]:
    values = [row.value for row in rows]
    shares = [row.floor_share for row in rows if row.floor_share is not None]
    last = as_json(rows[-1])
    made = {key: last[key] for key in ("engine", "version", "model", "quantization", "workload", "metric", "unit")}
    made["value"] = float(f"{statistics.median(values):.5g}")
    made["spread"] = [float(f"{min(values):.5g}"), float(f"{max(values):.5g}")]
    made["ratio"] = round(statistics.median(pairs), 3) if pairs else None
    made["ratios"] = [round(pair, 3) for pair in pairs]
    made["floor_share"] = round(statistics.median(shares), 3) if shares else None
    return {**made, "commit": last["commit"], "date": last["date"], "settings": last["settings"]}


def record(rows: Sequence[dict[str, object]], path: Path) -> None:
    """Appends ``rows`` to the JSON list in ``path``, one object a line."""
    kept: list[dict[str, object]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    kept += rows
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[\n" + ",\n".join(map(json.dumps, kept)) + "\n]\n", encoding="utf-8")


def report(comparison: Comparison) -> str:
    """The table of all runs, the ratios, and how many outputs were equal."""
    first, second = (engine.name for engine in comparison.engines)
    lines = [*table(comparison.rows), "", f"{first} / {second}", ""]
    lines += ["| workload | metric | median of pairs | spread | pairs | aim |", "|---|---|---|---|---|---|"]
    for ratio in comparison.ratios():
        aim = target(comparison.rows[0].model, comparison.rows[0].quantization, ratio.workload, ratio.metric)
        lines.append(f"{ratio.line()} {f'{aim}: {aim.verdict(ratio.pairs)}' if aim is not None else ''} |")
    for name, counts in comparison.equal_outputs.items():
        if any(equal for equal, _ in counts):
            lines.append(f"\n{name}: equal outputs in each pair: " + ", ".join(f"{a} of {b}" for a, b in counts))
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.compare", description="Compares two engines in the same run.")
    parser.add_argument("--engines", default="pagewire,vllm", help="two names, the first over the second")
    parser.add_argument("--workload", type=Workloads.parse, default="A,D")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after these no further pair begins")
    parser.add_argument("--state", type=Path, help="a file of rows that a later run continues")
    parser.add_argument("--record", type=Path, help="default: cpu.json or h200.json in docs/benchmarks")
    parser.add_argument("--no-record", action="store_true")
    add_engine_options(parser)
    options = parser.parse_args()
    names = options.engines.split(",")
    if len(names) != 2 or len(set(names)) != 2 or not set(names) <= set(ENGINES):
        parser.error(f"--engines {options.engines}: two different names among {', '.join(ENGINES)}")
    return options


def main() -> int:
    options = arguments()
    chosen: Workloads = options.workload
    began = time.monotonic()
    engines: list[Engine] = []
    try:
        engines += [make_engine(name, options) for name in options.engines.split(",")]
        comparison = Comparison(
            (engines[0], engines[1]), chosen, Measurement.of(options), options.state, options.open_rate
        )
        comparison.load()
        for engine in engines:
            warm_up(engine, chosen)
            engine.pause()
        say(f"both are ready after {time.monotonic() - began:.1f} s")
        for pair in range(options.pairs):
            comparison.run_round(pair, began + options.seconds)
    except EngineError as error:
        say(f"error: {error}")
        return 1
    finally:
        for engine in engines:
            engine.stop()
    if not options.no_record and chosen.on_gpu:
        record(comparison.summary(), options.record or RECORDS / "h200.json")
    elif not options.no_record:
        record(list(map(as_json, comparison.rows)), options.record or RECORDS / "cpu.json")
    print(report(comparison))
    return 0


if __name__ == "__main__":
    sys.exit(main())
