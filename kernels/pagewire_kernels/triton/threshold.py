# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: N803
"""Truncation thresholds, as ``truncation.py`` defines them, by bisection over the bits of float32.

Floats compare like their bit patterns once negative ones are flipped, so quartering an integer interval finds the
smallest value that few enough tokens (top_k), or little enough mass (top_p), lie above: exactly a kept token's value.
Values of 16 bits leave half of a pattern's bits unused, and half of the rounds. The values may be a row's own or a list
of its candidates (``candidates.py``).
"""

import torch
import triton
import triton.language as tl

from pagewire_kernels import truncation
from pagewire_kernels.triton.paged_tile import LOG2_E

MIN_TEMPERATURE = tl.constexpr(truncation.MIN_TEMPERATURE)
MASS_ONE = tl.constexpr(truncation.MASS_ONE)
MASS_HIGH = tl.constexpr(1 << 20)
"""A mass is counted in two parts, so that sums of a few hundred fit 32 bits: whole multiples of this, and the rest."""
ROUNDING = tl.constexpr(1.5 * 2.0**43)
"""Floats near it are multiples of MASS_HIGH."""
ROUNDING_BITS = tl.constexpr(0x55400000)
UNUSED_BITS = {torch.bfloat16: 16, torch.float16: 13, torch.float32: 0}


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
def truncates(temperature, top_k, top_p, min_p, VOCAB: tl.constexpr):
    """(any truncation, top_k is used, top_p is used) of a row."""
    uses_top_k = (top_k > 0) & (top_k < VOCAB)
    uses_top_p = top_p < 1.0
    return (temperature > 0.0) & (uses_top_k | uses_top_p | (min_p > 0.0)), uses_top_k, uses_top_p


@triton.jit
def kept_floor(peak, temperature, min_p):
    """Smallest logit that min_p keeps; -inf without it."""
    floor = peak + temperature * tl.log(tl.where(min_p > 0.0, min_p, 1.0))
    return tl.where(min_p > 0.0, floor, float("-inf"))


@triton.jit
def packed_candidate(logits, token_ids):
    """int64: the float32 logit's bits, then the token id."""
    return (logits.to(tl.int32, bitcast=True).to(tl.int64) << 32) | token_ids.to(tl.int64)


@triton.jit
def candidate_logits(packed):
    return (packed >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def load_tile(values_ptr, first, num_values, TILE: tl.constexpr):
    """TILE float32 logits, of a row or of its packed candidates; -inf past the last."""
    places = first + tl.arange(0, TILE)
    if values_ptr.dtype.element_ty == tl.int64:
        logits = candidate_logits(tl.load(values_ptr + places, mask=places < num_values, other=0))
        logits = tl.where(places < num_values, logits, float("-inf"))
    else:
        logits = tl.load(values_ptr + places, mask=places < num_values, other=float("-inf")).to(tl.float32)
    return logits


@triton.jit
def exponential(x, APPROXIMATE: tl.constexpr):
    """As Triton's, but that subnormal results, which have no mass, are zero."""
    power = x
    if APPROXIMATE:
        instruction: tl.constexpr = "ex2.approx.ftz.f32 $0, $1;"
        power = tl.inline_asm_elementwise(instruction, "=f,f", [x * LOG2_E], tl.float32, is_pure=True, pack=1)
    else:
        power = tl.exp(x)
    return power


@triton.jit
def mass_parts(logits, bottom, peak, inverse_temperature, APPROXIMATE: tl.constexpr):
    """The mass of each logit from the bottom up below a finite peak: int32 multiples of MASS_HIGH, the int32 rest."""
    mass = exponential((logits - peak) * inverse_temperature, APPROXIMATE) * MASS_ONE
    mass = tl.where(logits >= bottom, mass, 0.0)
    # Half a multiple less rounds to the multiple at or below (or, on a multiple, to it or the one before).
    rounded = (mass - 0.5 * MASS_HIGH) + ROUNDING
    rest = mass - (rounded - ROUNDING)
    return rounded.to(tl.int32, bitcast=True) - ROUNDING_BITS, rest.to(tl.int32)


@triton.jit
def total_mass(high_parts, low_parts):
    """int64 sum of masses."""
    return tl.sum(high_parts.to(tl.int64) * MASS_HIGH + low_parts, 0)


@triton.jit
def counts_above(values_ptr, num_values, pivot_1, pivot_2, pivot_3, TILE: tl.constexpr):
    """Tokens strictly above each pivot."""
    count_1 = tl.zeros([TILE], tl.int32)
    count_2 = tl.zeros([TILE], tl.int32)
    count_3 = tl.zeros([TILE], tl.int32)
    for first in tl.range(0, num_values, TILE):
        values = load_tile(values_ptr, first, num_values, TILE)
        count_1 += (values > pivot_1).to(tl.int32)
        count_2 += (values > pivot_2).to(tl.int32)
        count_3 += (values > pivot_3).to(tl.int32)
    return tl.sum(count_1, 0), tl.sum(count_2, 0), tl.sum(count_3, 0)


@triton.jit
def mass_from(values_ptr, num_values, pivot, peak, inverse_temperature, TILE: tl.constexpr, APPROXIMATE: tl.constexpr):
    """Mass at the pivot and above."""
    high_parts = tl.zeros([TILE], tl.int32)
    low_parts = tl.zeros([TILE], tl.int32)
    for first in tl.range(0, num_values, TILE):
        values = load_tile(values_ptr, first, num_values, TILE)
        high_part, low_part = mass_parts(values, pivot, peak, inverse_temperature, APPROXIMATE)
        high_parts += high_part
        low_parts += low_part
    return total_mass(high_parts, low_parts)


@triton.jit
def masses_above(
    values_ptr,
    num_values,
    pivot_1,
    pivot_2,
    pivot_3,
    peak,
    inverse_temperature,
    TILE: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):
    """Mass strictly above each pivot."""
    high_1 = tl.zeros([TILE], tl.int32)
    high_2 = tl.zeros([TILE], tl.int32)
    high_3 = tl.zeros([TILE], tl.int32)
    low_1 = tl.zeros([TILE], tl.int32)
    low_2 = tl.zeros([TILE], tl.int32)
    low_3 = tl.zeros([TILE], tl.int32)
    for first in tl.range(0, num_values, TILE):
        values = load_tile(values_ptr, first, num_values, TILE)
        high_part, low_part = mass_parts(values, pivot_1, peak, inverse_temperature, APPROXIMATE)
        high_1 += tl.where(values > pivot_1, high_part, 0)
        high_2 += tl.where(values > pivot_2, high_part, 0)
        high_3 += tl.where(values > pivot_3, high_part, 0)
        low_1 += tl.where(values > pivot_1, low_part, 0)
        low_2 += tl.where(values > pivot_2, low_part, 0)
        low_3 += tl.where(values > pivot_3, low_part, 0)
    return total_mass(high_1, low_1), total_mass(high_2, low_2), total_mass(high_3, low_3)


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


@triton.jit
def top_k_threshold(values_ptr, num_values, top_k, bottom, top, TILE: tl.constexpr, UNUSED: tl.constexpr):
    """Smallest value from bottom to top that fewer than top_k tokens lie above; as many do not above the top."""
    # Invariant of both searches: the key `high` satisfies the condition, `low` does not or bounds the interval.
    low = float_to_key(bottom, UNUSED) - 1
    high = float_to_key(top, UNUSED)
    while high - low > 1:
        key_1, key_2, key_3 = quarters(low, high)
        pivot_1 = key_to_float(key_1, UNUSED)
        pivot_2 = key_to_float(key_2, UNUSED)
        pivot_3 = key_to_float(key_3, UNUSED)
        count_1, count_2, count_3 = counts_above(values_ptr, num_values, pivot_1, pivot_2, pivot_3, TILE)
        low, high = narrowed(low, high, key_1, key_2, key_3, count_1 < top_k, count_2 < top_k, count_3 < top_k)
    # The lowest key may lie below a bottom that is no value of the logits' dtype.
    return tl.maximum(bottom, key_to_float(high, UNUSED))


@triton.jit
def top_p_threshold(
    values_ptr,
    num_values,
    limit,
    bottom,
    top,
    peak,
    inverse_temperature,
    TILE: tl.constexpr,
    UNUSED: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):
    """Smallest value from bottom to top that less than the limit's mass lies above."""
    low = float_to_key(bottom, UNUSED) - 1
    high = float_to_key(top, UNUSED)
    while high - low > 1:
        key_1, key_2, key_3 = quarters(low, high)
        pivot_1 = key_to_float(key_1, UNUSED)
        pivot_2 = key_to_float(key_2, UNUSED)
        pivot_3 = key_to_float(key_3, UNUSED)
        mass_1, mass_2, mass_3 = masses_above(
            values_ptr, num_values, pivot_1, pivot_2, pivot_3, peak, inverse_temperature, TILE, APPROXIMATE
        )
        low, high = narrowed(low, high, key_1, key_2, key_3, mass_1 < limit, mass_2 < limit, mass_3 < limit)
    return tl.maximum(bottom, key_to_float(high, UNUSED))


@triton.jit
def mass_limit(kept_mass, top_p):
    """Mass above a token from which top_p drops it."""
    return tl.maximum((kept_mass.to(tl.float64) * top_p.to(tl.float64)).to(tl.int64), 1)
