# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: N803
"""How partial results of one key/value head's queries become one: each is normalised and comes with its log-sum-exp.

One after the other in rows padded to what a matrix instruction needs, or many at once in a group's own rows. Both keep
to the order of the splits.
"""

import triton
import triton.language as tl

from pagewire_kernels.triton.paged_tile import LOWEST


@triton.jit
def combine_splits(
    partial_ptr,
    log_sum_ptr,
    out_ptr,
    splits_used,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Weighs the partial results of one key/value head's rows in split order."""
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, HEAD_DIM)
    exists = rows < GROUP
    peak = tl.full([ROWS], LOWEST, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    weighted = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    for split in tl.range(0, splits_used):
        split_rows = split * ROWS + rows
        log_sum = tl.load(log_sum_ptr + split_rows, mask=exists, other=LOWEST, cache_modifier=".cg")
        source = partial_ptr + split_rows[:, None] * HEAD_DIM + dims[None, :]
        partial = tl.load(source, mask=exists[:, None], other=0.0, cache_modifier=".cg")
        new_peak = tl.maximum(peak, log_sum)
        rescale, weight = tl.exp2(peak - new_peak), tl.exp2(log_sum - new_peak)
        total = total * rescale + weight
        weighted = weighted * rescale[:, None] + partial * weight[:, None]
        peak = new_peak
    target = out_ptr + rows[:, None] * HEAD_DIM + dims[None, :]
    tl.store(target, (weighted / total[:, None]).to(out_ptr.dtype.element_ty), mask=exists[:, None])


@triton.jit
def leading_rows(peak, total, weighted, ROWS: tl.constexpr, KEPT: tl.constexpr, HEAD_DIM: tl.constexpr):
    """The first KEPT of ROWS rows of a running softmax."""
    kept = tl.arange(0, ROWS) < KEPT
    peak = tl.sum(tl.reshape(tl.where(kept, peak, 0.0), (ROWS // KEPT, KEPT)), 0)
    total = tl.sum(tl.reshape(tl.where(kept, total, 0.0), (ROWS // KEPT, KEPT)), 0)
    weighted = tl.sum(tl.reshape(tl.where(kept[:, None], weighted, 0.0), (ROWS // KEPT, KEPT, HEAD_DIM)), 0)
    return peak, total, weighted


@triton.jit
def fold_parts(
    partial_ptr,
    log_sum_ptr,
    own_parts,
    shared_parts,
    peak,
    total,
    weighted,
    NUM_SPLITS: tl.constexpr,
    PARTS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Folds the partial results of one key/value head into its running softmax [GROUP_ROWS, HEAD_DIM], PARTS at a
    time: own splits in order, then those of shared tokens."""
    heads = tl.arange(0, GROUP_ROWS)
    dims = tl.arange(0, HEAD_DIM)
    for first_part in tl.range(0, own_parts + shared_parts, PARTS, num_stages=1):
        part = first_part + tl.arange(0, PARTS)
        exists = (part < own_parts + shared_parts)[:, None] & (heads < GROUP)[None, :]
        slot = tl.where(part < own_parts, part, part - own_parts + NUM_SPLITS)
        rows = slot[:, None] * GROUP_ROWS + heads[None, :]
        log_sum = tl.load(log_sum_ptr + rows, mask=exists, other=LOWEST, cache_modifier=".cg")
        source = partial_ptr + rows[:, :, None] * HEAD_DIM + dims[None, None, :]
        partial = tl.load(source, mask=exists[:, :, None], other=0.0, cache_modifier=".cg")
        new_peak = tl.maximum(peak, tl.max(log_sum, 0))
        rescale, weights = tl.exp2(peak - new_peak), tl.exp2(log_sum - new_peak[None, :])
        total = total * rescale + tl.sum(weights, 0)
        weighted = weighted * rescale[:, None] + tl.sum(partial * weights[:, :, None], 0)
        peak = new_peak
    return total, weighted
