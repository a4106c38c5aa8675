# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: N803
"""Lists the tokens of each row among which its truncation threshold lies, and those above them.

The second reading of a row, after the first has given a bracket (``bracket.py``). Beside the list it counts exactly
what the search for the threshold (``truncated_choice.py``) needs to know of the tokens that it does not look at.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from pagewire_kernels.interface import SamplingBatch
from pagewire_kernels.triton.bracket import estimate_brackets
from pagewire_kernels.triton.launch import approximate, ceil_div, next_power_of_two
from pagewire_kernels.triton.threshold import (
    MASS_HIGH,
    MIN_TEMPERATURE,
    kept_floor,
    mass_parts,
    packed_candidate,
    truncates,
)

CAPACITY = 16384
"""Tokens that a row's list holds; all of a small vocabulary."""
LIST_CHUNK, LIST_TILE, LIST_WARPS = 2048, 512, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """What the search needs to know of R rows. Rows without truncation are not written."""

    packed: torch.Tensor
    """int64 [R, CAPACITY]: the logit's float32 bits, then the token id. Tokens above a row's bracket stand in front,
    unless they are too many to be listed; those within it at the end. Other entries are not written."""
    brackets: torch.Tensor
    """float32 [R, 4]: lowest and highest logit of the bracket (first above second: there is none), the peak (NaN if the
    row holds NaN), highest logit listed."""
    sums: torch.Tensor
    """int64 [R, 3]: tokens above the bracket in the upper 32 bits and within it in the lower; mass of all tokens from
    min_p's up; mass above the bracket. Of tokens that are more than CAPACITY not all are listed."""


@triton.jit(do_not_specialize=["temperature_ptr", "top_k_ptr", "top_p_ptr", "min_p_ptr"])
def list_kernel(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    brackets_ptr,
    sums_ptr,
    packed_ptr,
    LOGITS_STRIDE: tl.constexpr,
    VOCAB: tl.constexpr,
    CAPACITY: tl.constexpr,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):
    """Lists a chunk's tokens and adds up its sums. Grid (R, chunks), the last chunk first: what the first reading read
    last is still in the cache."""
    row = tl.program_id(0).to(tl.int64)
    first_token = (tl.num_programs(1) - 1 - tl.program_id(1)) * CHUNK
    temperature = tl.load(temperature_ptr + row)
    min_p = tl.load(min_p_ptr + row)
    truncated, uses_top_k, uses_top_p = truncates(
        temperature, tl.load(top_k_ptr + row), tl.load(top_p_ptr + row), min_p, VOCAB
    )
    if truncated:
        low = tl.load(brackets_ptr + row * 4)
        high = tl.load(brackets_ptr + row * 4 + 1)
        peak = tl.load(brackets_ptr + row * 4 + 2)
        highest_listed = tl.load(brackets_ptr + row * 4 + 3)
        row_ptr = logits_ptr + row * LOGITS_STRIDE
        row_packed_ptr = packed_ptr + row * CAPACITY
        if low <= high:
            needs_mass = uses_top_p & (uses_top_k == 0)
            temperature = tl.maximum(temperature, MIN_TEMPERATURE)
            floor = kept_floor(peak, temperature, min_p)
            inverse = tl.div_rn(1.0, temperature)
            for step in tl.range(0, CHUNK, TILE):
                token_ids = first_token + step + tl.arange(0, TILE)
                logits = tl.load(row_ptr + token_ids, mask=token_ids < VOCAB, other=float("-inf")).to(tl.float32)
                # Two counts in one number: tokens above the bracket, and within it.
                counts = tl.where(logits > high, 1 << 16, tl.where(logits >= low, 1, 0))
                found = tl.sum(counts, 0)
                added = ((found >> 16).to(tl.int64) << 32) + (found & 0xFFFF).to(tl.int64)
                before = tl.atomic_add(sums_ptr + row * 3, added, mask=found > 0, sem="relaxed")
                if needs_mass:
                    # TILE masses fit 32 bits.
                    high_part, low_part = mass_parts(logits, floor, peak, inverse, APPROXIMATE)
                    mass = tl.sum(high_part, 0).to(tl.int64) * MASS_HIGH + tl.sum(low_part, 0)
                    tl.atomic_add(sums_ptr + row * 3 + 1, mass, sem="relaxed")
                    if high < float("inf"):
                        high_part = tl.where(logits > high, high_part, 0)
                        low_part = tl.where(logits > high, low_part, 0)
                        mass = tl.sum(high_part, 0).to(tl.int64) * MASS_HIGH + tl.sum(low_part, 0)
                        tl.atomic_add(sums_ptr + row * 3 + 2, mass, sem="relaxed")
                if found > 0:
                    num_above = (before >> 32).to(tl.int32)
                    num_within = (before & 0x7FFFFFFF).to(tl.int32)
                    num_listed = num_within + (found & 0xFFFF)
                    if highest_listed > high:
                        num_listed += num_above + (found >> 16)
                    # Tokens above the bracket are listed from the front, those within it from the back.
                    if num_listed <= CAPACITY:
                        places = tl.cumsum(counts, 0)
                        places = tl.where(
                            logits > high, num_above - 1 + (places >> 16), CAPACITY - num_within - (places & 0xFFFF)
                        )
                        listed = (logits >= low) & (logits <= highest_listed)
                        packed = packed_candidate(logits, token_ids)
                        tl.store(row_packed_ptr + places.to(tl.uint32), packed, mask=listed)


def list_candidates(logits: torch.Tensor, batch: SamplingBatch) -> Candidates:
    """Candidates of each row of logits [R, V], columns contiguous. Reads the rows with truncation twice."""
    rows, vocab = logits.shape
    capacity = min(CAPACITY, 2 * next_power_of_two(vocab))
    brackets, sums = estimate_brackets(logits, batch, capacity)
    packed = torch.empty((rows, capacity), dtype=torch.int64, device=logits.device)
    list_kernel[(rows, ceil_div(vocab, LIST_CHUNK))](
        logits,
        batch.temperature,
        batch.top_k,
        batch.top_p,
        batch.min_p,
        brackets,
        sums,
        packed,
        LOGITS_STRIDE=logits.stride(0),
        VOCAB=vocab,
        CAPACITY=capacity,
        CHUNK=LIST_CHUNK,
        TILE=LIST_TILE,
        APPROXIMATE=approximate(logits.device),
        num_warps=LIST_WARPS,
    )
    return Candidates(packed=packed, brackets=brackets, sums=sums)
