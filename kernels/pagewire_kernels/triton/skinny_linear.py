# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: N803, N806
"""Products of few rows with a weight: what a decode step of a small batch is made of, bound by reading the weight.

The weight is the matrix instruction's first operand and the few rows, transposed, its second, so that no lane works on
padding of the large side. Where one program a tile of outputs would leave processors idle, the inputs are split; each
split leaves its sums in float32, and the last one to arrive adds them up in split order. The counters that tell who is
last are zero again when the kernel ends. Integer atomics alone: results do not depend on timing.

The product of a single row may start while the kernel before still runs (programmatic dependent launch): its first
weights are on their way when that one ends, on which the row alone depends.
"""

import torch
import triton
import triton.language as tl

from pagewire_kernels.triton.early_start import early_start, let_next_start, wait_for_previous
from pagewire_kernels.triton.launch import on_hip

MAX_ROWS = 64
TILE_OUTPUTS = 64
TILE_INPUTS = 128
_MAX_OUTPUTS = {16: 8192, 32: 8192, MAX_ROWS: 1024}
"""By padded rows: from here on cuBLAS reads the weight as fast, but for a single row."""
_MAX_VECTOR_OUTPUTS = 65536
MAX_COUNTERS = max(_MAX_OUTPUTS.values()) // TILE_OUTPUTS
_MAX_SPLITS = 4
VECTOR_OUTPUTS, VECTOR_INPUTS = 4, 1024
"""Tile of the product of a single row."""


@triton.jit(do_not_specialize=["num_rows"])
def skinny_linear_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    partial_ptr,
    counters_ptr,
    num_rows,
    X_STRIDE: tl.constexpr,
    NUM_OUTPUTS: tl.constexpr,
    NUM_INPUTS: tl.constexpr,
    SPLITS: tl.constexpr,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """OUTPUTS outputs of all rows over one split of the inputs. Grid (NUM_OUTPUTS / OUTPUTS, SPLITS)."""
    let_next_start(PDL)
    wait_for_previous(PDL)
    tile = tl.program_id(0)
    split = tl.program_id(1)
    outputs = tile * OUTPUTS + tl.arange(0, OUTPUTS)
    rows = tl.arange(0, ROWS)
    exists = rows < num_rows
    weight_rows = weight_ptr + outputs.to(tl.int64)[:, None] * NUM_INPUTS
    PART: tl.constexpr = NUM_INPUTS // SPLITS

    # sums [OUTPUTS, ROWS]
    sums = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for first in tl.range(split * PART, (split + 1) * PART, INPUTS, num_stages=NUM_STAGES):
        inputs = first + tl.arange(0, INPUTS)
        weight = tl.load(weight_rows + inputs[None, :], eviction_policy="evict_first")
        x = tl.load(x_ptr + rows[None, :] * X_STRIDE + inputs[:, None], mask=exists[None, :], other=0.0)
        sums = tl.dot(weight, x, sums)

    is_last = True
    if SPLITS > 1:
        place = outputs[:, None] * ROWS + rows[None, :]
        tl.store(partial_ptr + split * (NUM_OUTPUTS * ROWS) + place, sums)
        tl.debug_barrier()
        is_last = tl.atomic_add(counters_ptr + tile, 1, sem="acq_rel") == SPLITS - 1
        if is_last:
            tl.debug_barrier()
            sums = tl.zeros([OUTPUTS, ROWS], tl.float32)
            for part in tl.static_range(SPLITS):
                sums += tl.load(partial_ptr + part * (NUM_OUTPUTS * ROWS) + place, cache_modifier=".cg")
            tl.store(counters_ptr + tile, 0)
    if is_last:
        if BIAS:
            sums += tl.load(bias_ptr + outputs).to(tl.float32)[:, None]
        target = out_ptr + rows[None, :] * NUM_OUTPUTS + outputs[:, None]
        tl.store(target, sums.to(out_ptr.dtype.element_ty), mask=exists[None, :])


@triton.jit
def vector_linear_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    NUM_INPUTS: tl.constexpr,
    BIAS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """OUTPUTS outputs of the only row, without matrix instructions. Grid (outputs / OUTPUTS,)."""
    let_next_start(PDL)
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    weight_rows = weight_ptr + outputs.to(tl.int64)[:, None] * NUM_INPUTS
    inputs = tl.arange(0, INPUTS)
    weight = tl.load(weight_rows + inputs[None, :], eviction_policy="evict_first")
    wait_for_previous(PDL)
    products = weight.to(tl.float32) * tl.load(x_ptr + inputs).to(tl.float32)[None, :]
    for first in tl.range(INPUTS, NUM_INPUTS, INPUTS, num_stages=NUM_STAGES):
        inputs = first + tl.arange(0, INPUTS)
        weight = tl.load(weight_rows + inputs[None, :], eviction_policy="evict_first")
        products += weight.to(tl.float32) * tl.load(x_ptr + inputs).to(tl.float32)[None, :]
    sums = tl.sum(products, 1)
    if BIAS:
        sums += tl.load(bias_ptr + outputs).to(tl.float32)
    tl.store(out_ptr + outputs, sums.to(out_ptr.dtype.element_ty))


def num_splits(num_outputs: int, num_inputs: int) -> int:
    """Measured on an H200: a split costs 2 us, which pays where the outputs are few or the inputs many."""
    tiles = num_outputs // TILE_OUTPUTS
    if tiles <= 16:
        return _MAX_SPLITS
    return 2 if tiles <= 64 and num_inputs >= 4096 else 1


def padded_rows(num_rows: int) -> int:
    """Rows of a tile that holds them."""
    return next(rows for rows in _MAX_OUTPUTS if num_rows <= rows)


def suits(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether this kernel takes the product: x [T, in], weight [out, in]."""
    num_outputs, num_inputs = weight.shape
    is_vector = x.shape[0] == 1 and num_inputs % VECTOR_INPUTS == 0
    return (
        0 < x.shape[0] <= MAX_ROWS
        and x.dtype in (torch.bfloat16, torch.float16)
        and num_outputs <= (_MAX_VECTOR_OUTPUTS if is_vector else _MAX_OUTPUTS[padded_rows(x.shape[0])])
        and num_outputs % TILE_OUTPUTS == 0
        and num_inputs % (TILE_INPUTS * _MAX_SPLITS) == 0
        and x.stride(1) == 1
        and weight.is_contiguous()
    )


def skinny_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, counters: torch.Tensor
) -> torch.Tensor:
    """``x @ weight.T + bias`` for a product that ``suits``: x [T, in] -> [T, out] in x's dtype.

    counters int32, at least ``MAX_COUNTERS`` zeros, zeros again afterwards. Reads the weight once; sums in float32.
    """
    (num_rows, num_inputs), num_outputs = x.shape, weight.shape[0]
    out = torch.empty((num_rows, num_outputs), dtype=x.dtype, device=x.device)
    if num_rows == 1 and num_inputs % VECTOR_INPUTS == 0:
        vector_linear_kernel[(num_outputs // VECTOR_OUTPUTS,)](
            x,
            weight,
            weight if bias is None else bias,
            out,
            NUM_INPUTS=num_inputs,
            BIAS=bias is not None,
            OUTPUTS=VECTOR_OUTPUTS,
            INPUTS=VECTOR_INPUTS,
            NUM_STAGES=1 if on_hip() else 3,
            num_warps=4,
            **early_start(),
        )
        return out
    splits, padded = num_splits(num_outputs, num_inputs), padded_rows(num_rows)
    partial = torch.empty((splits if splits > 1 else 0, num_outputs, padded), dtype=torch.float32, device=x.device)
    skinny_linear_kernel[(num_outputs // TILE_OUTPUTS, splits)](
        x,
        weight,
        weight if bias is None else bias,
        out,
        partial if splits > 1 else counters,
        counters,
        num_rows,
        X_STRIDE=x.stride(0),
        NUM_OUTPUTS=num_outputs,
        NUM_INPUTS=num_inputs,
        SPLITS=splits,
        BIAS=bias is not None,
        ROWS=padded,
        OUTPUTS=TILE_OUTPUTS,
        INPUTS=TILE_INPUTS,
        NUM_STAGES=1 if on_hip() else 5 if padded < MAX_ROWS else 4,
        num_warps=4,
        **early_start(),
    )
    return out
