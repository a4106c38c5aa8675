# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: N803
"""Rotary position embedding (arXiv 2104.09864) of queries and keys, fused with writing keys and values to their pages
and, for models that have it, with the norm of their heads before.

The heads of a token come in the order q, k, v; the heads of a page in the order k, v. So head ``i`` past the queries is
page head ``i`` as well, and keys and values leave through one store.
"""

import torch
import triton
import triton.language as tl

from pagewire_kernels import interface
from pagewire_kernels.interface import AttentionBatch, QkNorm
from pagewire_kernels.triton.early_start import early_start, let_next_start, wait_for_previous
from pagewire_kernels.triton.launch import ceil_div

TILE_HEADS = 8
MAX_FP8 = tl.constexpr(interface.MAX_FP8)


@triton.jit(do_not_specialize=["positions_ptr", "slots_ptr"])
def rotary_kv_write_kernel(
    qkv_ptr,
    cos_sin_ptr,
    kv_pages_ptr,
    positions_ptr,
    slots_ptr,
    q_out_ptr,
    query_norm_ptr,
    key_norm_ptr,
    eps,
    QKV_STRIDE: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    NORM: tl.constexpr,
    FP8: tl.constexpr,
    TILE: tl.constexpr,
    PDL: tl.constexpr,
):
    """TILE heads of one token. Grid (T, ceil((NUM_HEADS + 2 * NUM_KV_HEADS) / TILE))."""
    let_next_start(PDL)
    wait_for_previous(PDL)
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * TILE + tl.arange(0, TILE)
    dims = tl.arange(0, HEAD_DIM // 2)
    position = tl.load(positions_ptr + token).to(tl.int64)
    slot = tl.load(slots_ptr + token).to(tl.int64)

    # [TILE, HEAD_DIM / 2]: both parts of every pair
    exists = heads < NUM_HEADS + 2 * NUM_KV_HEADS
    source = qkv_ptr + token * QKV_STRIDE + heads[:, None] * HEAD_DIM + dims[None, :]
    first = tl.load(source, mask=exists[:, None], other=0.0).to(tl.float32)
    second = tl.load(source + HEAD_DIM // 2, mask=exists[:, None], other=0.0).to(tl.float32)
    cos = tl.load(cos_sin_ptr + position * HEAD_DIM + dims)[None, :]
    sin = tl.load(cos_sin_ptr + position * HEAD_DIM + HEAD_DIM // 2 + dims)[None, :]
    rotates = (heads < NUM_HEADS + NUM_KV_HEADS)[:, None]
    if NORM:
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        inverse = tl.where(rotates, (1.0 / tl.sqrt(squares / HEAD_DIM + eps))[:, None], 1.0)
        of_query, of_key = (heads < NUM_HEADS)[:, None], (heads >= NUM_HEADS)[:, None] & rotates
        columns = dims[None, :]
        first_weight = tl.load(query_norm_ptr + columns, mask=of_query, other=1.0).to(tl.float32)
        second_weight = tl.load(query_norm_ptr + columns + HEAD_DIM // 2, mask=of_query, other=1.0).to(tl.float32)
        first_weight *= tl.load(key_norm_ptr + columns, mask=of_key, other=1.0).to(tl.float32)
        second_weight *= tl.load(key_norm_ptr + columns + HEAD_DIM // 2, mask=of_key, other=1.0).to(tl.float32)
        first = first * inverse * first_weight
        second = second * inverse * second_weight
    rotated_first = tl.where(rotates, first * cos - second * sin, first)
    rotated_second = tl.where(rotates, second * cos + first * sin, second)

    is_query = (heads < NUM_HEADS)[:, None]
    q_target = q_out_ptr + token * (NUM_HEADS * HEAD_DIM) + heads[:, None] * HEAD_DIM + dims[None, :]
    tl.store(q_target, rotated_first.to(q_out_ptr.dtype.element_ty), mask=is_query)
    tl.store(q_target + HEAD_DIM // 2, rotated_second.to(q_out_ptr.dtype.element_ty), mask=is_query)

    if slot >= 0:
        page_head = heads - NUM_HEADS
        writes = ((page_head >= 0) & exists)[:, None]
        page_row = (slot // PAGE_SIZE * (2 * NUM_KV_HEADS) + page_head) * PAGE_SIZE + slot % PAGE_SIZE
        kv_target = kv_pages_ptr + page_row[:, None] * HEAD_DIM + dims[None, :]
        if FP8:
            rotated_first = tl.clamp(rotated_first, -MAX_FP8, MAX_FP8)
            rotated_second = tl.clamp(rotated_second, -MAX_FP8, MAX_FP8)
        tl.store(kv_target, rotated_first.to(kv_pages_ptr.dtype.element_ty), mask=writes)
        tl.store(kv_target + HEAD_DIM // 2, rotated_second.to(kv_pages_ptr.dtype.element_ty), mask=writes)


def rotary_kv_write(
    qkv: torch.Tensor,
    cos_sin: torch.Tensor,
    kv_pages: torch.Tensor,
    batch: AttentionBatch,
    num_heads: int,
    num_kv_heads: int,
    norm: QkNorm | None = None,
) -> torch.Tensor:
    """Shapes as in the interface; qkv's columns, cos_sin and kv_pages contiguous; qkv is left as it was.

    A token with a negative slot has its queries rotated and nothing written. Every position must lie in cos_sin. Reads
    qkv once, writes it once; angles and products are float32.
    """
    page_size, head_dim = kv_pages.shape[3], kv_pages.shape[4]
    num_tokens, total_heads = qkv.shape[0], num_heads + 2 * num_kv_heads
    if qkv.stride(1) != 1 or not kv_pages.is_contiguous() or not cos_sin.is_contiguous():
        raise ValueError("qkv's columns, pages and cos_sin must be contiguous")
    if qkv.shape[1] != total_heads * head_dim or kv_pages.shape[1:3] != (2, num_kv_heads):
        raise ValueError(f"qkv {tuple(qkv.shape)} does not fit pages {tuple(kv_pages.shape)}")
    q_out = torch.empty((num_tokens, num_heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    if num_tokens:
        rotary_kv_write_kernel[(num_tokens, ceil_div(total_heads, TILE_HEADS))](
            qkv,
            cos_sin,
            kv_pages,
            batch.positions,
            batch.slots,
            q_out,
            qkv if norm is None else norm.query_weight,
            qkv if norm is None else norm.key_weight,
            0.0 if norm is None else norm.eps,
            QKV_STRIDE=qkv.stride(0),
            NUM_HEADS=num_heads,
            NUM_KV_HEADS=num_kv_heads,
            HEAD_DIM=head_dim,
            PAGE_SIZE=page_size,
            NORM=norm is not None,
            FP8=kv_pages.dtype == torch.float8_e4m3fn,
            TILE=TILE_HEADS,
            num_warps=4,
            **early_start(),
        )
    return q_out
