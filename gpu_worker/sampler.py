"""Turns logits into the rows' next tokens, on the device.

A row whose logits hold NaN gets status 1 and token 0, one whose grammar leaves no token status 2: the scheduler ends
it, and until it does the row goes on with a token id that exists, so that its neighbours' step is not disturbed.

Every row is sampled as if it had no options: that part is the same in every step, so a CUDA graph can hold it. Rows
whose options change their logits are then sampled again, from the same logits, and the second answer counts.
"""

from dataclasses import dataclass

import numpy as np
import torch
from pagewire_kernels import KernelSet, SamplingBatch

from gpu_worker.batch_plan import Int64s, RowIds
from gpu_worker.logit_rules import LogitRules

STATUS_FINE = 0
STATUS_NAN = 1
STATUS_GRAMMAR = 2


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a step's rows sampled, on the device."""

    packed: torch.Tensor
    """int32 [2, R]: token ids, then statuses."""
    logits: torch.Tensor
    """[R, V] as the model gave them."""
    prompt_hidden: torch.Tensor | None = None
    """[N, H] of the prompt positions whose log probabilities are asked for."""


def sample_rows(
    kernels: KernelSet,
    logits: torch.Tensor,
    batch: SamplingBatch,
    sampled_rows: torch.Tensor,
    last_token_ids: torch.Tensor,
) -> Sampled:
    """Sample all rows and feed the tokens back.

    logits [R, V]; sampled_rows int64 [R]; last_token_ids int32 [rows], written.
    """
    packed = _sample(kernels, logits, batch)
    last_token_ids.index_copy_(0, sampled_rows, packed[0])
    return Sampled(packed, logits)


def resample_rows(
    kernels: KernelSet,
    rules: LogitRules,
    sampled: Sampled,
    batch: SamplingBatch,
    places: Int64s,
    rows: RowIds,
    last_token_ids: torch.Tensor,
) -> None:
    """Sample rows with rules again. ``places`` are theirs among the rows that sample, ``rows`` their row ids."""
    where, row_ids = rules.upload(np.stack((places, rows.astype(np.int64))))
    adjusted = rules.apply(sampled.logits.index_select(0, where), rows)
    packed = _sample(kernels, adjusted, _select(batch, where))
    nothing_left = adjusted.amax(dim=1) == float("-inf")
    faults = [STATUS_GRAMMAR if row in rules.matchers else STATUS_NAN for row in rows.tolist()]
    packed[1] = torch.where(nothing_left, rules.upload(np.array(faults, dtype=np.int32)), packed[1])
    packed[0].masked_fill_(nothing_left, 0)
    rules.count(packed[0], rows)
    last_token_ids.index_copy_(0, row_ids, packed[0])
    sampled.packed.index_copy_(1, where, packed)


def _sample(kernels: KernelSet, logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    token_ids, statuses = kernels.sample(logits, batch)
    token_ids = torch.where(statuses == STATUS_FINE, token_ids, 0).to(torch.int32)
    return torch.stack((token_ids, statuses.to(torch.int32)))


def _select(batch: SamplingBatch, places: torch.Tensor) -> SamplingBatch:
    """The parameters of some of the rows."""
    return SamplingBatch(
        temperature=batch.temperature.index_select(0, places),
        top_k=batch.top_k.index_select(0, places),
        top_p=batch.top_p.index_select(0, places),
        min_p=batch.min_p.index_select(0, places),
        seeds=batch.seeds.index_select(0, places),
        output_index=batch.output_index.index_select(0, places),
        output_positions=batch.output_positions.index_select(0, places),
        all_greedy=batch.all_greedy,
        any_truncation=batch.any_truncation,
    )
