"""Log probabilities of chosen and likeliest tokens: of output tokens and of prompt tokens, for the rows that ask.

They are those of the model's own logits, before penalties, temperature and truncation. A position's entries are its k
likeliest tokens, likeliest first and of equals the lower id first, and the chosen token behind them if it is not among
them; else a filler (token id -1, rank 0), so that all positions of a row have ``k + 1`` entries. Ranks count from 1 in
the same order.

The device computes; the host only cuts columns. Logits are taken a slice of positions at a time, because a prompt's
would fill the memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from gpu_worker.batch_plan import Int32s, RowIds, RowLogprobs
from gpu_worker.request_rows import RequestRows

SLICE_POSITIONS = 256
_ID_BITS = 2**31 - 1
_IDS, _VALUES, _RANKS = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Consecutive positions of one row."""

    row: int
    num_top: int
    first_position: int = 0
    """Of a prompt."""
    num_prompt_positions: int = 0
    """0: the output token that the row samples."""


@dataclass(frozen=True, slots=True)
class StepLogprobs:
    """What a step found, on its way to the host."""

    asked: Sequence[Asked]
    found: torch.Tensor
    """int32 [positions, 3, k + 1] as ``top_logprobs`` gives it, k the largest asked for."""

    def rows(self) -> list[RowLogprobs]:
        """To be called once the step is done."""
        found, start, rows = self.found.numpy(), 0, []
        for asked in self.asked:
            end = start + (asked.num_prompt_positions or 1)
            rows.append(_row(asked, found[start:end]))
            start = end
        return rows


def asked_outputs(rows: RequestRows, sampled_rows: RowIds) -> tuple[list[int], list[Asked]]:
    """Places of the sampled rows that ask for their output tokens', and what they ask for."""
    if not rows.options:
        return [], []
    found = [
        (place, Asked(row=row, num_top=options.logprobs))
        for place, row in enumerate(sampled_rows.tolist())
        if (options := rows.options.get(row)) is not None and options.logprobs is not None
    ]
    return [place for place, _ in found], [asked for _, asked in found]


def sliced_logprobs(
    inputs: torch.Tensor, chosen: torch.Tensor, num_top: int, logits: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """``top_logprobs`` of ``logits(inputs)``, a slice of positions at a time; inputs [N, ...], chosen int64 [N]."""
    parts = [
        top_logprobs(logits(some), tokens, num_top)
        for some, tokens in zip(inputs.split(SLICE_POSITIONS), chosen.split(SLICE_POSITIONS), strict=True)
    ]
    return torch.cat(parts)


def top_logprobs(logits: torch.Tensor, chosen: torch.Tensor, num_top: int) -> torch.Tensor:
    """int32 [N, 3, num_top + 1]: ids, bits of float32 log probabilities, ranks; the chosen token's last.

    logits [N, V], chosen int64 [N]. Without ties between tokens: equal logits are ordered by id.
    """
    num_top = min(num_top, logits.shape[1])
    wide = logits.float() + 0.0  # no negative zeros, whose bits would come below those of others
    bits = wide.view(torch.int32)
    ascending = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()  # ordered as the floats are
    ids = torch.arange(logits.shape[1], device=logits.device)
    keys = (ascending << 32) + (_ID_BITS - ids)
    chosen_keys = keys.gather(1, chosen[:, None])
    best = torch.topk(keys, num_top, dim=1).values
    named = torch.cat((_ID_BITS - (best & 0xFFFFFFFF), chosen[:, None]), dim=1)
    values = wide.gather(1, named) - wide.logsumexp(dim=1, keepdim=True)
    first_ranks = torch.arange(1, num_top + 1, device=logits.device).expand(len(logits), -1)
    ranks = torch.cat((first_ranks, (keys > chosen_keys).sum(dim=1, keepdim=True) + 1), dim=1)
    return torch.stack((named.int(), values.view(torch.int32), ranks.int()), dim=1)


def _row(asked: Asked, found: npt.NDArray[np.int32]) -> RowLogprobs:
    """Cuts a row's columns to what it asked for."""
    num_top = min(asked.num_top, found.shape[2] - 1)
    cut = np.concatenate((found[:, :, :num_top], found[:, :, -1:]), axis=2)
    is_listed = cut[:, _RANKS, -1] <= num_top
    cut[is_listed, _IDS, -1] = -1
    cut[is_listed, _VALUES, -1] = np.float32(-np.inf).view(np.int32)
    cut[is_listed, _RANKS, -1] = 0
    return RowLogprobs(
        row=asked.row,
        width=num_top + 1,
        first_position=asked.first_position,
        num_prompt_positions=asked.num_prompt_positions,
        token_ids=_column(cut, _IDS),
        logprobs=_column(cut, _VALUES).view(np.float32),
        ranks=_column(cut, _RANKS),
    )


def _column(cut: npt.NDArray[np.int32], which: int) -> Int32s:
    return np.ascontiguousarray(cut[:, which]).reshape(-1)
