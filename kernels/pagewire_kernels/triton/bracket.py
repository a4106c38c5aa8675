# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: N803
"""Estimates where each row's truncation threshold lies, from one reading of the row.

Tokens form groups of GROUP_TOKENS. The reading leaves the largest logit of each group (all but a few of the row's
highest tokens) and one token of each (a sample of the rest); a histogram of both says how many tokens will be kept, and
gives a bracket of logits that all but surely holds the threshold. An estimate decides what is listed
(``candidates.py``), never what is kept: whether the threshold lies in the bracket is known when it is searched.
"""

import torch
import triton
import triton.language as tl

from pagewire_kernels.interface import SamplingBatch
from pagewire_kernels.triton.launch import ceil_div, next_power_of_two
from pagewire_kernels.triton.threshold import MIN_TEMPERATURE, kept_floor, truncates

GROUP_TOKENS = 32
GROUPS = 512
"""Groups of a chunk; a group's tokens lie this far apart, so that the popular tokens of low ids are in many groups."""
CHUNK_TOKENS = GROUP_TOKENS * GROUPS
NUM_BINS = 256
PEAK_WARPS, BRACKET_WARPS = 2, 8
LOWEST = tl.constexpr(-3.4028234663852886e38)
MASSLESS = tl.constexpr(29.0)
"""A token that many temperatures below the peak has no mass: exp(-29) is less than 2**-40."""


@triton.jit(do_not_specialize=["temperature_ptr", "top_k_ptr", "top_p_ptr", "min_p_ptr"])
def group_peaks_kernel(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    peaks_ptr,
    others_ptr,
    LOGITS_STRIDE: tl.constexpr,
    VOCAB: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP_TOKENS: tl.constexpr,
):
    """Largest logit of each group, NaN if it holds one, and its first where that is another, else -inf.

    Grid (R, chunks)."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    truncated, _top_k, _top_p = truncates(
        tl.load(temperature_ptr + row),
        tl.load(top_k_ptr + row),
        tl.load(top_p_ptr + row),
        tl.load(min_p_ptr + row),
        VOCAB,
    )
    if truncated:
        groups = tl.arange(0, GROUPS)
        token_ids = chunk * (GROUPS * GROUP_TOKENS) + groups
        row_ptr = logits_ptr + row * LOGITS_STRIDE
        first = tl.load(row_ptr + token_ids, mask=token_ids < VOCAB, other=float("-inf")).to(tl.float32)
        peaks = first
        for _ in tl.static_range(1, GROUP_TOKENS):
            token_ids += GROUPS
            logits = tl.load(row_ptr + token_ids, mask=token_ids < VOCAB, other=float("-inf")).to(tl.float32)
            peaks = tl.maximum(peaks, logits, propagate_nan=tl.PropagateNan.ALL)
        target = row * NUM_GROUPS + chunk * GROUPS + groups
        tl.store(peaks_ptr + target, peaks)
        tl.store(others_ptr + target, tl.where(first < peaks, first, float("-inf")))


@triton.jit
def bins_of(logits, peak, bottom, scale, NUM_BINS: tl.constexpr):
    """Histogram of the logits from the bottom up; the peak's bin is the first."""
    counted = logits >= bottom
    depth = tl.where(counted, peak - logits, 0.0) * scale
    return tl.histogram(tl.minimum(depth.to(tl.int32), NUM_BINS - 1), NUM_BINS, mask=counted)


@triton.jit
def estimate_bracket(
    peaks,
    others,
    peak,
    bottom,
    temperature,
    top_k,
    top_p,
    uses_top_k,
    uses_top_p,
    NUM_BINS: tl.constexpr,
    GROUP_TOKENS: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    """(low, high, whether all kept tokens fit a list): (inf, -inf) if no bracket helps."""
    span = peak - bottom
    width = span / NUM_BINS
    scale = NUM_BINS / tl.where(span > 0.0, span, float("inf"))
    seen = bins_of(peaks, peak, bottom, scale, NUM_BINS) + GROUP_TOKENS * bins_of(others, peak, bottom, scale, NUM_BINS)
    bins = tl.arange(0, NUM_BINS)
    ranks = tl.cumsum(seen, 0)
    counted = tl.sum(seen, 0)
    kept = counted
    if uses_top_k:
        kept = tl.minimum(top_k, counted)
    elif uses_top_p:
        masses = tl.cumsum(seen.to(tl.float32) * tl.exp((bins.to(tl.float32) + 0.5) * (-width / temperature)), 0)
        edge = tl.sum((masses < tl.max(masses, 0) * top_p).to(tl.int32), 0)
        kept = tl.sum(tl.where(bins == edge, ranks, 0), 0)
    # Seven and five times the estimate's deviation: a row whose threshold lies outside holds up its whole batch.
    margin = kept // 4 + CAPACITY // 16
    fits = tl.minimum(kept + margin, counted) <= CAPACITY * 3 // 4
    margin = tl.where(fits, margin, CAPACITY * 5 // 16)
    depth = (tl.sum((ranks < kept + margin).to(tl.int32), 0) + 1).to(tl.float32)
    low = tl.where(kept + margin > counted, float("-inf"), peak - width * depth)
    depth = tl.sum((ranks < kept - margin).to(tl.int32), 0).to(tl.float32)
    high = tl.where(depth > 0.0, peak - width * depth, float("inf"))
    if uses_top_k & uses_top_p:
        # Where top_p's threshold lies depends on all that top_k keeps.
        low = tl.where(fits, low, float("inf"))
        high = tl.where(fits, float("inf"), float("-inf"))
    return low, high, fits


@triton.jit(do_not_specialize=["temperature_ptr", "top_k_ptr", "top_p_ptr", "min_p_ptr"])
def bracket_kernel(
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    peaks_ptr,
    others_ptr,
    brackets_ptr,
    sums_ptr,
    VOCAB: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    TILE: tl.constexpr,
    NUM_BINS: tl.constexpr,
    GROUP_TOKENS: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    """A row's bracket; zeroes its sums. Grid (R,)."""
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperature_ptr + row)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    min_p = tl.load(min_p_ptr + row)
    truncated, uses_top_k, uses_top_p = truncates(temperature, top_k, top_p, min_p, VOCAB)
    if truncated:
        temperature = tl.maximum(temperature, MIN_TEMPERATURE)
        groups = tl.arange(0, TILE)
        inside = groups < NUM_GROUPS
        peaks = tl.load(peaks_ptr + row * NUM_GROUPS + groups, mask=inside, other=float("-inf")).to(tl.float32)
        others = tl.load(others_ptr + row * NUM_GROUPS + groups, mask=inside, other=float("-inf")).to(tl.float32)
        # As integers NaN is above all others.
        bits = tl.where(peaks == peaks, peaks.to(tl.int32, bitcast=True), 0x7FC00000)
        key = tl.max(tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF), 0)
        peak = tl.where(key >= 0, key, key ^ 0x7FFFFFFF).to(tl.float32, bitcast=True)
        low = tl.full((), float("inf"), tl.float32)
        high = tl.full((), float("-inf"), tl.float32)
        fits = tl.full((), False, tl.int1)
        if tl.abs(peak) < float("inf"):
            # Below this nothing counts, but for tokens at -inf, which never win where others are.
            least = tl.maximum(kept_floor(peak, temperature, min_p), LOWEST)
            if uses_top_p & (uses_top_k == 0):
                least = tl.maximum(least, peak - MASSLESS * temperature)
            finite = tl.minimum(tl.where(peaks >= LOWEST, peaks, peak), tl.where(others >= LOWEST, others, peak))
            lowest = tl.min(finite, 0)
            low, high, fits = estimate_bracket(
                peaks, others, peak, tl.maximum(lowest, least), temperature, top_k, top_p, uses_top_k, uses_top_p,
                NUM_BINS, GROUP_TOKENS, CAPACITY,
            )  # fmt: skip
            low = tl.maximum(low, least)
        tl.store(brackets_ptr + row * 4, low)
        tl.store(brackets_ptr + row * 4 + 1, high)
        tl.store(brackets_ptr + row * 4 + 2, peak)
        tl.store(brackets_ptr + row * 4 + 3, tl.where(fits, float("inf"), high))
        for column in tl.static_range(3):
            tl.store(sums_ptr + row * 3 + column, tl.zeros((), tl.int64))


def estimate_brackets(logits: torch.Tensor, batch: SamplingBatch, capacity: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(brackets, sums) of logits [R, V] for lists of ``capacity``, as ``Candidates`` describes them; the sums are zero.

    Reads the rows with truncation once.
    """
    rows, vocab = logits.shape
    num_chunks = ceil_div(vocab, CHUNK_TOKENS)
    num_groups = num_chunks * GROUPS
    peaks, others = torch.empty((2, rows, num_groups), dtype=logits.dtype, device=logits.device)
    brackets = torch.empty((rows, 4), dtype=torch.float32, device=logits.device)
    sums = torch.empty((rows, 3), dtype=torch.int64, device=logits.device)
    parameters = (batch.temperature, batch.top_k, batch.top_p, batch.min_p)
    group_peaks_kernel[(rows, num_chunks)](
        logits,
        *parameters,
        peaks,
        others,
        LOGITS_STRIDE=logits.stride(0),
        VOCAB=vocab,
        NUM_GROUPS=num_groups,
        GROUPS=GROUPS,
        GROUP_TOKENS=GROUP_TOKENS,
        num_warps=PEAK_WARPS,
    )
    bracket_kernel[(rows,)](
        *parameters,
        peaks,
        others,
        brackets,
        sums,
        VOCAB=vocab,
        NUM_GROUPS=num_groups,
        TILE=next_power_of_two(num_groups),
        NUM_BINS=NUM_BINS,
        GROUP_TOKENS=GROUP_TOKENS,
        CAPACITY=capacity,
        num_warps=BRACKET_WARPS,
    )
    return brackets, sums
