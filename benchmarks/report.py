"""Renders docs/benchmarks/h200.json: `python -m benchmarks.report` writes a table for each model into
docs/benchmarks.md, between the two marks there, and draws docs/benchmarks/h200.svg (matplotlib, the extra ``bench``).

Of every engine, model, workload and metric the newest row counts.
"""

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.engine import ROOT
from benchmarks.targets import target

RECORD = ROOT / "docs" / "benchmarks" / "h200.json"
PAGE = ROOT / "docs" / "benchmarks.md"
PLOT = RECORD.with_suffix(".svg")
BEGIN, END = "<!-- h200.json: begin -->", "<!-- h200.json: end -->"
SHOWN = (
    ("b1", "tpot"),
    ("b1", "ttft"),
    ("b64", "output_tokens_per_s"),
    ("ragged256", "output_tokens_per_s"),
    ("prefix64", "time"),
    ("equal100", "output_tokens_per_s"),
    *(("serve64", each) for each in ("output_tokens_per_s", "ttft_p50", "ttft_p99", "itl_p50", "itl_p99")),
    *(("serve256", each) for each in ("output_tokens_per_s", "ttft_p50", "ttft_p99", "itl_p50", "itl_p99")),
    ("serve256", "tokens_per_message"),
    *(("open", each) for each in ("ttft_p50", "ttft_p99", "itl_p99", "goodput")),
    *(("longmix", each) for each in ("output_tokens_per_s", "itl_p50", "itl_p99", "tokens_per_message")),
)

Key = tuple[str, str]
"""Workload and metric."""
Rows = dict[Key, dict[str, Any]]


def newest(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Rows]]:
    """By (model, quantization), then by engine, then by workload and metric; the list is in order of time."""
    made: dict[tuple[str, str], dict[str, Rows]] = {}
    for row in rows:
        of_model = made.setdefault((row["model"], row["quantization"]), {})
        of_model.setdefault(row["engine"], {})[row["workload"], row["metric"]] = row
    return made


def tables(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Markdown of every model, with the peer's figures beside ours where both were measured."""
    for name, engines in newest(rows).items():
        ours, peers = engines.get("pagewire", {}), [name for name in engines if name != "pagewire"]
        yield f"{', '.join(name)}:"
        yield ""
        columns = ("workload", "metric", "Pagewire", *peers, "ratio (pairs)", "aim", "floor", "commit")
        yield f"| {' | '.join(columns)} |"
        yield "|---" * len(columns) + "|"
        for key in SHOWN:
            if key in ours:
                yield _line(name, key, ours[key], [engines[peer].get(key) for peer in peers])
        yield ""


def _line(name: tuple[str, str], key: Key, ours: dict[str, Any], peers: Sequence[dict[str, Any] | None]) -> str:
    ratios = ours.get("ratios") or []
    aim = target(*name, *key)
    spread = f"{ours['ratio']:.3f} ({min(ratios):.3f} to {max(ratios):.3f}, {len(ratios)})" if ratios else ""
    cells = [key[0], key[1].replace("_", " "), _value(ours), *map(_value, peers), spread]
    cells.append("" if aim is None else f"{aim}: {aim.verdict(ratios)}" if ratios else str(aim))
    share = ours.get("floor_share")
    return "| " + " | ".join([*cells, "" if share is None else f"{share:.2f}", ours["commit"]]) + " |"


def _value(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    value = f"{row['value']:,.0f}" if row["value"] >= 1000 else f"{row['value']:.4g}"
    return f"{value} {row['unit']}"


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Ratios to the peer with their spread, times turned over so that more is always better."""
    from matplotlib import pyplot

    shown = {name: found for name, engines in newest(rows).items() if (found := _advantages(engines["pagewire"]))}
    figure, axes = pyplot.subplots(1, max(1, len(shown)), figsize=(5.5 * max(1, len(shown)), 5), squeeze=False)
    for axis, ((model, quantization), found) in zip(axes[0], shown.items(), strict=False):
        places = range(len(found))
        middles = [statistics.median(pairs) for _, pairs in found]
        below = [middle - min(pairs) for middle, (_, pairs) in zip(middles, found, strict=True)]
        above = [max(pairs) - middle for middle, (_, pairs) in zip(middles, found, strict=True)]
        axis.barh(places, middles, xerr=[below, above], color="#4878a8", ecolor="#333333")
        axis.set_yticks(places, [f"{workload} {metric}".replace("_", " ") for (workload, metric), _ in found])
        axis.axvline(1.0, color="#aa3333", linewidth=1)
        axis.invert_yaxis()
        axis.set_title(f"{model}, {quantization}")
        axis.set_xlabel("times as good as vLLM")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def _advantages(ours: Rows) -> list[tuple[Key, list[float]]]:
    higher = ("output_tokens_per_s", "goodput")
    return [
        (key, [ratio if key[1] in higher else 1 / ratio for ratio in ours[key]["ratios"]])
        for key in SHOWN
        if key in ours and ours[key].get("ratios")
    ]


def render(page: str, rows: Sequence[dict[str, Any]]) -> str:
    """The page with the part between the marks made anew.

    Raises:
        ValueError: the page lacks the marks.
    """
    before, after = page.index(BEGIN) + len(BEGIN), page.index(END)
    text = "\n".join(tables(rows))
    return f"{page[:before]}\n\n{text}\n![Ratios to vLLM](benchmarks/{PLOT.name})\n\n{page[after:]}"


def main() -> int:
    rows = json.loads(RECORD.read_text(encoding="utf-8"))
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
    draw(rows, PLOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
