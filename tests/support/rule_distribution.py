"""Rows with options, drawn many times over: chi-square of their tokens against exact probabilities.

The exact ones come from the reference's rules and truncation, in float64; the tokens from a kernel set behind the
worker's slots.
"""

from typing import Any

import numpy as np
import torch
from pagewire_kernels import KernelSet
from pagewire_kernels.reference import adjusted_logits, truncation_threshold
from support.kernel_cases import sampling_batch

from gpu_worker.batch_plan import BatchPlan, NewRows, RowOptions, int32s
from gpu_worker.logit_rules import LogitRules
from gpu_worker.matchers import Matchers
from gpu_worker.request_rows import RequestRows, RowLimits

LOGITS = (2.0, 1.5, 1.0, 0.5, 0.0, -0.5, 0.0, 1.0)
PROMPT, OUTPUT = (0, 5), (1, 1, 3, 6)
CASES: tuple[tuple[dict[str, Any], dict[str, float]], ...] = (
    ({"repetition_penalty": 1.7}, {"temperature": 1.0}),
    ({"frequency_penalty": 0.8, "presence_penalty": -0.6}, {"temperature": 0.8}),
    ({"bias": {2: 1.25, 5: 2.5, 0: -1.0}}, {"temperature": 1.0}),
    ({"bias": {2: 1.25, 4: -0.5}}, {"temperature": 1.3, "min_p": 0.2}),
    ({"repetition_penalty": 0.8, "frequency_penalty": 0.4, "bias": {7: 0.5}}, {"temperature": 1.0, "min_p": 0.1}),
    ({"presence_penalty": 0.9, "allowed_token_ids": [0, 1, 3, 4, 6, 7]}, {"temperature": 1.0, "top_p": 0.9}),
    ({"frequency_penalty": 0.5, "bad_words": [[6, 0], [2]]}, {"temperature": 0.9, "top_k": 5}),
)
NUM_SLOTS = 4
MOST_LIKELY = 35.0
"""At most 7 degrees of freedom: by chance above once in 100,000."""


def check_rule_distribution(
    kernels: KernelSet, options: dict[str, Any], parameters: dict[str, float], device: str = "cpu", rows: int = 2000
) -> None:
    rules = _rules(kernels, options, device)
    alike = torch.tensor(LOGITS, device=device).expand(NUM_SLOTS, 8).contiguous()
    held = int32s(range(NUM_SLOTS))
    adjusted = rules.apply(alike, held, rules.upload_rows(rules.places(held), held, held).slots)
    logits = adjusted.repeat(rows // NUM_SLOTS, 1)
    token_ids, statuses = kernels.sample(
        logits, sampling_batch(rows, device, output_index=1, output_position=len(OUTPUT), **parameters)
    )
    assert not statuses.any()
    counts = torch.bincount(token_ids.long().cpu(), minlength=8).double()
    expected = _probabilities(options, parameters) * rows
    kept = expected > 0
    assert counts[~kept].sum() == 0
    assert float(((counts - expected).square() / expected)[kept].sum()) < MOST_LIKELY


def _rules(kernels: KernelSet, options: dict[str, Any], device: str) -> LogitRules:
    """Slots of equal rows."""
    rows = NUM_SLOTS
    bias = options.get("bias", {})
    given = RowOptions(
        **{name: value for name, value in options.items() if name.endswith("_penalty")},
        bias_token_ids=int32s(list(bias)),
        biases=np.array(list(bias.values()), dtype=np.float32),
        allowed_token_ids=int32s(options.get("allowed_token_ids", ())),
        bad_words=[tuple(word) for word in options.get("bad_words", ())],
    )
    ids = (*PROMPT, *OUTPUT)
    zeros, ones = np.zeros(rows, dtype=np.float32), np.ones(rows, dtype=np.float32)
    new = NewRows(
        rows=int32s(range(rows)),
        num_prompt_tokens=int32s([len(PROMPT)] * rows),
        num_token_ids=int32s([len(ids)] * rows),
        token_ids=int32s(ids * rows),
        num_cached_tokens=int32s([0] * rows),
        output_indices=int32s([0] * rows),
        seeds=np.zeros(rows, dtype=np.uint64),
        temperatures=zeros,
        top_ps=ones,
        top_ks=int32s([0] * rows),
        min_ps=zeros,
        options=dict.fromkeys(range(rows), given),
    )
    limits = RowLimits(
        max_num_seqs=rows, max_num_batched_tokens=rows, max_model_len=32, page_size=16, num_pages=1, vocab_size=8
    )
    held, plan = RequestRows(limits), BatchPlan(new_rows=new)
    rules = LogitRules(held, kernels, torch.device(device), Matchers(None, 8))
    held.advance(plan)
    rules.follow(plan)
    return rules


def _probabilities(options: dict[str, Any], parameters: dict[str, float]) -> torch.Tensor:
    adjusted = adjusted_logits(torch.tensor(LOGITS), PROMPT, OUTPUT, **options)
    top_p, min_p = float(parameters.get("top_p", 1.0)), float(parameters.get("min_p", 0.0))
    threshold = truncation_threshold(adjusted, parameters["temperature"], int(parameters.get("top_k", 0)), top_p, min_p)
    kept = (adjusted >= threshold) & adjusted.isfinite()
    scaled = (adjusted.double() / parameters["temperature"]).masked_fill(~kept, float("-inf"))
    return torch.softmax(scaled, dim=0)
