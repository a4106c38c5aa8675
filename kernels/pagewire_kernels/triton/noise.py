# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: N803
"""Sampling noise as ``philox.py`` defines it, on the device, and a token's score with it.

Scores are in base 2, which devices compute logarithms in.
"""

import triton
import triton.language as tl

PHILOX_A = tl.constexpr(0xD2511F53)
PHILOX_B = tl.constexpr(0xCD9E8D57)
PHILOX_KEY_A = tl.constexpr(0x9E3779B9)
PHILOX_KEY_B = tl.constexpr(0xBB67AE85)
# -log(1 - v) in base 2 is v times this polynomial of v.
NEAR_1 = tl.constexpr(1.4426950408889634)
NEAR_2 = tl.constexpr(1.4426950408889634 / 2.0)
NEAR_3 = tl.constexpr(1.4426950408889634 / 3.0)
NEAR_4 = tl.constexpr(1.4426950408889634 / 4.0)


@triton.jit
def random_words(counters, position, index, seed):
    """The four uint32 words of Philox4x32-10 for each uint32 counter, as ``philox.py`` defines them. seed: uint64.

    A product is taken whole: one wide multiplication gives both of its halves.
    """
    c0 = counters
    c1 = position + tl.zeros_like(counters)
    c2 = index + tl.zeros_like(counters)
    c3 = tl.zeros_like(counters)
    key_low = seed.to(tl.uint32)
    key_high = (seed >> 32).to(tl.uint32)
    for _ in tl.static_range(10):
        product_a = c0.to(tl.uint64) * PHILOX_A
        product_b = c2.to(tl.uint64) * PHILOX_B
        c0 = (product_b >> 32).to(tl.uint32) ^ c1 ^ key_low
        c2 = (product_a >> 32).to(tl.uint32) ^ c3 ^ key_high
        c1 = product_b.to(tl.uint32)
        c3 = product_a.to(tl.uint32)
        key_low += tl.full((), PHILOX_KEY_A, tl.uint32)
        key_high += tl.full((), PHILOX_KEY_B, tl.uint32)
    return c0, c1, c2, c3


@triton.jit
def row_key(row, seeds_ptr, output_positions_ptr, output_index_ptr):
    """(seed, output position, output index) of a row."""
    seed = tl.load(seeds_ptr + row).to(tl.uint64, bitcast=True)
    return seed, tl.load(output_positions_ptr + row).to(tl.uint32), tl.load(output_index_ptr + row).to(tl.uint32)


@triton.jit
def base_2_log(x, APPROXIMATE: tl.constexpr):
    """As the hardware computes it: the library's function takes ten times as long, for bits that are not needed."""
    logarithm = x
    if APPROXIMATE:
        instruction: tl.constexpr = "lg2.approx.ftz.f32 $0, $1;"
        logarithm = tl.inline_asm_elementwise(instruction, "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        logarithm = tl.log2(x)
    return logarithm


@triton.jit
def noisy_scores(logits, word, scale, APPROXIMATE: tl.constexpr):
    """``logits * scale`` and Gumbel noise, in base 2 and up to a constant: ``-log2(-log2(u))`` with a word's ``u``.

    The logarithm's error is absolute, so close to 1, where ``-log2(u)`` is as small as the noise is large, ``-log2(1 -
    v)`` is a polynomial of v. Both u and v are exact.
    """
    mantissa = (word >> 9).to(tl.int32) + 0x3F800000  # of a float in [1, 2)
    u = mantissa.to(tl.float32, bitcast=True) - (1.0 - 0.5 / 8388608.0)
    v = 1.0 - u
    near = v * (NEAR_1 + v * (NEAR_2 + v * (NEAR_3 + v * NEAR_4)))
    waiting = tl.where(v < 0.0625, near, -base_2_log(u, APPROXIMATE))
    return logits * scale - base_2_log(waiting, APPROXIMATE)
