# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: N803, N806
"""Products of float8 weights with inputs that are rounded to float8 as well (W8A8), on devices that multiply these,
or that stay floats (weights only).

Inputs that are rounded: weights with a scale an output go to cuBLAS (``torch._scaled_mm``), with a scale a row of the
inputs. Weights with a scale for 128 inputs have a kernel of their own, with a scale for as many neighbours of each row:
the products of a block are scaled when they are complete, in float32. Scales of the inputs are a row's (or block's)
largest magnitude over the largest float8, unless the checkpoint fixes one.

Inputs that stay floats take the same kernel: codes are exact in their type, so only the sums are rounded. On an H200 it
takes two to five times as long as 16-bit products by cuBLAS, which come in its place where there is memory for floats.

Whether a device does this is tried once, against the same product in floats: not all do, and torch's function is no
public one.
"""

from dataclasses import replace
from functools import lru_cache

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from pagewire_kernels.quantized import QuantizedWeight
from pagewire_kernels.reference import dequantize
from pagewire_kernels.triton.launch import ceil_div, next_power_of_two, on_hip

LARGEST = 448.0
"""Of float8_e4m3fn."""
BLOCK_INPUTS = 128
_TILE = 128
"""Rows and outputs of a program where there are that many rows."""


@triton.jit
def round_rows_kernel(
    x_ptr,
    out_ptr,
    scales_ptr,
    fixed_scale,
    IS_FIXED: tl.constexpr,
    X_STRIDE: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):
    """Blocks of BLOCK neighbours of one row, TILE / BLOCK at a time. Grid (T, ceil(SIZE / TILE))."""
    row = tl.program_id(0).to(tl.int64)
    NUM: tl.constexpr = TILE // BLOCK
    BLOCKS: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    blocks = tl.program_id(1) * NUM + tl.arange(0, NUM)
    columns = blocks[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = columns < SIZE
    x = tl.load(x_ptr + row * X_STRIDE + columns, mask=inside, other=0.0).to(tl.float32)
    scales = tl.maximum(tl.max(tl.abs(x), 1), 1e-12) / 448.0
    if IS_FIXED:
        scales = scales * 0 + fixed_scale
    scaled = tl.minimum(tl.maximum(x / scales[:, None], -448.0), 448.0)
    tl.store(out_ptr + row * SIZE + columns, scaled.to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(scales_ptr + row * BLOCKS + blocks, scales, mask=blocks < BLOCKS)


@triton.jit(do_not_specialize=["num_rows"])
def block_scaled_kernel(
    x_ptr,
    x_scales_ptr,
    codes_ptr,
    scales_ptr,
    out_ptr,
    num_rows,
    NUM_OUTPUTS: tl.constexpr,
    NUM_INPUTS: tl.constexpr,
    IN_BLOCKS: tl.constexpr,
    ROUNDED: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """OUTPUTS outputs of ROWS rows, a block of 128 inputs at a time. Grid (outputs / OUTPUTS, rows / ROWS).

    Without IN_BLOCKS an output has one scale; inputs that are not ROUNDED are floats, and x_scales is not read.
    """
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inputs = tl.arange(0, 128)
    BLOCKS: tl.constexpr = (NUM_INPUTS + 127) // 128
    row = tl.minimum(rows, num_rows - 1).to(tl.int64)
    output = tl.minimum(outputs, NUM_OUTPUTS - 1).to(tl.int64)
    sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for block in tl.range(0, BLOCKS, num_stages=NUM_STAGES):
        columns = block * 128 + inputs
        exists = columns < NUM_INPUTS
        x = tl.load(x_ptr + row[:, None] * NUM_INPUTS + columns[None, :], mask=exists[None, :], other=0.0)
        codes = tl.load(codes_ptr + output[None, :] * NUM_INPUTS + columns[:, None], mask=exists[:, None], other=0.0)
        scale = tl.load(scales_ptr + (output * BLOCKS + block if IN_BLOCKS else output))
        if ROUNDED:
            x_scale = tl.load(x_scales_ptr + row * BLOCKS + block)
            sums += tl.dot(x, codes) * x_scale[:, None] * scale[None, :]
        else:
            sums += tl.dot(x, codes.to(x.dtype)) * scale[None, :]
    inside = (rows < num_rows)[:, None] & (outputs < NUM_OUTPUTS)[None, :]
    target = out_ptr + rows.to(tl.int64)[:, None] * NUM_OUTPUTS + outputs[None, :]
    tl.store(target, sums.to(out_ptr.dtype.element_ty), mask=inside)


class Float8Product:
    """A float8 weight as it is, with inputs that are rounded."""

    def __init__(self, weight: QuantizedWeight) -> None:
        self._codes = weight.codes.contiguous()
        self._scales = weight.scales.float().contiguous()
        self._in_blocks = weight.num_groups > 1
        self._fixed_scale = weight.input_scale or 0.0
        self.num_bytes = self._codes.nbytes + self._scales.nbytes

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if not x.shape[0]:
            return x.new_empty(0, self._codes.shape[0])
        if self._in_blocks:
            rounded, scales = round_rows(x, BLOCK_INPUTS, self._fixed_scale)
            out = _block_scaled(rounded, scales, self._codes, self._scales, x.dtype)
            return out if bias is None else out.add_(bias)
        rounded, scales = round_rows(x, next_power_of_two(x.shape[1]), self._fixed_scale)
        product: torch.Tensor = torch._scaled_mm(
            rounded, self._codes.t(), scale_a=scales, scale_b=self._scales.t(), bias=bias, out_dtype=x.dtype
        )
        return product


class Float8WeightProduct:
    """A float8 weight with inputs that stay floats: as it is, or as floats in its place."""

    def __init__(self, weight: QuantizedWeight, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._weight: QuantizedWeight | torch.Tensor = replace(weight, codes=weight.codes.contiguous())
        self._scales = weight.scales.float().contiguous()
        self.num_bytes = weight.codes.nbytes + self._scales.nbytes
        self.num_float_bytes = weight.codes.numel() * (dtype.itemsize - 1)

    def keep_floats(self) -> None:
        """Floats in place of the codes: ``num_float_bytes`` more."""
        if isinstance(self._weight, QuantizedWeight):
            self._weight = dequantize(self._weight, self._dtype)
            self.num_bytes += self.num_float_bytes

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if not isinstance(self._weight, QuantizedWeight):
            return F.linear(x, self._weight, bias)
        if not x.shape[0]:
            return x.new_empty(0, self._weight.shape[0])
        out = _block_scaled(x.contiguous(), None, self._weight.codes, self._scales, x.dtype)
        return out if bias is None else out.add_(bias)


def round_rows(x: torch.Tensor, block: int, fixed_scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """x [T, in] -> float8 [T, in] and float32 scales [T, ceil(in / block)]."""
    rows, size = x.shape
    x = x if x.stride(1) == 1 else x.contiguous()
    blocks = ceil_div(size, block)
    rounded = torch.empty((rows, size), dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty((rows, blocks), dtype=torch.float32, device=x.device)
    tile = max(block, min(1024, next_power_of_two(size)))
    round_rows_kernel[(rows, ceil_div(size, tile))](
        x,
        rounded,
        scales,
        fixed_scale,
        IS_FIXED=fixed_scale > 0,
        X_STRIDE=x.stride(0),
        SIZE=size,
        BLOCK=block,
        TILE=tile,
        num_warps=4 if tile <= 4096 else 8,
    )
    return rounded, scales


def _block_scaled(
    x: torch.Tensor,
    x_scales: torch.Tensor | None,
    codes: torch.Tensor,
    scales: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """x [T, in] float8, with scales [T, ceil(in / 128)], or floats without -> [T, out] in ``dtype``."""
    (num_rows, num_inputs), num_outputs = x.shape, codes.shape[0]
    rows = min(_TILE, max(16, next_power_of_two(num_rows)))
    is_large, rounded = rows == _TILE, x_scales is not None
    tile_outputs = _TILE if is_large and rounded else 64
    out = torch.empty((num_rows, num_outputs), dtype=dtype, device=x.device)
    block_scaled_kernel[(ceil_div(num_outputs, tile_outputs), ceil_div(num_rows, rows))](
        x,
        scales if x_scales is None else x_scales,
        codes,
        scales,
        out,
        num_rows,
        NUM_OUTPUTS=num_outputs,
        NUM_INPUTS=num_inputs,
        IN_BLOCKS=scales.shape[1] > 1,
        ROUNDED=rounded,
        ROWS=rows,
        OUTPUTS=tile_outputs,
        NUM_STAGES=3,
        num_warps=8 if is_large else 4,
        num_stages=3,
    )
    return out


def float8_product(weight: QuantizedWeight, dtype: torch.dtype) -> Float8Product | Float8WeightProduct:
    """Raises ValueError for a weight, a dtype or a device that only floats do."""
    check_float8(weight, dtype)
    if not can_multiply(weight.codes.device, weight.num_groups > 1, weight.rounds_inputs):
        raise ValueError("the device has no products of float8")
    return _product(weight, dtype)


def _product(weight: QuantizedWeight, dtype: torch.dtype) -> Float8Product | Float8WeightProduct:
    return Float8Product(weight) if weight.rounds_inputs else Float8WeightProduct(weight, dtype)


def check_float8(weight: QuantizedWeight, dtype: torch.dtype) -> None:
    """Raises ValueError for what neither way of multiplying takes."""
    num_outputs, num_inputs = weight.shape
    dtypes = (torch.bfloat16,) if weight.rounds_inputs else (torch.bfloat16, torch.float16)
    if not weight.is_float8 or weight.perm is not None or dtype not in dtypes:
        raise ValueError(f"float8 products take float8 codes in order and inputs of {dtypes}")
    if weight.rounds_inputs and (num_outputs % 16 or num_inputs % 16):
        raise ValueError(f"{num_outputs} x {num_inputs} is no multiple of 16 x 16")
    if weight.num_groups > 1 and weight.group_size != BLOCK_INPUTS:
        raise ValueError(f"blocks of {weight.group_size} inputs are not {BLOCK_INPUTS}")


@lru_cache
def can_multiply(device: torch.device, in_blocks: bool, rounds_inputs: bool) -> bool:
    """Whether a product of float8 works here and agrees with the one in floats."""
    if device.type != "cuda" or on_hip() or torch.cuda.get_device_capability(device) < (8, 9):
        return False
    values = torch.linspace(-1, 1, 64 * 256, device=device).view(64, 256)
    weight = QuantizedWeight(
        codes=(values * LARGEST).to(torch.float8_e4m3fn),
        scales=torch.full((64, 2 if in_blocks else 1), 1 / LARGEST, device=device),
        group_size=BLOCK_INPUTS if in_blocks else 256,
        bits=8,
        rounds_inputs=rounds_inputs,
    )
    x = values[:20].flip(1).to(torch.bfloat16)
    try:
        found = _product(weight, x.dtype)(x, None)
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return False
    expected = x.float() @ dequantize(weight, torch.float32).t()
    return bool((found.float() - expected).norm() < 0.05 * expected.norm())
