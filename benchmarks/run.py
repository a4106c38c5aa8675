"""Runs workloads on one engine: `python -m benchmarks.run --engine pagewire --workload A,B,C,D,E --json`.

Prints a table, or with `--json` one object a line for every figure. Exit code 1 when the engine fails.
"""

import argparse
import datetime
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.engine import Engine, EngineError, say
from benchmarks.measure import CpuMeter, Outcome, Row, as_json, commit, figures, machine
from benchmarks.options import ENGINES, add_engine_options, make_engine, workload_names
from benchmarks.workloads import WARM_UP, Workload, workload

TABLE_METRICS = ("output_tokens_per_s", "ttft_p50", "tpot_mean", "itl_p50", "itl_p99", "time", "cached_tokens")


def measured(engine: Engine, work: Workload, repetition: int) -> tuple[Outcome, list[Row]]:
    """Runs ``work`` once and makes a row of each of its figures.

    Raises:
        EngineError: the engine failed, or did not produce all tokens.
    """
    meter = CpuMeter(engine.roots)
    with meter:
        outcome = engine.run(work)
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
        )
        for metric, (value, unit) in figures(work, outcome).items()
    ]
    return outcome, rows


def warm_up(engine: Engine, names: list[str]) -> None:
    """Starts what the workloads need and lets it run once."""
    kinds = {workload(name).num_clients > 0 for name in names}
    for streams in sorted(kinds):
        engine.run(warm_up_work(streams=streams))


def warm_up_work(*, streams: bool) -> Workload:
    """The warm-up, offline or as two streams."""
    clients = 2 if streams else 0
    return Workload(
        name=WARM_UP.name,
        what=WARM_UP.what,
        prompts=WARM_UP.prompts,
        max_tokens=WARM_UP.max_tokens,
        num_clients=clients,
    )


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
    parser.add_argument("--workload", type=workload_names, default="A,B,C,D,E", help="for example A,D; default all")
    parser.add_argument("--pairs", type=int, default=1, help="repetitions of each workload, on other ids each")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    add_engine_options(parser)
    return parser.parse_args()


def main() -> int:
    options = arguments()
    rows: list[Row] = []
    try:
        engine = make_engine(options.engine, options)
        try:
            warm_up(engine, options.workload)
            for repetition in range(options.pairs):
                for name in options.workload:
                    work = workload(name, repetition)
                    say(f"{engine.name}: {name}, {work.what}")
                    _, made = measured(engine, work, repetition)
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
