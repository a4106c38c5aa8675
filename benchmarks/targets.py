"""What the comparison on an H200 aims at, as ratios of ours to vLLM 0.25.1, and what it says of a ratio."""

from collections.abc import Sequence
from dataclasses import dataclass

MODELS = ("qwen3-0.6b", "llama-8b")
"""With weights in 16 bits."""


@dataclass(frozen=True, slots=True)
class Target:
    """A bound of a ratio: ``at_least`` for rates, else at most, for times."""

    bound: float
    at_least: bool = False

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:.2f}"

    def verdict(self, ratios: Sequence[float]) -> str:
        """Decided only if all pairs agree."""
        met = [ratio >= self.bound if self.at_least else ratio <= self.bound for ratio in ratios]
        return "met" if all(met) else "not decided" if any(met) else "missed"


_BY_MODEL = {
    ("b1", "tpot"): (Target(0.50), Target(0.90)),
    ("b1", "ttft"): (Target(0.35), Target(0.80)),
    ("b64", "output_tokens_per_s"): (Target(1.25, True), Target(1.04, True)),
    ("ragged256", "output_tokens_per_s"): (Target(1.20, True), Target(1.06, True)),
    ("prefix64", "time"): (Target(0.35), Target(0.70)),
    ("serve256", "output_tokens_per_s"): (Target(2.0, True), Target(1.0, True)),
    ("serve256", "itl_p99"): (Target(0.5), Target(0.4)),
    ("serve256", "ttft_p99"): (Target(0.5), Target(0.95)),
    ("open", "ttft_p99"): (Target(0.5), Target(0.6)),
    ("open", "goodput"): (Target(1.2, True), Target(1.2, True)),
    ("longmix", "itl_p99"): (Target(0.5), Target(0.5)),
    ("longmix", "output_tokens_per_s"): (Target(1.0, True), Target(1.0, True)),
}


_AWQ = {
    ("llama-8b", "b1", "tpot"): Target(0.58),
    ("llama-8b", "b64", "output_tokens_per_s"): Target(1.15, True),
    ("llama-8b", "ragged256", "output_tokens_per_s"): Target(1.10, True),
    ("llama-8b", "prefix64", "time"): Target(0.60),
    ("llama-2-13b", "equal100", "output_tokens_per_s"): Target(1.05, True),
}


def target(model: str, quantization: str, workload: str, metric: str) -> Target | None:
    """The target of a figure, if it has one. ``quantization`` as in a row: a dtype's name where there is none."""
    if quantization == "awq":
        return _AWQ.get((model, workload, metric))
    both = _BY_MODEL.get((workload, metric))
    return both[MODELS.index(model)] if both is not None and model in MODELS else None
