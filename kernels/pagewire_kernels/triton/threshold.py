# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: N803
"""Each row's truncation threshold, as ``truncation.py`` defines it, by bisection over the bits of float32.

Floats compare like their bit patterns once negative ones are flipped, so about 32 halvings of an integer interval
find the smallest value that few enough tokens (top_k), or little enough mass (top_p), lie above: exactly a kept
token's value. No sort, no candidate list, no failure case; the work is the same for every distribution.
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


@triton.jit
def float_to_key(value):
    """int64 that orders like the float32 scalar."""
    bits = value.to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF).to(tl.int64)


@triton.jit
def key_to_float(key):
    """The float32 scalar of a key."""
    narrow = key.to(tl.int32)
    return tl.where(narrow >= 0, narrow, narrow ^ 0x7FFFFFFF).to(tl.float32, bitcast=True)


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
def count_above(logits_row_ptr, pivot, VOCAB: tl.constexpr, TILE: tl.constexpr):
    """Tokens strictly above the pivot."""
    count = tl.zeros([TILE], tl.int32)
    for first_token in tl.range(0, VOCAB, TILE):
        # Nothing is above -inf that lies outside the vocabulary: those lanes hold -inf themselves.
        logits, _inside = load_tile(logits_row_ptr, first_token, VOCAB, TILE)
        count += (logits > pivot).to(tl.int32)
    return tl.sum(count, 0)


@triton.jit
def mass_above(
    logits_row_ptr, pivot, peak, inverse_temperature, INCLUSIVE: tl.constexpr, VOCAB: tl.constexpr, TILE: tl.constexpr
):
    """int64 mass strictly above the pivot, or at it too if INCLUSIVE."""
    mass = tl.zeros([TILE], tl.int64)
    for first_token in tl.range(0, VOCAB, TILE):
        logits, inside = load_tile(logits_row_ptr, first_token, VOCAB, TILE)
        relative = tl.where(logits == peak, 1.0, tl.exp((logits - peak) * inverse_temperature))
        counts = logits > pivot
        if INCLUSIVE:
            counts = logits >= pivot
        mass += tl.where(counts & inside, relative * MASS_ONE, 0.0).to(tl.int64)
    return tl.sum(mass, 0)


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
        logits_row_ptr = logits_ptr + row * LOGITS_STRIDE
        peak = row_peak(logits_row_ptr, VOCAB, TILE)
        if min_p > 0.0:
            threshold = peak + temperature * tl.log(min_p)
        if uses_top_k:
            # Invariant of both searches: the key `high` satisfies the condition, `low` does not or bounds the interval.
            low = float_to_key(threshold) - 1
            high = float_to_key(peak)
            while high - low > 1:
                middle = low + (high - low) // 2
                if count_above(logits_row_ptr, key_to_float(middle), VOCAB, TILE) < top_k:
                    high = middle
                else:
                    low = middle
            threshold = key_to_float(high)
        if uses_top_p:
            inverse = tl.div_rn(1.0, temperature)
            kept_mass = mass_above(logits_row_ptr, threshold, peak, inverse, True, VOCAB, TILE)
            limit = tl.maximum((kept_mass.to(tl.float64) * top_p.to(tl.float64)).to(tl.int64), 1)
            low = float_to_key(threshold) - 1
            high = float_to_key(peak)
            while high - low > 1:
                middle = low + (high - low) // 2
                pivot = key_to_float(middle)
                if mass_above(logits_row_ptr, pivot, peak, inverse, False, VOCAB, TILE) < limit:
                    high = middle
                else:
                    low = middle
            threshold = key_to_float(high)
    tl.store(threshold_ptr + row, threshold)


def truncation_thresholds(logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """float32 [R]: tokens with logits at or above it are kept. logits [R, V], columns contiguous.

    A row without truncation, or greedy, costs nothing; each of top_k and top_p reads its row about 32 times.
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
        num_warps=NUM_WARPS,
    )
    return threshold
