# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: N803
"""Each row's truncation threshold, as ``truncation.py`` defines it, by bisection over the bits of float32.

Floats compare like their bit patterns once negative ones are flipped, so quartering an integer interval finds the
smallest value that few enough tokens (top_k), or little enough mass (top_p), lie above: exactly a kept token's value.
Values of 16 bits leave half of a pattern's bits unused, and half of the rounds. No sort, no candidate list, no failure
case; the work is the same for every distribution.
"""

import torch
import triton
import triton.language as tl

from pagewire_kernels import truncation
from pagewire_kernels.interface import SamplingBatch

MIN_TEMPERATURE = tl.constexpr(truncation.MIN_TEMPERATURE)
MASS_ONE = tl.constexpr(truncation.MASS_ONE)
TILE_TOKENS = 8192
NUM_WARPS = 16
_UNUSED_BITS = {torch.bfloat16: 16, torch.float16: 13, torch.float32: 0}


@triton.jit
def float_to_key(value, UNUSED: tl.constexpr):
    """int64 that orders like the float32 scalar; neighbouring values of the logits' dtype have neighbouring keys."""
    bits = value.to(tl.int32, bitcast=True)
    return (tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF) >> UNUSED).to(tl.int64)


@triton.jit
def key_to_float(key, UNUSED: tl.constexpr):
    """The float32 scalar of a key; the unused bits of a negative value are zeros, like those of others."""
    narrow = key.to(tl.int32) << UNUSED
    return tl.where(narrow >= 0, narrow, (narrow | ((1 << UNUSED) - 1)) ^ 0x7FFFFFFF).to(tl.float32, bitcast=True)


@triton.jit
def load_tile(logits_row_ptr, first_token, VOCAB: tl.constexpr, TILE: tl.constexpr):
    """(float32 logits, inside the vocabulary) of TILE tokens."""
    token_ids = first_token + tl.arange(0, TILE)
    inside = token_ids < VOCAB
    return tl.load(logits_row_ptr + token_ids, mask=inside, other=float("-inf")).to(tl.float32), inside


@triton.jit
def row_peak(logits_row_ptr, VOCAB: tl.constexpr, TILE: tl.constexpr):
    """Largest logit; NaN is passed over."""
    peaks = tl.full([TILE], float("-inf"), tl.float32)
    for first_token in tl.range(0, VOCAB, TILE):
        logits, _inside = load_tile(logits_row_ptr, first_token, VOCAB, TILE)
        peaks = tl.where(logits > peaks, logits, peaks)
    return tl.max(peaks, 0)


@triton.jit
def counts_above(logits_row_ptr, pivot_1, pivot_2, pivot_3, VOCAB: tl.constexpr, TILE: tl.constexpr):
    """Tokens strictly above each pivot."""
    count_1 = tl.zeros([TILE], tl.int32)
    count_2 = tl.zeros([TILE], tl.int32)
    count_3 = tl.zeros([TILE], tl.int32)
    for first_token in tl.range(0, VOCAB, TILE):
        # Nothing is above -inf that lies outside the vocabulary: those lanes hold -inf themselves.
        logits, _inside = load_tile(logits_row_ptr, first_token, VOCAB, TILE)
        count_1 += (logits > pivot_1).to(tl.int32)
        count_2 += (logits > pivot_2).to(tl.int32)
        count_3 += (logits > pivot_3).to(tl.int32)
    return tl.sum(count_1, 0), tl.sum(count_2, 0), tl.sum(count_3, 0)


@triton.jit
def token_masses(logits, inside, peak, inverse_temperature):
    """int64 mass of each token; none outside the vocabulary."""
    relative = tl.where(logits == peak, 1.0, tl.exp((logits - peak) * inverse_temperature))
    return tl.where(inside, relative * MASS_ONE, 0.0).to(tl.int64)


@triton.jit
def mass_from(logits_row_ptr, pivot, peak, inverse_temperature, VOCAB: tl.constexpr, TILE: tl.constexpr):
    """Mass at the pivot and above."""
    mass = tl.zeros([TILE], tl.int64)
    for first_token in tl.range(0, VOCAB, TILE):
        logits, inside = load_tile(logits_row_ptr, first_token, VOCAB, TILE)
        mass += token_masses(logits, inside & (logits >= pivot), peak, inverse_temperature)
    return tl.sum(mass, 0)


@triton.jit
def masses_above(
    logits_row_ptr, pivot_1, pivot_2, pivot_3, peak, inverse_temperature, VOCAB: tl.constexpr, TILE: tl.constexpr
):
    """Mass strictly above each pivot."""
    mass_1 = tl.zeros([TILE], tl.int64)
    mass_2 = tl.zeros([TILE], tl.int64)
    mass_3 = tl.zeros([TILE], tl.int64)
    for first_token in tl.range(0, VOCAB, TILE):
        logits, inside = load_tile(logits_row_ptr, first_token, VOCAB, TILE)
        masses = token_masses(logits, inside, peak, inverse_temperature)
        mass_1 += tl.where(logits > pivot_1, masses, 0)
        mass_2 += tl.where(logits > pivot_2, masses, 0)
        mass_3 += tl.where(logits > pivot_3, masses, 0)
    return tl.sum(mass_1, 0), tl.sum(mass_2, 0), tl.sum(mass_3, 0)


@triton.jit
def quarters(low, high):
    """Three keys that quarter the interval from low, which is none of them, to high, which the last may be."""
    width = high - low
    return low + (width + 3) // 4, low + (2 * width + 3) // 4, low + (3 * width + 3) // 4


@triton.jit
def narrowed(low, high, key_1, key_2, key_3, few_1, few_2, few_3):
    """The quarter that ends at the first key with few enough above it."""
    new_high = tl.where(few_1, key_1, tl.where(few_2, key_2, tl.where(few_3, key_3, high)))
    new_low = tl.where(few_1, low, tl.where(few_2, key_1, tl.where(few_3, key_2, key_3)))
    return new_low, new_high


@triton.jit(do_not_specialize=["temperature_ptr", "top_k_ptr", "top_p_ptr", "min_p_ptr"])
def truncation_threshold_kernel(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    threshold_ptr,
    LOGITS_STRIDE: tl.constexpr,
    VOCAB: tl.constexpr,
    TILE: tl.constexpr,
    UNUSED: tl.constexpr,
):
    """The threshold of one row; -inf if it keeps everything. Grid (R,)."""
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperature_ptr + row)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    min_p = tl.load(min_p_ptr + row)
    uses_top_k = (top_k > 0) & (top_k < VOCAB)
    uses_top_p = top_p < 1.0
    threshold = tl.full((), float("-inf"), tl.float32)
    if (temperature > 0.0) & (uses_top_k | uses_top_p | (min_p > 0.0)):
        temperature = tl.maximum(temperature, MIN_TEMPERATURE)
        row_ptr = logits_ptr + row * LOGITS_STRIDE
        peak = row_peak(row_ptr, VOCAB, TILE)
        if min_p > 0.0:
            threshold = peak + temperature * tl.log(min_p)
        if uses_top_k:
            # Invariant of both searches: the key `high` satisfies the condition, `low` does not or bounds the interval.
            low = float_to_key(threshold, UNUSED) - 1
            high = float_to_key(peak, UNUSED)
            while high - low > 1:
                key_1, key_2, key_3 = quarters(low, high)
                pivots = key_to_float(key_1, UNUSED), key_to_float(key_2, UNUSED), key_to_float(key_3, UNUSED)
                count_1, count_2, count_3 = counts_above(row_ptr, pivots[0], pivots[1], pivots[2], VOCAB, TILE)
                few = count_1 < top_k, count_2 < top_k, count_3 < top_k
                low, high = narrowed(low, high, key_1, key_2, key_3, few[0], few[1], few[2])
            # The lowest key may lie below a threshold that is no value of the logits' dtype.
            threshold = tl.maximum(threshold, key_to_float(high, UNUSED))
        if uses_top_p:
            inverse = tl.div_rn(1.0, temperature)
            kept_mass = mass_from(row_ptr, threshold, peak, inverse, VOCAB, TILE)
            limit = tl.maximum((kept_mass.to(tl.float64) * top_p.to(tl.float64)).to(tl.int64), 1)
            low = float_to_key(threshold, UNUSED) - 1
            high = float_to_key(peak, UNUSED)
            while high - low > 1:
                key_1, key_2, key_3 = quarters(low, high)
                pivots = key_to_float(key_1, UNUSED), key_to_float(key_2, UNUSED), key_to_float(key_3, UNUSED)
                mass_1, mass_2, mass_3 = masses_above(
                    row_ptr, pivots[0], pivots[1], pivots[2], peak, inverse, VOCAB, TILE
                )
                few = mass_1 < limit, mass_2 < limit, mass_3 < limit
                low, high = narrowed(low, high, key_1, key_2, key_3, few[0], few[1], few[2])
            threshold = tl.maximum(threshold, key_to_float(high, UNUSED))
    tl.store(threshold_ptr + row, threshold)


def truncation_thresholds(logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """float32 [R]: tokens with logits at or above it are kept. logits [R, V], columns contiguous.

    A row without truncation, or greedy, costs nothing; each of top_k and top_p reads its row about 8 times, in float32
    16 times.
    """
    rows, vocab = logits.shape
    threshold = torch.empty((rows,), dtype=torch.float32, device=logits.device)
    truncation_threshold_kernel[(rows,)](
        logits,
        batch.temperature,
        batch.top_k,
        batch.top_p,
        batch.min_p,
        threshold,
        LOGITS_STRIDE=logits.stride(0),
        VOCAB=vocab,
        TILE=TILE_TOKENS,
        UNUSED=_UNUSED_BITS[logits.dtype],
        num_warps=NUM_WARPS,
    )
    return threshold
