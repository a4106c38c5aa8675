"""The rows of a step whose options change logits, as they are sampled again: what the device must know of them, in one
copy."""

from dataclasses import dataclass

import torch
from pagewire_kernels import SamplingBatch

from gpu_worker.batch_plan import Int32s, Int64s, RowIds
from gpu_worker.model_inputs import any_truncation
from gpu_worker.pinned_memory import upload_together
from gpu_worker.request_rows import RequestRows
from gpu_worker.step_columns import Columns, sampling_columns


@dataclass(frozen=True, slots=True)
class RuledRows:
    """F rows, on the device."""

    places: torch.Tensor
    """int64 [F]: theirs among the rows that sample."""
    slots: torch.Tensor
    """int64 [F]."""
    faults: torch.Tensor
    """int32 [F]: the status of a row whose rules leave no token."""
    sampling: SamplingBatch


def ruled_rows(
    held: RequestRows, places: Int64s, rows: RowIds, slots: Int64s, faults: Int32s, device: torch.device
) -> RuledRows:
    """Upload what is known of ``rows``, whose options ``held`` holds."""
    columns: Columns = {"places": places, "slots": slots, "faults": faults, **sampling_columns(held, rows)}
    uploaded = dict(zip(columns, upload_together([*columns.values()], device), strict=True))
    return RuledRows(
        uploaded.pop("places"),
        uploaded.pop("slots"),
        uploaded.pop("faults"),
        SamplingBatch(
            **uploaded,
            all_greedy=not held.temperature[rows].any(),
            any_truncation=any_truncation(held, rows),
        ),
    )
