"""The benchmarks' own arithmetic: workloads are fixed, figures follow their definitions."""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.compare import Comparison, Ratio, record
from benchmarks.gpu_shapes import Floor
from benchmarks.gpu_workloads import fixed, gpu_workload, ragged, served, shared_prefix
from benchmarks.measure import CpuMeter, Outcome, Row, StreamTimes, as_json, figures, percentile
from benchmarks.options import Workloads
from benchmarks.report import BEGIN, END, render
from benchmarks.run import Measurement
from benchmarks.targets import target
from benchmarks.workloads import NAMES, Workload, workload

DIGEST = "afa372ee0f7736cebfaa456109af1961199b828e49266b9d7aa8c40f1356494d"

GPU_DIGEST = "0a6239f64127622418e9dc9db50ab2ba6f39c45ebda3ffb1a41415cb3e773e12"


def test_workloads_never_change() -> None:
    """Figures of different times and engines are comparable only while these stay as they are."""
    prompts = [[list(prompt) for prompt in workload(name).prompts] for name in NAMES]
    assert hashlib.sha256(json.dumps(prompts).encode()).hexdigest() == DIGEST
    sizes = [(len(work.prompts), work.requests[0][1], work.num_clients) for work in map(workload, NAMES)]
    assert sizes == [(64, 128, 0), (16, 128, 0), (4, 128, 1), (32, 32, 0), (48, 128, 16)]


@pytest.mark.parametrize("name", NAMES)
def test_no_repetition_meets_the_prefixes_of_another(name: str) -> None:
    first_ids = [{prompt[0] for prompt in workload(name, repetition).prompts} for repetition in range(6)]
    for index, ids in enumerate(first_ids[1:], start=1):
        prompts = workload(name, index).prompts
        assert all(17 <= token < 49152 for prompt in prompts for token in prompt)
        assert not {tuple(prompt[:32]) for prompt in prompts} & {
            tuple(prompt[:32]) for other in range(index) for prompt in workload(name, other).prompts
        }
        assert len(ids) == len(first_ids[0])


def test_repetitions_of_the_shared_prefix_share_it() -> None:
    for repetition in range(5):
        assert len({tuple(prompt[:512]) for prompt in workload("D", repetition).prompts}) == 1


def test_gpu_workloads_never_change() -> None:
    works = [fixed(2, 5, 3, seed=6), ragged(0), shared_prefix(8)]
    text = json.dumps([[list(request) for request in requests] for requests in works])
    assert hashlib.sha256(text.encode()).hexdigest() == GPU_DIGEST
    assert [sum(count for _, count in requests) for requests in works] == [6, 137723, 4096]
    assert sum(count for _, count in ragged(7)) == 137723
    assert works[2][0][0][:2048] == works[2][63][0][:2048]
    assert gpu_workload("b64", 0).requests == fixed(64, 1024, 256, seed=6)


def test_streams_come_by_a_clock_or_when_others_end() -> None:
    mix, some = gpu_workload("longmix", 0), gpu_workload("open", 3, open_rate=50.0)
    assert (mix.num_watched, len(mix.requests), mix.arrivals[-1]) == (64, 76, 6.0)
    assert {(len(prompt), count) for prompt, count in mix.requests} == {(128, 1024), (8192, 256)}
    assert some.arrivals == gpu_workload("open", 3, open_rate=50.0).arrivals
    assert len(some.arrivals) == 400
    assert some.arrivals[-1] == pytest.approx(8, rel=0.2)
    assert gpu_workload("serve64", 0).requests == served(256, 512, 128, seed=11)


def test_the_floor_counts_weights_keys_and_values() -> None:
    floor = Floor.of("llama-8b")
    assert floor.kv_bytes == 131_072
    assert floor.layer_parameters == pytest.approx(6_979.3e6, rel=1e-4)
    assert floor.step_seconds(1, 1024) == pytest.approx(3.52e-3, rel=2e-3)
    requests = [([1] * 10, 3), ([1] * 10, 2)]
    steps = floor.step_seconds(2, 22) + floor.step_seconds(1, 12)
    assert floor.run_seconds(requests) == pytest.approx(floor.prefill_seconds(20) + steps)
    assert floor.run_seconds(requests, num_shared=8) < floor.run_seconds(requests)


def test_percentiles_interpolate() -> None:
    assert percentile([3.0], 99) == 3.0
    assert percentile([4.0, 1.0, 2.0, 3.0], 50) == 2.5
    assert percentile([0.0, 10.0], 90) == pytest.approx(9.0)


def test_stream_figures_follow_their_definitions() -> None:
    work = Workload(name="X", what="", requests=[([17] * 10, 7)], num_clients=1)
    stream = StreamTimes(sent=1.0, messages=[(1.5, 1), (1.7, 4), (2.1, 2)])
    made = figures(work, Outcome(wall_s=2.0, outputs=[[]], num_output_tokens=7, streams=[stream]))
    assert made["ttft_p50"] == (pytest.approx(500), "ms")
    assert made["tpot_mean"] == (pytest.approx(100), "ms")  # 0.6 s for the 6 tokens after the first
    assert made["itl_p50"] == (pytest.approx(300), "ms")  # gaps of 0.2 and 0.4 s
    assert made["tokens_per_message"] == (pytest.approx(7 / 3), "tok")
    assert made["output_tokens_per_s"] == (pytest.approx(3.5), "tok/s")
    assert made["total_tokens_per_s"] == (pytest.approx(8.5), "tok/s")
    assert made["goodput"] == (0.0, "1/s")  # the first token came after 500 ms


def test_watched_streams_count_alone() -> None:
    streams = [
        StreamTimes(sent=1.0, messages=[(1.1, 1), (1.14, 1), (2.0, 2)]),
        StreamTimes(sent=0.0, messages=[(5.0, 4)]),
    ]
    work = Workload(name="X", what="", requests=[([17], 4)] * 2, arrivals=[0.0, 0.5], num_watched=1)
    made = figures(work, Outcome(wall_s=5.0, outputs=[], num_output_tokens=8, streams=streams))
    assert made["output_tokens_per_s"] == (pytest.approx(4), "tok/s")
    assert made["itl_p99"][0] < 900
    assert made["ttft_p99"] == (pytest.approx(100), "ms")


def test_a_request_of_one_token_tells_the_time_to_the_first() -> None:
    work = gpu_workload("b1", 0)
    assert [(len(prompt), count) for prompt, count in work.first_token_requests] == [(512, 1)] * 3
    outcome = Outcome(wall_s=2.57, outputs=[], num_output_tokens=257, first_token_s=0.01)
    made = figures(work, outcome)
    assert (made["ttft"][0], made["tpot"][0]) == (pytest.approx(10), pytest.approx(10))


def test_cpu_seconds_of_this_process_are_its_own() -> None:
    meter = CpuMeter(list)
    with meter:
        before = os.times().user
        while os.times().user - before < 0.05:
            pass
    assert meter.own_cpu_s >= 0.04
    assert meter.other_cpu_s >= 0


def test_a_ratio_tells_median_and_spread() -> None:
    line = Ratio(workload="A", metric="output_tokens_per_s", pairs=[1.0, 0.5, 2.0]).line()
    assert line == "| A | output_tokens_per_s | 1.000 | 0.500 to 2.000 | 3 |"


def row(engine: str, value: float, repetition: int = 0) -> Row:
    return Row(
        engine=engine,
        version="1",
        model="llama-8b",
        dtype="bfloat16",
        workload="prefix64",
        repetition=repetition,
        metric="time",
        value=value,
        unit="s",
        commit="c",
        date="d",
        machine="x",
        wall_s=1.0,
        own_cpu_s=2.0,
        other_cpu_s=0.0,
        quantization="bfloat16",
        floor_share=0.5,
    )


def test_rows_are_appended_to_the_record(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "cpu.json"
    one = as_json(row("e", 1.23456789))
    record([one], path)
    record([one, one], path)
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert len(kept) == 3
    assert kept[0]["value"] == 1.23457


@dataclass
class Named:
    """As much of an engine as a summary needs."""

    name: str


def test_medians_ratios_and_verdicts_reach_the_page() -> None:
    both: Any = (Named("pagewire"), Named("vllm"))
    comparison = Comparison(both, Workloads(("prefix64",)), Measurement())
    for repetition, (ours, theirs) in enumerate([(0.5, 1.0), (0.6, 0.8), (0.6, 1.0)]):
        comparison.rows += [row("pagewire", ours, repetition), row("vllm", theirs, repetition)]
    summary = comparison.summary()
    assert [(each["engine"], each["value"], each["ratio"]) for each in summary] == [
        ("pagewire", 0.6, 0.6),
        ("vllm", 1.0, None),
    ]
    page = render(f"before\n{BEGIN}\nold\n{END}\nafter\n", summary)
    line = "| prefix64 | time | 0.6 s | 1 s | 0.600 (0.500 to 0.750, 3) | ≤ 0.70: not decided | 0.50 | c |"
    assert line in page.splitlines()
    assert "old" not in page
    aim = target("llama-8b", "bfloat16", "prefix64", "time")
    assert aim is not None
    assert target("llama-8b", "awq", "prefix64", "time") != aim
    assert (aim.verdict([0.5, 0.6]), aim.verdict([0.8])) == ("met", "missed")


def test_workload_names_are_checked() -> None:
    assert Workloads.parse("a, D").names == ("A", "D")
    assert Workloads.parse("b1,serve64").on_gpu
    for wrong in ("A,Z", "A,b1", ""):
        with pytest.raises(Exception, match="choose among"):
            Workloads.parse(wrong)
