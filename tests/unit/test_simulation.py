"""The simulated fleet: everything ends, the same seed gives the same life, and the rules differ as they should."""

from benchmarks.measure import percentile
from benchmarks.simulate import PLACEMENTS, cards, compare_shares, config
from benchmarks.simulated_fleet import Fleet
from benchmarks.simulated_load import Load
from benchmarks.simulated_streams import SHAPES, Streams, Work
from scheduler_svc.core.placement import Placement
from scheduler_svc.core.types import Ended


def lived(rule: str) -> list[Ended]:
    arrivals = Load(3, 16, {"a": 1.0, "b": 1.0}).arrivals(400, 80.0)
    fleet = Fleet(config(), PLACEMENTS[rule](), cards(4))
    fleet.run(arrivals)
    assert len(fleet.ended) == 400
    assert fleet.core.counts().num_running == 0
    return fleet.ended


def test_prefixes_are_found_where_they_are() -> None:
    cached = {rule: sum(each.num_cached_tokens for each in lived(rule)) for rule in PLACEMENTS}
    assert cached["pagewire"] > 1.1 * max(cached["round robin"], cached["least loaded"]), cached


def test_the_same_seed_gives_the_same_life() -> None:
    assert lived("pagewire") == lived("pagewire")


def test_shares_keep_a_greedy_tenant_in_its_place() -> None:
    fair, unfair = compare_shares("fairness", 1500, 400.0, 1)
    assert fair["jain_index"] > unfair["jain_index"]
    assert fair["modest_ttft_p99_ms"] < unfair["modest_ttft_p99_ms"]


def test_more_rows_do_not_cost_throughput() -> None:
    """1,024 rows end the same work at least as fast as 256, though they press harder on the pages."""
    seconds = {}
    for num_rows in (256, 1024):
        arrivals = Load(5, 8, {"a": 1.0}).arrivals(900, 2000.0)
        fleet = Fleet(config(num_rows), Placement(), cards(1, num_rows))
        seconds[num_rows] = fleet.run(arrivals)
        assert len(fleet.ended) == 900
    assert 0.98 * seconds[1024] <= seconds[256], seconds


def test_a_target_for_steps_trades_first_tokens_for_gaps() -> None:
    made = []
    for seconds in (0.0, 0.05):
        streams = Streams(SHAPES["8b"], seconds)
        streams.run(Work(num_streams=4, num_requests=16, prompt=512, output=128))
        streams.run(Work(num_streams=64, num_requests=96, prompt=512, output=128))
        assert len(streams.first_tokens) == 96
        made.append((percentile(streams.first_tokens, 99), percentile(streams.gaps, 99)))
    assert made[0][0] < made[1][0]
    assert made[0][1] > 0.1 > made[1][1]


def test_long_prompts_are_spread_where_they_cost_little() -> None:
    """8,192 tokens take a small model 13 ms: with a target streams wait half as long for them, or less."""
    longest = []
    for seconds in (0.0, 0.05):
        streams = Streams(SHAPES["0.6b"], seconds)
        streams.run(Work(num_streams=4, num_requests=16, prompt=512, output=128, num_long=1))
        streams.run(Work(num_streams=16, num_requests=16, prompt=128, output=512, num_long=3))
        longest.append(max(streams.gaps))
    assert longest[0] > 0.015
    assert longest[1] < 0.5 * longest[0]
