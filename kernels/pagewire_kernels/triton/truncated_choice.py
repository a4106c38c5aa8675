# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: N803
"""Each truncated row's exact threshold, and the row's token where all kept tokens are among its listed candidates.

The search goes through the list (``candidates.py``) if the list turns out to hold the threshold, else through the row:
same result, slower. A row whose kept tokens are too many for a list gets its token from ``sampler.py``.
"""

import torch
import triton
import triton.language as tl

from pagewire_kernels.interface import SamplingBatch
from pagewire_kernels.triton.bracket import LOWEST
from pagewire_kernels.triton.candidates import list_candidates
from pagewire_kernels.triton.launch import approximate
from pagewire_kernels.triton.noise import noisy_scores, random_words, row_key
from pagewire_kernels.triton.paged_tile import LOG2_E
from pagewire_kernels.triton.threshold import (
    MIN_TEMPERATURE,
    UNUSED_BITS,
    candidate_logits,
    kept_floor,
    mass_from,
    mass_limit,
    top_k_threshold,
    top_p_threshold,
    truncates,
)

SEARCH_TILE, CHOICE_TILE, NUM_WARPS = 2048, 1024, 8


@triton.jit
def search_list(
    within_ptr,
    num_within,
    num_above,
    row_mass,
    mass_above,
    low,
    high,
    peak,
    floor,
    inverse_temperature,
    top_k,
    top_p,
    uses_top_k,
    uses_top_p,
    TILE: tl.constexpr,
    UNUSED: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):
    """(threshold, whether it is in the bracket): the candidates within it are searched."""
    # Below the bracket only tokens at -inf are missing, or with top_p such without mass.
    threshold = tl.maximum(floor, low)
    top = tl.minimum(high, peak)
    found = low <= high
    if uses_top_k & found:
        found = (num_above < top_k) & ((num_above + num_within >= top_k) | (low <= tl.maximum(floor, LOWEST)))
        if found:
            threshold = top_k_threshold(within_ptr, num_within, top_k - num_above, threshold, top, TILE, UNUSED)
    if uses_top_p & found:
        mass = mass_from(within_ptr, num_within, threshold, peak, inverse_temperature, TILE, APPROXIMATE)
        limit = mass_limit(tl.where(uses_top_k, mass, row_mass), top_p) - mass_above
        found = (limit > 0) & (mass >= limit)
        if found:
            threshold = top_p_threshold(
                within_ptr, num_within, limit, threshold, top, peak, inverse_temperature, TILE, UNUSED, APPROXIMATE
            )
    return threshold, found


@triton.jit
def search_row(
    row_ptr,
    peak,
    floor,
    inverse_temperature,
    top_k,
    top_p,
    uses_top_k,
    uses_top_p,
    VOCAB: tl.constexpr,
    TILE: tl.constexpr,
    UNUSED: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):
    """The threshold, from all logits of the row."""
    threshold = floor
    if uses_top_k:
        threshold = top_k_threshold(row_ptr, VOCAB, top_k, threshold, peak, TILE, UNUSED)
    if uses_top_p:
        if tl.abs(peak) < float("inf"):
            kept_mass = mass_from(row_ptr, VOCAB, threshold, peak, inverse_temperature, TILE, APPROXIMATE)
            threshold = top_p_threshold(
                row_ptr, VOCAB, mass_limit(kept_mass, top_p), threshold, peak, peak, inverse_temperature, TILE, UNUSED,
                APPROXIMATE,
            )  # fmt: skip
        else:
            threshold = peak  # no other logit has mass
    return threshold


@triton.jit
def best_listed(
    packed_ptr,
    num_above,
    num_listed,
    threshold,
    scale,
    key,
    CAPACITY: tl.constexpr,
    TILE: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):
    """Id of the listed token with the best score from the threshold up."""
    best = tl.full([TILE], float("-inf"), tl.float32)
    best_ids = tl.full([TILE], 2147483647, tl.int32)
    for first in tl.range(0, num_listed, TILE):
        places = first + tl.arange(0, TILE)
        inside = places < num_listed
        places = tl.where(places < num_above, places, CAPACITY - 1 - (places - num_above))
        packed = tl.load(packed_ptr + places, mask=inside, other=0)
        logits, token_ids = candidate_logits(packed), packed.to(tl.int32)
        word_0, word_1, word_2, word_3 = random_words((token_ids >> 2).to(tl.uint32), key[1], key[2], key[0])
        odd = (token_ids & 1) > 0
        word = tl.where((token_ids & 2) > 0, tl.where(odd, word_3, word_2), tl.where(odd, word_1, word_0))
        scores = noisy_scores(logits, word, scale, APPROXIMATE)
        scores = tl.where(inside & (logits >= threshold), scores, float("-inf"))
        wins = (scores > best) | ((scores == best) & (token_ids < best_ids))
        best = tl.where(wins, scores, best)
        best_ids = tl.where(wins, token_ids, best_ids)
    return tl.min(tl.where(best == tl.max(best, 0), best_ids, 2147483647), 0)


@triton.jit(
    do_not_specialize=[
        "temperature_ptr", "top_k_ptr", "top_p_ptr", "min_p_ptr", "seeds_ptr", "output_index_ptr",
        "output_positions_ptr",
    ]
)  # fmt: skip
def truncated_choice_kernel(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    seeds_ptr,
    output_index_ptr,
    output_positions_ptr,
    brackets_ptr,
    sums_ptr,
    packed_ptr,
    threshold_ptr,
    token_ids_ptr,
    status_ptr,
    LOGITS_STRIDE: tl.constexpr,
    VOCAB: tl.constexpr,
    CAPACITY: tl.constexpr,
    TILE: tl.constexpr,
    CHOICE_TILE: tl.constexpr,
    UNUSED: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):
    """A row's threshold, -inf if it keeps everything, and its token, -1 if it is still to be chosen. Grid (R,)."""
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperature_ptr + row)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    min_p = tl.load(min_p_ptr + row)
    truncated, uses_top_k, uses_top_p = truncates(temperature, top_k, top_p, min_p, VOCAB)
    threshold = tl.full((), float("-inf"), tl.float32)
    token_id = tl.full((), -1, tl.int32)
    status = tl.zeros((), tl.int32)
    if truncated:
        low = tl.load(brackets_ptr + row * 4)
        high = tl.load(brackets_ptr + row * 4 + 1)
        peak = tl.load(brackets_ptr + row * 4 + 2)
        fits = tl.load(brackets_ptr + row * 4 + 3) == float("inf")
        if peak != peak:
            token_id = tl.zeros((), tl.int32)
            status = tl.full((), 1, tl.int32)
        else:
            temperature = tl.maximum(temperature, MIN_TEMPERATURE)
            floor = kept_floor(peak, temperature, min_p)
            inverse = tl.div_rn(1.0, temperature)
            row_packed_ptr = packed_ptr + row * CAPACITY
            counts = tl.load(sums_ptr + row * 3)
            num_above = (counts >> 32).to(tl.int32)
            num_within = (counts & 0x7FFFFFFF).to(tl.int32)
            num_listed = num_within + tl.where(fits, num_above, 0)
            low = tl.where(num_listed <= CAPACITY, low, float("inf"))
            high = tl.where(num_listed <= CAPACITY, high, float("-inf"))
            threshold, found = search_list(
                row_packed_ptr + CAPACITY - num_within, num_within, num_above, tl.load(sums_ptr + row * 3 + 1),
                tl.load(sums_ptr + row * 3 + 2), low, high, peak, floor, inverse, top_k, top_p, uses_top_k, uses_top_p,
                TILE, UNUSED, APPROXIMATE,
            )  # fmt: skip
            if found == 0:
                threshold = search_row(
                    logits_ptr + row * LOGITS_STRIDE, peak, floor, inverse, top_k, top_p, uses_top_k, uses_top_p,
                    VOCAB, TILE, UNUSED, APPROXIMATE,
                )  # fmt: skip
            if found & fits:
                scale = tl.div_rn(LOG2_E, temperature)
                key = row_key(row, seeds_ptr, output_positions_ptr, output_index_ptr)
                token_id = best_listed(
                    row_packed_ptr, num_above, num_listed, threshold, scale, key, CAPACITY, CHOICE_TILE,
                    APPROXIMATE,
                )  # fmt: skip
    tl.store(threshold_ptr + row, threshold)
    tl.store(token_ids_ptr + row, token_id)
    tl.store(status_ptr + row, status.to(tl.uint8))


def choose_truncated(
    logits: torch.Tensor, batch: SamplingBatch, token_ids: torch.Tensor, status: torch.Tensor
) -> torch.Tensor:
    """float32 thresholds [R]; writes token_ids, -1 for rows whose token is still to be chosen, and status.

    Reads the logits of truncated rows twice; a row whose list was not enough is read some 8 times, in float32 16 times,
    for each of top_k and top_p.
    """
    rows, vocab = logits.shape
    threshold = torch.empty((rows,), dtype=torch.float32, device=logits.device)
    found = list_candidates(logits, batch)
    truncated_choice_kernel[(rows,)](
        logits,
        batch.temperature,
        batch.top_k,
        batch.top_p,
        batch.min_p,
        batch.seeds,
        batch.output_index,
        batch.output_positions,
        found.brackets,
        found.sums,
        found.packed,
        threshold,
        token_ids,
        status,
        LOGITS_STRIDE=logits.stride(0),
        VOCAB=vocab,
        CAPACITY=found.packed.shape[1],
        TILE=SEARCH_TILE,
        CHOICE_TILE=CHOICE_TILE,
        UNUSED=UNUSED_BITS[logits.dtype],
        APPROXIMATE=approximate(logits.device),
        num_warps=NUM_WARPS,
    )
    return threshold
