"""Turns logits into the rows' next tokens, on the device.

A row whose logits hold NaN gets status 1 and token 0: the scheduler ends it, and until it does the row goes on with a
token id that exists, so that its neighbours' step is not disturbed.
"""

import torch
from pagewire_kernels import KernelSet, SamplingBatch

STATUS_FINE = 0
STATUS_NAN = 1


def sample_rows(
    kernels: KernelSet,
    logits: torch.Tensor,
    batch: SamplingBatch,
    sampled_rows: torch.Tensor,
    last_token_ids: torch.Tensor,
) -> torch.Tensor:
    """Sample, feed the tokens back, and give int32 [2, R]: token ids, then statuses.

    logits [R, V]; sampled_rows int64 [R]; last_token_ids int32 [rows], written.
    """
    token_ids, statuses = kernels.sample(logits, batch)
    token_ids = torch.where(statuses == STATUS_FINE, token_ids, 0).to(torch.int32)
    last_token_ids.index_copy_(0, sampled_rows, token_ids)
    return torch.stack((token_ids, statuses.to(torch.int32)))
