"""Histograms, the text format, and totals of fronts that come late, twice or not at all."""

import pytest

from scheduler_svc.exposition import Family, counter, gauge, histogram, render
from scheduler_svc.histogram import STALL_SECONDS, Histogram
from scheduler_svc.messages import Code, FrontFigures
from scheduler_svc.request_metrics import MAX_FRONTS_REMEMBERED, RequestMetrics


def test_values_fall_in_the_part_whose_bound_they_reach() -> None:
    found = Histogram((1.0, 2.0))
    for value, times in ((1.0, 1), (1.5, 3), (2.5, 2), (-4.0, 1)):
        found.observe(value, times)
    assert list(found.counts) == [2, 3, 2]
    assert (found.count, found.total) == (7, 10.5)


def test_text_for_prometheus() -> None:
    of = Histogram((0.5, 1))
    of.observe(0.7, 2)
    families = [
        gauge("g", "A gauge.", {"a": 1.5, 'b"\n\\': 2}, "reason"),
        counter("c", "A counter.", 3),
        histogram("h", "A histogram.", {"x": of}, "part"),
        Family(name="nothing", kind="counter", text="Left out."),
    ]
    assert render(families).decode().splitlines() == [
        "# HELP g A gauge.",
        "# TYPE g gauge",
        'g{reason="a"} 1.5',
        r'g{reason="b\"\n\\"} 2',
        "# HELP c_total A counter.",
        "# TYPE c_total counter",
        "c_total 3",
        "# HELP h A histogram.",
        "# TYPE h histogram",
        'h_bucket{part="x",le="0.5"} 0',
        'h_bucket{part="x",le="1"} 2',
        'h_bucket{part="x",le="+Inf"} 2',
        'h_sum{part="x"} 1.4',
        'h_count{part="x"} 2',
    ]


def figures(count: int, stalls: int = 0) -> FrontFigures:
    counts = [stalls, *[0] * len(STALL_SECONDS)]
    refused = {(Code.INVALID_ARGUMENT, "INVALID_FIELD"): count}
    return FrontFigures(refused=refused, stall_counts=counts, stall_seconds=0.02 * stalls)


def test_what_fronts_say_again_counts_once() -> None:
    metrics = RequestMetrics()
    for front, count, stalls in ((1, 2, 1), (2, 5, 0), (1, 2, 1), (1, 4, 3), (1, 3, 2), (2, 5, 0)):
        metrics.front_said(front, figures(count, stalls))
    assert metrics.outcomes == {("rejected", "INVALID_ARGUMENT"): 4 + 5 + 0}
    assert metrics.rejections == {"INVALID_FIELD": 9}
    assert metrics.stalls.count == 3
    assert metrics.stalls.total == pytest.approx(0.06)


def test_columns_of_another_length_are_let_be_and_fronts_are_forgotten() -> None:
    metrics = RequestMetrics()
    metrics.front_said(1, FrontFigures(stall_counts=[1, 2]))
    assert metrics.stalls.count == 0
    for front in range(3 * MAX_FRONTS_REMEMBERED):
        metrics.front_said(front, figures(1))
    assert metrics.rejections == {"INVALID_FIELD": 3 * MAX_FRONTS_REMEMBERED}
