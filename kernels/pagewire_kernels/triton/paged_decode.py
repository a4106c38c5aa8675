# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: N803, N806
"""Attention of one query a sequence over its pages (arXiv 2309.06180), split along the keys (flash decoding).

One program handles the query heads that share a key/value head over one split of the sequence, so every key is read
once. A sequence short enough for one split is finished there; otherwise each split leaves its normalised partial
result and its log-sum-exp, and the last split to arrive combines them in split order. Only a counter is atomic, so
results do not depend on timing. The split of a sequence depends on its length and on the launch's shape and hint alone.
What sequences share is read by ``shared_prefix.py`` first; here remain their own tokens.
"""

import torch
import triton
import triton.language as tl

from pagewire_kernels.interface import AttentionBatch
from pagewire_kernels.triton.early_start import early_start, let_next_start, wait_for_previous
from pagewire_kernels.triton.launch import check_attention_shapes, decode_splits, decode_tiles, num_processors, on_hip
from pagewire_kernels.triton.paged_tile import LOG2_E, LOWEST, page_rows, softmax_step
from pagewire_kernels.triton.shared_prefix import (
    MIN_SHARED_SPLIT,
    SHARED_SPLITS,
    shared_prefix,
    shared_split_tokens,
    tile_tokens,
)


@triton.jit
def split_tokens(kv_len, NUM_SPLITS: tl.constexpr, MIN_SPLIT: tl.constexpr, TILE: tl.constexpr):
    """Tokens of one split: a multiple of TILE, at least MIN_SPLIT."""
    return tl.maximum(tl.cdiv(tl.cdiv(kv_len, NUM_SPLITS), TILE) * TILE, MIN_SPLIT)


@triton.jit
def combine_splits(
    partial_ptr,
    log_sum_ptr,
    out_ptr,
    splits_used,
    shared_splits,
    NUM_SPLITS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Weighs the partial results of one key/value head's rows: own splits in order, then those of shared tokens."""
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, HEAD_DIM)
    exists = rows < GROUP
    peak = tl.full([ROWS], LOWEST, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    weighted = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    for part in tl.range(0, splits_used + shared_splits):
        split_rows = tl.where(part < splits_used, part, part - splits_used + NUM_SPLITS) * ROWS + rows
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


@triton.jit(do_not_specialize=["page_tables_ptr", "kv_lens_ptr", "shared_lens_ptr", "page_table_stride"])
def paged_decode_kernel(
    q_ptr,
    kv_pages_ptr,
    page_tables_ptr,
    kv_lens_ptr,
    out_ptr,
    partial_ptr,
    log_sum_ptr,
    counters_ptr,
    shared_lens_ptr,
    scale,
    page_table_stride,
    Q_STRIDE: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    MIN_SPLIT: tl.constexpr,
    SHARED_SPLITS: tl.constexpr,
    MIN_SHARED_SPLIT: tl.constexpr,
    SHARED_TILE: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """One split of one (sequence, key/value head). Grid (S, NUM_KV_HEADS, NUM_SPLITS)."""
    let_next_start(PDL)
    wait_for_previous(PDL)
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    sequence = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    kv_len = tl.load(kv_lens_ptr + sequence)
    shared_len = tl.full((), 0, tl.int32)
    if SHARED_SPLITS > 0:
        shared_len = tl.load(shared_lens_ptr + sequence)
    own_len = kv_len - shared_len
    tokens_per_split = split_tokens(own_len, NUM_SPLITS, MIN_SPLIT, TILE)
    begin = shared_len + split * tokens_per_split
    end = tl.minimum(begin + tokens_per_split, kv_len)
    if (begin >= kv_len) & (split > 0):
        return

    # q, weighted [ROWS, HEAD_DIM]; rows past GROUP are padding
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, HEAD_DIM)
    exists = (rows < GROUP)[:, None]
    head_offsets = (kv_head * GROUP + rows)[:, None] * HEAD_DIM + dims[None, :]
    q = tl.load(q_ptr + sequence * Q_STRIDE + head_offsets, mask=exists, other=0.0)
    peak = tl.full([ROWS], LOWEST, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    weighted = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    page_table_ptr = page_tables_ptr + sequence * page_table_stride
    for first_token in tl.range(begin, end, TILE, num_stages=NUM_STAGES):
        visible = first_token + tl.arange(0, TILE) < end
        key_rows = page_rows(page_table_ptr, first_token, end, kv_head, NUM_KV_HEADS, PAGE_SIZE, TILE)
        keys = tl.load(kv_pages_ptr + key_rows[None, :] * HEAD_DIM + dims[:, None], mask=visible[None, :], other=0.0)
        scores = tl.dot(q, keys.to(q.dtype), input_precision="ieee") * (scale * LOG2_E)
        scores = tl.where(visible[None, :], scores, LOWEST)
        value_rows = key_rows + NUM_KV_HEADS * PAGE_SIZE
        values = tl.load(
            kv_pages_ptr + value_rows[:, None] * HEAD_DIM + dims[None, :], mask=visible[:, None], other=0.0
        )
        peak, total, weighted = softmax_step(scores, values.to(q.dtype), peak, total, weighted)

    # A padded sequence (kv_len 0) has total 0 and writes zeros.
    result = weighted / tl.maximum(total, 1.0e-30)[:, None]
    if (tokens_per_split >= own_len) & (shared_len == 0):
        out_target = out_ptr + sequence * (NUM_HEADS * HEAD_DIM) + head_offsets
        tl.store(out_target, result.to(out_ptr.dtype.element_ty), mask=exists)
    else:
        head = sequence * NUM_KV_HEADS + kv_head
        SLOTS: tl.constexpr = NUM_SPLITS + SHARED_SPLITS
        partial_row = (head * SLOTS + split) * ROWS + rows
        tl.store(partial_ptr + partial_row[:, None] * HEAD_DIM + dims[None, :], result, mask=exists)
        tl.store(log_sum_ptr + partial_row, peak + tl.log2(total), mask=rows < GROUP)
        tl.debug_barrier()
        splits_used = tl.cdiv(own_len, tokens_per_split)
        shared_splits = tl.full((), 0, tl.int32)
        if SHARED_SPLITS > 0:
            shared_splits = tl.cdiv(
                shared_len, shared_split_tokens(shared_len, SHARED_SPLITS, MIN_SHARED_SPLIT, SHARED_TILE)
            )
        if tl.atomic_add(counters_ptr + head, 1, sem="acq_rel") == splits_used - 1:
            tl.debug_barrier()
            combine_splits(
                partial_ptr + head * (SLOTS * ROWS * HEAD_DIM),
                log_sum_ptr + head * (SLOTS * ROWS),
                out_ptr + sequence * (NUM_HEADS * HEAD_DIM) + kv_head * (GROUP * HEAD_DIM),
                splits_used, shared_splits, NUM_SPLITS, GROUP, HEAD_DIM, ROWS,
            )  # fmt: skip
            tl.store(counters_ptr + head, 0)


def paged_decode(
    q: torch.Tensor,
    kv_pages: torch.Tensor,
    batch: AttentionBatch,
    scale: float,
    out: torch.Tensor,
    counters: torch.Tensor,
) -> None:
    """Writes rows ``[:num_decodes]`` of out [T, H, D]; shapes as in the interface.

    counters int32: ``num_decodes * num_kv_heads`` zeros at least, zeros again afterwards.

    Reads each sequence's keys and values once. Never reads a page-table entry or a slot at or past kv_len. Softmax and
    sums in float32; weights are rounded to the queries' dtype before they meet the values.
    """
    num_heads, num_kv_heads, head_dim, page_size = check_attention_shapes(q, kv_pages)
    sequences = batch.num_decodes
    tiles = decode_tiles(num_heads // num_kv_heads, q.dtype, on_hip())
    splits, min_split = decode_splits(
        sequences, num_kv_heads, batch.max_kv_len, num_processors(q.device), uneven=batch.uneven
    )
    shared_splits = SHARED_SPLITS if batch.shared is not None else 0
    slots = splits + shared_splits
    partial_rows = sequences * num_kv_heads * slots * tiles.rows if slots > 1 else 1
    partial = torch.empty((partial_rows, head_dim), dtype=torch.float32, device=q.device)
    log_sum = torch.empty((partial_rows,), dtype=torch.float32, device=q.device)
    if batch.shared is not None:
        shared_prefix(
            q,
            kv_pages,
            batch,
            batch.shared,
            scale,
            partial,
            log_sum,
            num_slots=slots,
            first_slot=splits,
            partial_rows=tiles.rows,
        )
    paged_decode_kernel[(sequences, num_kv_heads, splits)](
        q,
        kv_pages,
        batch.page_tables,
        batch.kv_lens,
        out,
        partial,
        log_sum,
        counters,
        batch.kv_lens if batch.shared is None else batch.shared.shared_lens,
        scale,
        batch.page_tables.stride(0),
        Q_STRIDE=q.stride(0),
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        PAGE_SIZE=page_size,
        ROWS=tiles.rows,
        TILE=tiles.tokens,
        NUM_SPLITS=splits,
        MIN_SPLIT=min_split,
        SHARED_SPLITS=shared_splits,
        MIN_SHARED_SPLIT=MIN_SHARED_SPLIT,
        SHARED_TILE=tile_tokens(q.dtype),
        NUM_STAGES=tiles.num_stages,
        num_warps=tiles.num_warps,
        **early_start(),
    )
