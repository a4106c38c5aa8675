# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: N803, N806
"""Attention of many sequences' queries over pages they share: the first half of a cascade (arXiv 2501.01005).

A tile takes the queries of up to SHARED_TILE_ROWS sequences of a group, so that shared keys are read once a tile, not
once a sequence. Every split of the shared tokens leaves a normalised partial result and its log-sum-exp in the same
scratch, behind those of the sequence's own splits; ``paged_decode`` combines both.
"""

import torch
import triton
import triton.language as tl

from pagewire_kernels.interface import SHARED_TILE_ROWS, AttentionBatch, SharedPrefixes
from pagewire_kernels.triton.launch import next_power_of_two, on_hip
from pagewire_kernels.triton.paged_tile import LOG2_E, LOWEST, page_rows, softmax_step

SHARED_SPLITS = 8
MIN_SHARED_SPLIT = 128


def tile_tokens(dtype: torch.dtype) -> int:
    return 32 if dtype == torch.float32 else 64


def num_stages(dtype: torch.dtype, hip: bool) -> int:
    return 1 if hip else 2 if dtype == torch.float32 else 3


@triton.jit
def shared_split_tokens(shared_len, SPLITS: tl.constexpr, MIN_SPLIT: tl.constexpr, TILE: tl.constexpr):
    """Tokens of one split of a shared prefix."""
    return tl.maximum(tl.cdiv(tl.cdiv(shared_len, SPLITS), TILE) * TILE, MIN_SPLIT)


@triton.jit(do_not_specialize=["page_tables_ptr", "members_ptr", "tiles_ptr", "page_table_stride"])
def shared_prefix_kernel(
    q_ptr,
    kv_pages_ptr,
    page_tables_ptr,
    members_ptr,
    tiles_ptr,
    partial_ptr,
    log_sum_ptr,
    scale,
    page_table_stride,
    Q_STRIDE: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    MEMBERS: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    MIN_SPLIT: tl.constexpr,
    SLOTS: tl.constexpr,
    FIRST_SLOT: tl.constexpr,
    PARTIAL_ROWS: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """One split of one tile's shared tokens for one key/value head. Grid (tiles, NUM_KV_HEADS, SPLITS)."""
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    first_member = tl.load(tiles_ptr + tile * 3)
    num_members = tl.load(tiles_ptr + tile * 3 + 1)
    shared_len = tl.load(tiles_ptr + tile * 3 + 2)
    tokens_per_split = shared_split_tokens(shared_len, SPLITS, MIN_SPLIT, TILE)
    begin = split * tokens_per_split
    end = tl.minimum(begin + tokens_per_split, shared_len)
    if (num_members == 0) | (begin >= shared_len):
        return

    # q, weighted [MEMBERS * GROUP_ROWS, HEAD_DIM]: row = member * GROUP_ROWS + head of the group
    rows = tl.arange(0, MEMBERS * GROUP_ROWS)
    dims = tl.arange(0, HEAD_DIM)
    member, head = rows // GROUP_ROWS, rows % GROUP_ROWS
    exists = (member < num_members) & (head < GROUP)
    sequences = tl.load(members_ptr + first_member + member, mask=exists, other=0).to(tl.int64)
    q_source = q_ptr + sequences[:, None] * Q_STRIDE + (kv_head * GROUP + head)[:, None] * HEAD_DIM + dims[None, :]
    q = tl.load(q_source, mask=exists[:, None], other=0.0)
    peak = tl.full([MEMBERS * GROUP_ROWS], LOWEST, tl.float32)
    total = tl.zeros([MEMBERS * GROUP_ROWS], tl.float32)
    weighted = tl.zeros([MEMBERS * GROUP_ROWS, HEAD_DIM], tl.float32)
    leader = tl.load(members_ptr + first_member).to(tl.int64)
    page_table_ptr = page_tables_ptr + leader * page_table_stride
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

    result = weighted / total[:, None]
    partial_row = ((sequences * NUM_KV_HEADS + kv_head) * SLOTS + FIRST_SLOT + split) * PARTIAL_ROWS + head
    tl.store(partial_ptr + partial_row[:, None] * HEAD_DIM + dims[None, :], result, mask=exists[:, None])
    tl.store(log_sum_ptr + partial_row, peak + tl.log2(total), mask=exists)


def shared_prefix(
    q: torch.Tensor,
    kv_pages: torch.Tensor,
    batch: AttentionBatch,
    shared: SharedPrefixes,
    scale: float,
    partial: torch.Tensor,
    log_sum: torch.Tensor,
    *,
    num_slots: int,
    first_slot: int,
    partial_rows: int,
) -> None:
    """Writes partial [sequences * kv heads * num_slots * partial_rows, D] and log_sum in float32, from first_slot on.

    Reads the shared pages once a tile, from the table of a tile's first sequence.
    """
    num_heads, head_dim = q.shape[1:]
    num_kv_heads, page_size = kv_pages.shape[2:4]
    shared_prefix_kernel[(shared.tiles.shape[0], num_kv_heads, SHARED_SPLITS)](
        q,
        kv_pages,
        batch.page_tables,
        shared.members,
        shared.tiles,
        partial,
        log_sum,
        scale,
        batch.page_tables.stride(0),
        Q_STRIDE=q.stride(0),
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        PAGE_SIZE=page_size,
        MEMBERS=SHARED_TILE_ROWS,
        GROUP_ROWS=next_power_of_two(num_heads // num_kv_heads),
        TILE=tile_tokens(q.dtype),
        SPLITS=SHARED_SPLITS,
        MIN_SPLIT=MIN_SHARED_SPLIT,
        SLOTS=num_slots,
        FIRST_SLOT=first_slot,
        PARTIAL_ROWS=partial_rows,
        NUM_STAGES=num_stages(q.dtype, on_hip()),
        num_warps=8 if num_heads // num_kv_heads > 4 else 4,
    )
