"""A fleet of workers on the pure core with simulated time: ``python -m benchmarks.simulate``.

Prints JSON lines. ``placement`` compares the core's rule with round robin and with the least loaded worker, under the
same requests; ``fairness`` overloads a few workers with one tenant that asks for eight times as much as each of the
others, with shares and without; in ``all backlogged`` the others ask for more than their shares, too. ``--plot FILE``
draws the first two (matplotlib, the extra ``bench``).
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import percentile
from benchmarks.simulated_fleet import Fleet
from benchmarks.simulated_load import PAGE_SIZE, Load
from scheduler_svc.core.placement import Placement
from scheduler_svc.core.request import Request
from scheduler_svc.core.types import CoreConfig, Ended, WorkerCard, WorkerId
from scheduler_svc.core.worker import Worker

NUM_PAGES = 4096
Row = dict[str, Any]


class RoundRobin(Placement):
    """One worker after another."""

    def __init__(self) -> None:
        super().__init__()
        self._turn = 0

    def choose(self, request: Request) -> tuple[Worker, int] | None:
        self._turn += 1
        workers = list(self.workers.values())
        return workers[self._turn % len(workers)], 0

    def rebalance(self, worker: Worker) -> list[Request]:
        """Requests stay where they are."""
        return []


class LeastLoaded(RoundRobin):
    """The worker with the fewest tokens of all its requests."""

    def choose(self, request: Request) -> tuple[Worker, int] | None:
        return min(self.workers.values(), key=lambda worker: worker.load), 0


PLACEMENTS = {"round robin": RoundRobin, "least loaded": LeastLoaded, "pagewire": Placement}


def cards(num_workers: int, num_rows: int = 256) -> list[WorkerCard]:
    """Workers with pages for 131,072 tokens."""
    return [
        WorkerCard(
            worker_id=WorkerId(f"w{number}"),
            num_pages=NUM_PAGES,
            page_size=PAGE_SIZE,
            max_num_seqs=num_rows,
            max_num_batched_tokens=2048,
            max_model_len=16_384,
        )
        for number in range(num_workers)
    ]


def config(num_rows: int = 256, **others: Any) -> CoreConfig:
    return CoreConfig(max_num_batched_tokens=2048, max_num_seqs=num_rows, **others)


def first_tokens(ended: Sequence[Ended]) -> list[float]:
    """Seconds to the first token."""
    return [each.first_token_at - each.submitted_at for each in ended if each.first_token_at is not None]


def compare_placements(num_workers: int, num_requests: int, per_second: float, seed: int) -> list[Row]:
    """A row for each rule."""
    rows: list[Row] = []
    for name, rule in PLACEMENTS.items():
        arrivals = Load(seed, 4 * num_workers, {f"tenant {rank}": 1 / rank for rank in range(1, 9)}).arrivals(
            num_requests, per_second * num_workers
        )
        fleet, started = Fleet(config(), rule(), cards(num_workers)), time.perf_counter()
        seconds = fleet.run(arrivals)
        waits = first_tokens(fleet.ended)
        counts = fleet.core.counts()
        num_prompt = sum(each.num_prompt_tokens for each in fleet.ended)
        rows.append(
            {
                "scenario": "placement",
                "rule": name,
                "workers": num_workers,
                "requests": len(fleet.ended),
                "hit_rate": round(sum(each.num_cached_tokens for each in fleet.ended) / num_prompt, 4),
                "ttft_p50_ms": round(percentile(waits, 50) * 1000, 1),
                "ttft_p99_ms": round(percentile(waits, 99) * 1000, 1),
                "simulated_seconds": round(seconds, 1),
                "preemptions": counts.num_preemptions,
                "wall_seconds": round(time.perf_counter() - started, 1),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def compare_shares(scenario: str, num_requests: int, per_second: float, seed: int) -> list[Row]:
    """A row with tenants' shares and one without: four workers, more than they can do."""
    rows: list[Row] = []
    weights = {"greedy": 8.0, "a": 1.0, "b": 1.0, "c": 1.0}
    for fair in (True, False):
        arrivals = Load(seed, 16, weights).arrivals(num_requests, per_second)
        fleet = Fleet(config(tenant_fairness=fair), Placement(), cards(4))
        fleet.run(arrivals, sample_seconds=0.5)
        tenant_of = {arrival.request.key: arrival.request.tenant for arrival in arrivals}
        served = _served(fleet.ended, tenant_of, arrivals[-1].at)
        modest = first_tokens([each for each in fleet.ended if tenant_of[each.key] != "greedy"])
        rows.append(
            {
                "scenario": scenario,
                "rule": "shares" if fair else "first come, first served",
                "jain_index": round(_jain(list(served.values())), 4),
                "least_by_most": round(min(served.values()) / max(served.values()), 4),
                "served_tokens": {name: round(tokens) for name, tokens in sorted(served.items())},
                "modest_ttft_p50_ms": round(percentile(modest, 50) * 1000, 1),
                "modest_ttft_p99_ms": round(percentile(modest, 99) * 1000, 1),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def _served(ended: Sequence[Ended], tenant_of: dict[Any, str], until: float) -> dict[str, float]:
    """Tokens by tenant, as fairness counts them, of requests that ended while everybody kept asking."""
    served = dict.fromkeys(tenant_of.values(), 0.0)
    for each in ended:
        if each.ended_at <= until:
            num_computed = each.num_prompt_tokens - each.num_cached_tokens
            served[tenant_of[each.key]] += num_computed + 0.1 * each.num_cached_tokens + 2 * each.num_output_tokens
    return served


def _jain(values: Sequence[float]) -> float:
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def draw(rows: Sequence[Row], path: Path) -> None:
    """Hit rate and time to first token by rule, and what tenants got."""
    from matplotlib import pyplot

    placements = [row for row in rows if row["scenario"] == "placement"]
    shares = [row for row in rows if row["scenario"] == "fairness"]
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.6))
    names = [row["rule"] for row in placements]
    axes[0].bar(names, [100 * row["hit_rate"] for row in placements])
    axes[0].set_title("prompt tokens found in the cache, %")
    axes[1].bar(names, [row["ttft_p99_ms"] for row in placements])
    axes[1].set_title("99th percentile of time to first token, ms")
    axes[1].set_yscale("log")
    for offset, row in enumerate(shares):
        places = [index + 0.4 * offset for index in range(len(row["served_tokens"]))]
        axes[2].bar(places, list(row["served_tokens"].values()), 0.4, label=row["rule"])
        axes[2].set_xticks([index + 0.2 for index in range(len(places))], list(row["served_tokens"]))
    axes[2].set_title("tokens served by tenant, overloaded")
    axes[2].legend()
    figure.tight_layout()
    figure.savefig(path)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate", description=__doc__.split("\n")[0])
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--per-second", type=float, default=20.0, help="requests a second and worker")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", type=Path, help="an SVG or PNG file")
    options = parser.parse_args(arguments)
    rows = compare_placements(options.workers, options.requests, options.per_second, options.seed)
    rows += compare_shares("fairness", options.requests // 10, 400.0, options.seed)
    rows += compare_shares("all backlogged", options.requests // 5, 2000.0, options.seed)
    if options.plot is not None:
        draw(rows, options.plot)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
