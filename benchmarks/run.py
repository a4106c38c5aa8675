"""Runs workloads on one engine: `python -m benchmarks.run --engine pagewire --workload A,B,C,D,E --json`.

Prints a table, or with `--json` one object a line for every figure. Exit code 1 when the engine fails.
"""

import argparse
import datetime
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.engine import Engine, EngineError, say
from benchmarks.gpu_shapes import Floor
from benchmarks.measure import CpuMeter, Outcome, Row, as_json, commit, figures, machine
from benchmarks.options import ENGINES, Workloads, add_engine_options, make_engine
from benchmarks.workloads import Workload

TABLE_METRICS = ("output_tokens_per_s", "ttft", "ttft_p50", "ttft_p99", "tpot", "tpot_mean", "itl_p50", "itl_p99")
TABLE_METRICS += ("tokens_per_message", "time")


@dataclass(frozen=True, slots=True)
class Measurement:
    """Runs workloads and makes rows of their figures. ``floor`` is that of the model on a GPU."""

    floor: Floor | None = None
    quantization: str = ""

    @classmethod
    def of(cls, options: argparse.Namespace) -> "Measurement":
        chosen: Workloads = options.workload
        if not chosen.on_gpu:
            return cls()
        floor = Floor.of(options.shape, options.quantization, served=chosen.are_served)
        return cls(floor, options.quantization or options.dtype)

    def run(self, engine: Engine, work: Workload, repetition: int) -> tuple[Outcome, list[Row]]:
        """Runs ``work`` once and makes a row of each of its figures.

        Raises:
            EngineError: the engine failed, or did not produce all tokens.
        """
        meter = CpuMeter(engine.roots)
        with meter:
            firsts = [engine.run(replace(work, requests=[each])).wall_s for each in work.first_token_requests]
            outcome = replace(engine.run(work), first_token_s=min(firsts, default=None))
        if outcome.num_output_tokens != work.num_output_tokens:
            raise EngineError(f"{engine.name}: {outcome.num_output_tokens} tokens of {work.num_output_tokens}")
        now = datetime.datetime.now(tz=datetime.timezone.utc).isoformat(timespec="seconds")
        rows = [
            Row(
                engine=engine.name,
                version=engine.version,
                model=Path(engine.model).name,
                dtype=engine.dtype,
                workload=work.name,
                repetition=repetition,
                metric=metric,
                value=value,
                unit=unit,
                commit=commit(),
                date=now,
                machine=machine(),
                wall_s=outcome.wall_s,
                own_cpu_s=meter.own_cpu_s,
                other_cpu_s=meter.other_cpu_s,
                settings=engine.settings,
                quantization=self.quantization,
                floor_share=self.floor.share(work, metric, value) if self.floor is not None else None,
            )
            for metric, (value, unit) in figures(work, outcome).items()
        ]
        return outcome, rows


def warm_up(engine: Engine, chosen: Workloads) -> None:
    """Starts what the workloads need and lets it run once."""
    for is_served in sorted({chosen.make(name, 0, open_rate=1.0).is_served for name in chosen.names}):
        engine.run(chosen.warm_up(is_served=is_served))


def table(rows: list[Row]) -> Iterator[str]:
    """Markdown, a line for each run."""
    yield "| engine | workload | rep | " + " | ".join(TABLE_METRICS) + " | own CPU s | other CPU s |"
    yield "|---" * (len(TABLE_METRICS) + 5) + "|"
    runs: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows:
        runs.setdefault((row.engine, row.workload, row.repetition), []).append(row)
    for (engine, name, repetition), group in runs.items():
        values = {row.metric: f"{row.value:.4g} {row.unit}" for row in group}
        cells = [engine, name, str(repetition), *(values.get(metric, "") for metric in TABLE_METRICS)]
        yield "| " + " | ".join([*cells, f"{group[0].own_cpu_s:.1f}", f"{group[0].other_cpu_s:.1f}"]) + " |"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.run", description="Runs fixed workloads on one engine.")
    parser.add_argument("--engine", choices=ENGINES, default="pagewire")
    parser.add_argument(
        "--workload", type=Workloads.parse, default="A,B,C,D,E", help="for example A,D, or b1,b64 on a GPU"
    )
    parser.add_argument("--pairs", type=int, default=1, help="repetitions of each workload, on other ids each")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    add_engine_options(parser)
    return parser.parse_args()


def main() -> int:
    options = arguments()
    chosen: Workloads = options.workload
    rows: list[Row] = []
    try:
        measurement = Measurement.of(options)
        engine = make_engine(options.engine, options)
        try:
            warm_up(engine, chosen)
            for repetition in range(options.pairs):
                for name in chosen.names:
                    work = chosen.make(name, repetition, options.open_rate)
                    say(f"{engine.name}: {name}, {work.what}")
                    _, made = measurement.run(engine, work, repetition)
                    rows += made
                    if options.json:
                        print("\n".join(json.dumps(as_json(row)) for row in made), flush=True)
        finally:
            engine.stop()
    except EngineError as error:
        say(f"error: {error}")
        return 1
    if not options.json:
        print("\n".join(table(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
