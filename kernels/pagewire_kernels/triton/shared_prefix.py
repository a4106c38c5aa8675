# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: N803, N806
"""Attention of many sequences' queries over pages they share: the first half of a cascade (arXiv 2501.01005).

A tile is the queries of up to SHARED_TILE_ROWS sequences over a part of the tokens they share, so that shared keys are
read once a tile, not once a sequence. It leaves a normalised partial result and its log-sum-exp in the same scratch,
behind those of the sequence's own splits; ``paged_decode`` combines both. That kernel reads the sequences' own tokens
beside this one, so this one lets it start only when the queries and keys that both read are there.
"""

import torch
import triton
import triton.language as tl

from pagewire_kernels.interface import SHARED_TILE_ROWS, AttentionBatch, SharedPrefixes
from pagewire_kernels.triton.early_start import early_start, let_next_start, wait_for_previous
from pagewire_kernels.triton.launch import next_power_of_two, on_hip, shared_tiles
from pagewire_kernels.triton.paged_tile import LOG2_E, LOWEST, page_rows, softmax_step


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
    HEADS: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
    TILE: tl.constexpr,
    SLOTS: tl.constexpr,
    FIRST_SLOT: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """One tile for HEADS query heads of one key/value head. Grid (NUM_KV_HEADS * GROUP_ROWS / HEADS, tiles)."""
    wait_for_previous(PDL)
    let_next_start(PDL)
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    kv_head = tl.program_id(0) // (GROUP_ROWS // HEADS)
    first_head = tl.program_id(0) % (GROUP_ROWS // HEADS) * HEADS
    tile_ptr = tiles_ptr + tl.program_id(1) * 5
    first_member = tl.load(tile_ptr)
    num_members = tl.load(tile_ptr + 1)
    begin = tl.load(tile_ptr + 2)
    end = tl.load(tile_ptr + 3)
    part = tl.load(tile_ptr + 4)
    if num_members == 0:
        return

    # q, weighted [MEMBERS * HEADS, HEAD_DIM]: row = member * HEADS + head
    rows = tl.arange(0, MEMBERS * HEADS)
    dims = tl.arange(0, HEAD_DIM)
    member, head = rows // HEADS, first_head + rows % HEADS
    exists = (member < num_members) & (head < GROUP)
    sequences = tl.load(members_ptr + first_member + member, mask=exists, other=0).to(tl.int64)
    q_source = q_ptr + sequences[:, None] * Q_STRIDE + (kv_head * GROUP + head)[:, None] * HEAD_DIM + dims[None, :]
    q = tl.load(q_source, mask=exists[:, None], other=0.0)
    peak = tl.full([MEMBERS * HEADS], LOWEST, tl.float32)
    total = tl.zeros([MEMBERS * HEADS], tl.float32)
    weighted = tl.zeros([MEMBERS * HEADS, HEAD_DIM], tl.float32)
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
    partial_row = ((sequences * NUM_KV_HEADS + kv_head) * SLOTS + FIRST_SLOT + part) * GROUP_ROWS + head
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
) -> None:
    """Writes partial [sequences * kv heads * num_slots * group, D] and log_sum in float32, from first_slot on, the
    group's heads padded to a power of two.

    Reads the shared pages once a tile, from the table of a tile's first sequence.
    """
    num_heads, head_dim = q.shape[1:]
    num_kv_heads, page_size = kv_pages.shape[2:4]
    group_rows = next_power_of_two(num_heads // num_kv_heads)
    tiles = shared_tiles(group_rows, q.dtype, on_hip())
    heads = tiles.rows // SHARED_TILE_ROWS
    shared_prefix_kernel[(num_kv_heads * group_rows // heads, shared.tiles.shape[0])](
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
        HEADS=heads,
        GROUP_ROWS=group_rows,
        TILE=tiles.tokens,
        SLOTS=num_slots,
        FIRST_SLOT=first_slot,
        NUM_STAGES=tiles.num_stages,
        num_warps=tiles.num_warps,
        **early_start(),
    )
