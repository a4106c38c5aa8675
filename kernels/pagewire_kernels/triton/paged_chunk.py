# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: N803, N806
"""Causal attention of chunks of queries over their sequences' pages: prefill, and chunks behind a paged prefix.

Flash attention (arXiv 2307.08691) with paged keys. A tile of rows is ``ROWS // GROUP`` query tokens times the GROUP
query heads of one key/value head. Keys that every query of the tile sees take an unmasked loop, the causal tail a
masked one. Tiles find their sequence on the device by a binary search over query_starts: sequence ``i`` of the chunks
owns the tiles from ``(its first query) // tokens_per_tile + i`` on, which is never too few and needs no host work.
"""

import torch
import triton
import triton.language as tl

from pagewire_kernels.interface import AttentionBatch
from pagewire_kernels.triton.launch import check_attention_shapes, chunk_tiles, on_hip
from pagewire_kernels.triton.paged_tile import LOG2_E, LOWEST, page_rows, softmax_step


@triton.jit
def first_tile(query_starts_ptr, sequence, num_decodes, TOKENS: tl.constexpr):
    """First tile of a chunk's sequence; decodes own exactly one query each, in front of the chunks'."""
    return (tl.load(query_starts_ptr + sequence) - num_decodes) // TOKENS + sequence - num_decodes


@triton.jit(
    do_not_specialize=[
        "page_tables_ptr", "query_starts_ptr", "kv_lens_ptr", "page_table_stride", "num_decodes", "num_sequences",
    ]
)  # fmt: skip
def paged_chunk_kernel(
    q_ptr,
    kv_pages_ptr,
    page_tables_ptr,
    query_starts_ptr,
    kv_lens_ptr,
    out_ptr,
    scale,
    page_table_stride,
    num_decodes,
    num_sequences,
    Q_STRIDE: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """One tile of rows of one key/value head. Grid (at least the number of tiles, NUM_KV_HEADS)."""
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    TOKENS: tl.constexpr = ROWS // GROUP
    # The last tiles of a sequence see the most keys: start them first.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    low = num_decodes
    high = num_sequences
    while high - low > 1:
        middle = (low + high) // 2
        if first_tile(query_starts_ptr, middle, num_decodes, TOKENS) <= tile:
            low = middle
        else:
            high = middle
    sequence = low.to(tl.int64)
    query_begin = tl.load(query_starts_ptr + sequence)
    query_len = tl.load(query_starts_ptr + sequence + 1) - query_begin
    kv_len = tl.load(kv_lens_ptr + sequence)
    first_query = (tile - first_tile(query_starts_ptr, low, num_decodes, TOKENS)) * TOKENS
    if first_query >= query_len:
        return

    # q, weighted [ROWS, HEAD_DIM]: row = query token * GROUP + head of the group
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, HEAD_DIM)
    queries = first_query + rows // GROUP
    exists = ((rows < TOKENS * GROUP) & (queries < query_len))[:, None]
    tokens = (query_begin + queries).to(tl.int64)[:, None]
    head_offsets = (kv_head * GROUP + rows % GROUP)[:, None] * HEAD_DIM + dims[None, :]
    q = tl.load(q_ptr + tokens * Q_STRIDE + head_offsets, mask=exists, other=0.0)
    peak = tl.full([ROWS], LOWEST, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    weighted = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    page_table_ptr = page_tables_ptr + sequence * page_table_stride
    positions = kv_len - query_len + queries
    end = tl.minimum(kv_len - query_len + first_query + TOKENS, kv_len)
    unmasked_end = tl.maximum(kv_len - query_len + first_query + 1, 0) // TILE * TILE

    for first_token in tl.range(0, unmasked_end, TILE, num_stages=NUM_STAGES):
        key_rows = page_rows(page_table_ptr, first_token, end, kv_head, NUM_KV_HEADS, PAGE_SIZE, TILE)
        keys = tl.load(kv_pages_ptr + key_rows[None, :] * HEAD_DIM + dims[:, None])
        scores = tl.dot(q, keys.to(q.dtype), input_precision="ieee") * (scale * LOG2_E)
        value_rows = key_rows + NUM_KV_HEADS * PAGE_SIZE
        values = tl.load(kv_pages_ptr + value_rows[:, None] * HEAD_DIM + dims[None, :])
        peak, total, weighted = softmax_step(scores, values.to(q.dtype), peak, total, weighted)

    for first_token in tl.range(unmasked_end, end, TILE, num_stages=1):
        key_tokens = first_token + tl.arange(0, TILE)
        readable = key_tokens < end
        key_rows = page_rows(page_table_ptr, first_token, end, kv_head, NUM_KV_HEADS, PAGE_SIZE, TILE)
        keys = tl.load(kv_pages_ptr + key_rows[None, :] * HEAD_DIM + dims[:, None], mask=readable[None, :], other=0.0)
        scores = tl.dot(q, keys.to(q.dtype), input_precision="ieee") * (scale * LOG2_E)
        scores = tl.where(key_tokens[None, :] <= positions[:, None], scores, LOWEST)
        value_rows = key_rows + NUM_KV_HEADS * PAGE_SIZE
        values = tl.load(
            kv_pages_ptr + value_rows[:, None] * HEAD_DIM + dims[None, :], mask=readable[:, None], other=0.0
        )
        peak, total, weighted = softmax_step(scores, values.to(q.dtype), peak, total, weighted)

    result = weighted / tl.maximum(total, 1.0e-30)[:, None]
    out_target = out_ptr + tokens * (NUM_HEADS * HEAD_DIM) + head_offsets
    tl.store(out_target, result.to(out_ptr.dtype.element_ty), mask=exists)


def paged_chunk(
    q: torch.Tensor, kv_pages: torch.Tensor, batch: AttentionBatch, scale: float, out: torch.Tensor
) -> None:
    """Writes the rows of the sequences from num_decodes on in out [T, H, D]; shapes as in the interface.

    Never reads a page-table entry or a slot at or past kv_len. Softmax and sums in float32; weights are rounded to the
    queries' dtype before they meet the values. A key is read once per tile of queries that see it.
    """
    num_heads, num_kv_heads, head_dim, page_size = check_attention_shapes(q, kv_pages)
    group = num_heads // num_kv_heads
    tiles = chunk_tiles(group, batch.max_query_len, q.dtype, on_hip())
    num_sequences = batch.kv_lens.shape[0]
    num_chunks = num_sequences - batch.num_decodes
    num_tiles = (q.shape[0] - batch.num_decodes) // (tiles.rows // group) + num_chunks
    paged_chunk_kernel[(num_tiles, num_kv_heads)](
        q,
        kv_pages,
        batch.page_tables,
        batch.query_starts,
        batch.kv_lens,
        out,
        scale,
        batch.page_tables.stride(0),
        batch.num_decodes,
        num_sequences,
        Q_STRIDE=q.stride(0),
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        PAGE_SIZE=page_size,
        ROWS=tiles.rows,
        TILE=tiles.tokens,
        NUM_STAGES=tiles.num_stages,
        num_warps=tiles.num_warps,
    )
