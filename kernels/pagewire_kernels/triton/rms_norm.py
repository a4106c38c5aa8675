# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: N803
"""Root-mean-square norm (arXiv 1910.07467), alone and with the residual addition before it.

One program a row; a row is read once and stays in registers, so a row of 576 takes a tile of 1024 with its tail masked.
"""

import torch
import triton
import triton.language as tl

from pagewire_kernels.triton.early_start import early_start, let_next_start, wait_for_previous
from pagewire_kernels.triton.launch import next_power_of_two


@triton.jit
def rms_norm_kernel(
    x_ptr,
    weight_ptr,
    out_ptr,
    eps,
    X_STRIDE: tl.constexpr,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Norm of one row. Grid (T,)."""
    let_next_start(PDL)
    wait_for_previous(PDL)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, TILE)
    inside = columns < SIZE
    x = tl.load(x_ptr + row * X_STRIDE + columns, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(x * x, 0) / SIZE + eps)
    tl.store(out_ptr + row * SIZE + columns, (x * inverse * weight).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def add_rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    eps,
    X_STRIDE: tl.constexpr,
    RESIDUAL_STRIDE: tl.constexpr,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
    PDL: tl.constexpr,
):
    """residual += x, then the norm of what was stored. Grid (T,)."""
    let_next_start(PDL)
    wait_for_previous(PDL)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, TILE)
    inside = columns < SIZE
    residual_row_ptr = residual_ptr + row * RESIDUAL_STRIDE + columns
    x = tl.load(x_ptr + row * X_STRIDE + columns, mask=inside, other=0.0).to(tl.float32)
    residual = tl.load(residual_row_ptr, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    total = (x + residual).to(residual_ptr.dtype.element_ty)
    tl.store(residual_row_ptr, total, mask=inside)
    wide = total.to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    tl.store(out_ptr + row * SIZE + columns, (wide * inverse * weight).to(out_ptr.dtype.element_ty), mask=inside)


def num_warps_for(tile: int) -> int:
    return 4 if tile <= 4096 else 8


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [T, H] (columns contiguous), weight [H] -> [T, H] in x's dtype. Reads T*H + H elements, writes T*H."""
    rows, size = x.shape
    _check_columns(x)
    out = torch.empty((rows, size), dtype=x.dtype, device=x.device)
    tile = next_power_of_two(size)
    if rows:
        rms_norm_kernel[(rows,)](
            x,
            weight,
            out,
            eps,
            X_STRIDE=x.stride(0),
            SIZE=size,
            TILE=tile,
            num_warps=num_warps_for(tile),
            **early_start(),
        )
    return out


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x, residual [T, H] (columns contiguous), residual updated in place -> [T, H]. Reads 2*T*H + H, writes 2*T*H."""
    rows, size = x.shape
    _check_columns(x)
    _check_columns(residual)
    out = torch.empty((rows, size), dtype=x.dtype, device=x.device)
    tile = next_power_of_two(size)
    if rows:
        add_rms_norm_kernel[(rows,)](
            x,
            residual,
            weight,
            out,
            eps,
            X_STRIDE=x.stride(0),
            RESIDUAL_STRIDE=residual.stride(0),
            SIZE=size,
            TILE=tile,
            num_warps=num_warps_for(tile),
            **early_start(),
        )
    return out


def _check_columns(x: torch.Tensor) -> None:
    if x.stride(1) != 1:
        raise ValueError(f"columns must be contiguous, their stride is {x.stride(1)}")
