# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: N803
"""silu(gate) * up of a gated feed-forward layer (arXiv 2002.05202)."""

import torch
import triton
import triton.language as tl

from pagewire_kernels.triton.early_start import early_start, let_next_start, wait_for_previous
from pagewire_kernels.triton.launch import ceil_div

TILE_COLUMNS = 1024


@triton.jit
def silu_mul_kernel(
    gate_up_ptr, out_ptr, ROW_STRIDE: tl.constexpr, SIZE: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr
):
    """One tile of one row. Grid (T, ceil(I / TILE))."""
    let_next_start(PDL)
    wait_for_previous(PDL)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = columns < SIZE
    gate = tl.load(gate_up_ptr + row * ROW_STRIDE + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * ROW_STRIDE + SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    product = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * SIZE + columns, product.to(out_ptr.dtype.element_ty), mask=inside)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up [T, 2 * I] (gate first, columns contiguous) -> [T, I] in its dtype. Reads 2*T*I elements, writes T*I."""
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    if gate_up.stride(1) != 1:
        raise ValueError(f"columns must be contiguous, their stride is {gate_up.stride(1)}")
    out = torch.empty((rows, size), dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        silu_mul_kernel[(rows, ceil_div(size, TILE_COLUMNS))](
            gate_up, out, ROW_STRIDE=gate_up.stride(0), SIZE=size, TILE=TILE_COLUMNS, num_warps=4, **early_start()
        )
    return out
