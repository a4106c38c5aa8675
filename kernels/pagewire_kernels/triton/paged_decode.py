# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: N803, N806
"""Attention of one query a sequence over its pages (arXiv 2309.06180), split along the keys (flash decoding).

One program handles the query heads that share a key/value head over one split of the sequence, so every key is read
once. A sequence short enough for one split is finished there; otherwise each split leaves its normalised partial
result and its log-sum-exp, and the last split to arrive combines them in split order (``partial_results.py``). Only a
counter is atomic, so results do not depend on timing. The split of a sequence depends on its length and on the launch's
shape and hint alone. What sequences share is read by ``shared_prefix.py`` at the same time; here remain their own
tokens, and what finishes a sequence waits for that kernel's end and adds its partial results.
"""

import torch
import triton
import triton.language as tl

from pagewire_kernels.interface import MAX_SHARED_PARTS, AttentionBatch
from pagewire_kernels.triton.early_start import early_start, let_next_start, wait_for_previous
from pagewire_kernels.triton.launch import (
    LARGE_TILE_HEAD_DIM,
    check_attention_shapes,
    combine_parts,
    cut_finely,
    decode_rounds,
    decode_splits,
    decode_tiles,
    next_power_of_two,
    num_processors,
    on_hip,
)
from pagewire_kernels.triton.paged_tile import LOG2_E, LOWEST, page_rows, softmax_step
from pagewire_kernels.triton.partial_results import combine_splits, fold_parts, leading_rows
from pagewire_kernels.triton.shared_prefix import shared_prefix


@triton.jit
def split_tokens(kv_len, NUM_SPLITS: tl.constexpr, MIN_SPLIT: tl.constexpr, TILE: tl.constexpr):
    """Tokens of one split: a multiple of TILE, at least MIN_SPLIT."""
    return tl.maximum(tl.cdiv(tl.cdiv(kv_len, NUM_SPLITS), TILE) * TILE, MIN_SPLIT)


@triton.jit(
    do_not_specialize=["page_tables_ptr", "kv_lens_ptr", "shared_lens_ptr", "shared_parts_ptr", "page_table_stride"]
)
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
    shared_parts_ptr,
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
    SHARED_SLOTS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    PARTS: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """One split of one (sequence, key/value head). Grid (S, NUM_KV_HEADS, NUM_SPLITS)."""
    let_next_start(PDL)
    # Behind shared_prefix the own tokens need no waiting for it: it started when they were there.
    if SHARED_SLOTS == 0:
        wait_for_previous(PDL)
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    # What is read before the wait may lie in the first-level cache as it was.
    CACHED: tl.constexpr = ".cg" if SHARED_SLOTS > 0 else ""
    sequence = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    kv_len = tl.load(kv_lens_ptr + sequence)
    shared_len = tl.full((), 0, tl.int32)
    if SHARED_SLOTS > 0:
        shared_len = tl.load(shared_lens_ptr + sequence)
    own_len = kv_len - shared_len
    tokens_per_split = split_tokens(own_len, NUM_SPLITS, MIN_SPLIT, TILE)
    begin = shared_len + split * tokens_per_split
    end = tl.minimum(begin + tokens_per_split, kv_len)
    if (begin >= kv_len) & (split > 0):
        if SHARED_SLOTS > 0:
            wait_for_previous(PDL)
        return

    # q, weighted [ROWS, HEAD_DIM]; rows past GROUP are padding
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, HEAD_DIM)
    exists = (rows < GROUP)[:, None]
    head_offsets = (kv_head * GROUP + rows)[:, None] * HEAD_DIM + dims[None, :]
    q = tl.load(q_ptr + sequence * Q_STRIDE + head_offsets, mask=exists, other=0.0, cache_modifier=CACHED)
    peak = tl.full([ROWS], LOWEST, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    weighted = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    page_table_ptr = page_tables_ptr + sequence * page_table_stride
    for first_token in tl.range(begin, end, TILE, num_stages=NUM_STAGES):
        visible = first_token + tl.arange(0, TILE) < end
        key_rows = page_rows(page_table_ptr, first_token, end, kv_head, NUM_KV_HEADS, PAGE_SIZE, TILE)
        key_source = kv_pages_ptr + key_rows[None, :] * HEAD_DIM + dims[:, None]
        keys = tl.load(key_source, mask=visible[None, :], other=0.0, cache_modifier=CACHED)
        scores = tl.dot(q, keys.to(q.dtype), input_precision="ieee") * (scale * LOG2_E)
        scores = tl.where(visible[None, :], scores, LOWEST)
        value_source = kv_pages_ptr + (key_rows + NUM_KV_HEADS * PAGE_SIZE)[:, None] * HEAD_DIM + dims[None, :]
        values = tl.load(value_source, mask=visible[:, None], other=0.0, cache_modifier=CACHED)
        peak, total, weighted = softmax_step(scores, values.to(q.dtype), peak, total, weighted)

    head = sequence * NUM_KV_HEADS + kv_head
    counters_ptr += head
    out_ptr += head * (GROUP * HEAD_DIM)
    if not AT_ONCE:
        # A padded sequence (kv_len 0) has total 0 and writes zeros.
        result = weighted / tl.maximum(total, 1.0e-30)[:, None]
        row_offsets = rows[:, None] * HEAD_DIM + dims[None, :]
        if tokens_per_split >= own_len:
            tl.store(out_ptr + row_offsets, result.to(out_ptr.dtype.element_ty), mask=exists)
        else:
            partial_ptr += head * (NUM_SPLITS * ROWS * HEAD_DIM)
            log_sum_ptr += head * (NUM_SPLITS * ROWS)
            tl.store(partial_ptr + split * (ROWS * HEAD_DIM) + row_offsets, result, mask=exists)
            tl.store(log_sum_ptr + split * ROWS + rows, peak + tl.log2(total), mask=rows < GROUP)
            tl.debug_barrier()
            splits_used = tl.cdiv(own_len, tokens_per_split)
            if tl.atomic_add(counters_ptr, 1, sem="acq_rel") == splits_used - 1:
                tl.debug_barrier()
                combine_splits(partial_ptr, log_sum_ptr, out_ptr, splits_used, GROUP, HEAD_DIM, ROWS)
                tl.store(counters_ptr, 0)
    else:
        peak, total, weighted = leading_rows(peak, total, weighted, ROWS, GROUP_ROWS, HEAD_DIM)
        heads = tl.arange(0, GROUP_ROWS)
        exists = (heads < GROUP)[:, None]
        partial_ptr += head * ((NUM_SPLITS + SHARED_SLOTS) * GROUP_ROWS * HEAD_DIM)
        log_sum_ptr += head * ((NUM_SPLITS + SHARED_SLOTS) * GROUP_ROWS)
        shared_parts = tl.full((), 0, tl.int32)
        if SHARED_SLOTS > 0:
            wait_for_previous(PDL)
            shared_parts = tl.load(shared_parts_ptr + sequence)
        own_parts = tl.full((), 0, tl.int32)
        is_last = own_parts == 0
        if NUM_SPLITS > 1:  # noqa: SIM102 - decided when this is compiled
            if own_len > tokens_per_split:
                own_parts = tl.cdiv(own_len, tokens_per_split)
                partial_row = split * GROUP_ROWS + heads
                partial_target = partial_ptr + partial_row[:, None] * HEAD_DIM + dims[None, :]
                tl.store(partial_target, weighted / total[:, None], mask=exists)
                tl.store(log_sum_ptr + partial_row, peak + tl.log2(total), mask=heads < GROUP)
                tl.debug_barrier()
                is_last = tl.atomic_add(counters_ptr, 1, sem="acq_rel") == own_parts - 1
                tl.debug_barrier()
                peak = tl.full([GROUP_ROWS], LOWEST, tl.float32)
                total = tl.zeros([GROUP_ROWS], tl.float32)
                weighted = tl.zeros([GROUP_ROWS, HEAD_DIM], tl.float32)
        if is_last:
            total, weighted = fold_parts(
                partial_ptr, log_sum_ptr, own_parts, shared_parts, peak, total, weighted,
                NUM_SPLITS, PARTS, GROUP, GROUP_ROWS, HEAD_DIM,
            )  # fmt: skip
            result = weighted / tl.maximum(total, 1.0e-30)[:, None]
            out_target = out_ptr + heads[:, None] * HEAD_DIM + dims[None, :]
            tl.store(out_target, result.to(out_ptr.dtype.element_ty), mask=exists)
            if own_parts > 0:
                tl.store(counters_ptr, 0)


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
    shares = batch.shared is not None
    group_rows = next_power_of_two(num_heads // num_kv_heads)
    # Beside chunks a launch has this form whether rows share or not: then tiles that suit long rows.
    shares_alone = shares and batch.kv_lens.shape[0] == sequences
    processors = num_processors(q.device)
    splits, min_split = decode_splits(sequences, num_kv_heads, batch.max_kv_len, processors, uneven=batch.uneven)
    tiles = decode_tiles(
        num_heads // num_kv_heads,
        q.dtype,
        on_hip(),
        shares=shares_alone,
        many_rounds=not shares and decode_rounds(sequences * num_kv_heads, head_dim, q.dtype, processors),
        few=not shares and cut_finely(splits, min_split) and head_dim <= LARGE_TILE_HEAD_DIM,
    )
    at_once = shares or cut_finely(splits, min_split)
    shared_slots = MAX_SHARED_PARTS if shares else 0
    slots = splits + shared_slots
    slot_rows = group_rows if at_once else tiles.rows
    partial_rows = sequences * num_kv_heads * slots * slot_rows if slots > 1 else 1
    partial = torch.empty((partial_rows, head_dim), dtype=torch.float32, device=q.device)
    log_sum = torch.empty((partial_rows,), dtype=torch.float32, device=q.device)
    if batch.shared is not None:
        shared_prefix(q, kv_pages, batch, batch.shared, scale, partial, log_sum, num_slots=slots, first_slot=splits)
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
        batch.kv_lens if batch.shared is None else batch.shared.shared_parts,
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
        SHARED_SLOTS=shared_slots,
        AT_ONCE=at_once,
        PARTS=combine_parts(slots, group_rows),
        GROUP_ROWS=group_rows,
        NUM_STAGES=tiles.num_stages,
        num_warps=tiles.num_warps,
        **early_start(),
    )
