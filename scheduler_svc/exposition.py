"""Metrics as text in Prometheus' exposition format, version 0.0.4.

Knows families, labels and numbers, not what they mean. A family with no sample is left out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scheduler_svc.histogram import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric: its name without ``_total``, what it is, and its samples by labels."""

    name: str
    kind: str
    """gauge, counter or histogram."""
    text: str
    values: Sequence[tuple[Labels, float]] = ()
    histograms: Sequence[tuple[Labels, Histogram]] = field(default=())


def gauge(name: str, text: str, value: float | Mapping[str, float], label: str = "") -> Family:
    return Family(name=name, kind="gauge", text=text, values=_samples(value, label))


def counter(name: str, text: str, value: float | Mapping[str, float], label: str = "") -> Family:
    return Family(name=name + "_total", kind="counter", text=text, values=_samples(value, label))


def histogram(name: str, text: str, of: Histogram | Mapping[str, Histogram], label: str = "") -> Family:
    histograms: list[tuple[Labels, Histogram]]
    histograms = [({}, of)] if isinstance(of, Histogram) else [({label: key}, each) for key, each in of.items()]
    return Family(name=name, kind="histogram", text=text, histograms=histograms)


def _samples(value: float | Mapping[str, float], label: str) -> list[tuple[Labels, float]]:
    if isinstance(value, Mapping):
        return [({label: key}, each) for key, each in value.items()]
    return [({}, value)]


def render(families: Iterable[Family]) -> bytes:
    """The whole answer to a scrape."""
    lines: list[str] = []
    for family in families:
        if not family.values and not family.histograms:
            continue
        lines.append(f"# HELP {family.name} {family.text}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        lines += [f"{family.name}{_braced(labels)} {_number(value)}" for labels, value in family.values]
        for labels, each in family.histograms:
            lines += _buckets(family.name, labels, each)
    return "\n".join([*lines, ""]).encode()


def _buckets(name: str, labels: Labels, of: Histogram) -> list[str]:
    lines, below = [], 0
    for bound, count in zip((*of.bounds, float("inf")), of.counts, strict=True):
        below += count
        lines.append(f"{name}_bucket{_braced({**labels, 'le': _number(bound)})} {below}")
    own = _braced(labels)
    return [*lines, f"{name}_sum{own} {_number(of.total)}", f"{name}_count{own} {below}"]


def _braced(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}" if labels else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(float(value))
