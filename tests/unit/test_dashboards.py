"""Alert rules and the dashboard speak of metrics that exist, with labels that they have."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import CoreConfig
from scheduler_svc.metrics import Metrics
from scheduler_svc.requests import Requests

DEPLOY = Path(__file__).parents[2] / "deploy"
LABELS = {"instance", "job", "le", "reason", "finish_reason", "code", "part"}
"""Those of our metrics, and those that Prometheus adds."""


def metric_names() -> set[str]:
    """All names a query may use."""
    core = Scheduler(CoreConfig(max_num_batched_tokens=1, max_num_seqs=1))
    names = set()
    for family in Metrics(Requests()).families(core.counts(), 16, 0):
        suffixes = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
        names.update(family.name + suffix for suffix in suffixes)
    return names


def panels() -> list[dict[str, Any]]:
    board: dict[str, Any] = json.loads((DEPLOY / "grafana/dashboards/pagewire.json").read_text())
    return list(board["panels"])


def queries() -> Iterator[str]:
    """Every expression, of rules and panels."""
    rules = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())
    yield from (rule["expr"] for group in rules["groups"] for rule in group["rules"])
    yield from (target["expr"] for panel in panels() for target in panel.get("targets", ()))


def test_queries_name_metrics_and_labels_that_exist() -> None:
    found, names = list(queries()), metric_names()
    assert len(found) > 40
    used = {name for query in found for name in re.findall(r"pagewire_\w+", query)}
    assert used - names == set()
    labels = {label for query in found for label in re.findall(r"(\w+)=~?\"", query)}
    labels |= {
        label for query in found for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(", ")
    }
    assert labels - LABELS == set()


def test_every_metric_is_on_the_dashboard() -> None:
    shown = " ".join(target["expr"] for panel in panels() for target in panel.get("targets", ()))
    stems = {re.sub(r"_(bucket|sum|count)$", "", name) for name in metric_names()}
    missing = {stem for stem in stems if stem not in shown}
    assert missing == {"pagewire_cache_config_info", "pagewire_time_per_output_token_seconds"}


def test_panels_do_not_overlap() -> None:
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels())
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert len({panel["id"] for panel in panels()}) == len(panels())


def test_alerts_fire_when_they_should() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool (Debian: prometheus)")
    command = ["promtool", "test", "rules", "alerts_test.yml"]
    done = subprocess.run(command, cwd=DEPLOY / "prometheus", capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
