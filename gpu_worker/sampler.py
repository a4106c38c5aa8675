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


def resample_rows(kernels: KernelSet, rules: LogitRules, sampled: Sampled, places: Int64s, rows: RowIds) -> None:
    """Sample rows with rules again, into ``sampled``. ``places`` are theirs among the rows that sample, ``rows`` their
    row ids."""
    faults = [STATUS_GRAMMAR if row in rules.matchers else STATUS_NAN for row in rows.tolist()]
    ruled = rules.upload_rows(places, rows, np.array(faults, dtype=np.int32))
    adjusted = rules.apply(sampled.logits.index_select(0, ruled.places), rows, ruled.slots)
    token_ids, statuses = kernels.sample(adjusted, ruled.sampling)
    kernels.settle(adjusted, token_ids, statuses, ruled.faults, ruled.places, sampled.packed)
    rules.count(sampled.packed[0], rows, ruled)


def _sample(kernels: KernelSet, logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    token_ids, statuses = kernels.sample(logits, batch)
    token_ids = torch.where(statuses == STATUS_FINE, token_ids, 0).to(torch.int32)
    return torch.stack((token_ids, statuses.to(torch.int32)))
