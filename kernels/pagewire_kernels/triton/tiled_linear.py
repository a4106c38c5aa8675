# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: N803, N806
"""Products of some tens to some hundred rows with a small weight: bound by latency, not by bytes or arithmetic.

Tiles of 64 rows and few outputs, so that one wave of programs has a part each. Where that leaves processors idle and
the inputs are many, these are split as in ``skinny_linear.py``: the last split to arrive sums in split order, so
results do not depend on timing. Rows and weight come by tensor descriptors, which read rows that are missing as zeros.

The kernel starts while the one before still runs (programmatic dependent launch) and has the weight brought to the L2
cache meanwhile: the rows alone depend on that one.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from pagewire_kernels.triton.early_start import early_start, let_next_start, wait_for_previous
from pagewire_kernels.triton.launch import ceil_div, on_hip, on_hopper

TILE_ROWS = 64
TILE_INPUTS = 128
_MAX_PADDING = 16
"""Rows that the last tile lacks: descriptors fill in more of them more slowly than they read rows."""
_MAX_PROGRAMS = 132
"""Of a wave: with more, cuBLAS is as fast or faster."""
_FEW_OUTPUTS, _MANY_INPUTS = 2048, 3072
_MAX_INPUTS = 4096
_MAX_SPLITS = 4
_MAX_PREFETCHED_ROWS, _MAX_PREFETCHED_OUTPUTS = 128, 4096
"""More keep the memory busy by themselves."""


@triton.jit
def _prefetch_weight(weight_ptr, first_output, first_input, NUM_INPUTS: tl.constexpr, PART: tl.constexpr,
                     OUTPUTS: tl.constexpr, THREADS: tl.constexpr):  # fmt: skip
    """Asks for [OUTPUTS, PART] of the weight in L2, a piece of a row a thread."""
    PIECES: tl.constexpr = THREADS // OUTPUTS
    thread = tl.arange(0, THREADS)
    output = (first_output + thread % OUTPUTS).to(tl.int64)
    address = weight_ptr + output * NUM_INPUTS + first_input + thread // OUTPUTS * (PART // PIECES)
    tl.inline_asm_elementwise(
        "{ cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0; }",
        "=r,l,r",
        [address.to(tl.int64), thread * 0 + PART // PIECES * 2],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit(do_not_specialize=["num_rows"])
def tiled_linear_kernel(
    x_desc,
    weight_desc,
    weight_ptr,
    bias_ptr,
    out_ptr,
    partial_ptr,
    counters_ptr,
    num_rows,
    NUM_OUTPUTS: tl.constexpr,
    NUM_INPUTS: tl.constexpr,
    SPLITS: tl.constexpr,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    PREFETCH: tl.constexpr,
    THREADS: tl.constexpr,
    PDL: tl.constexpr,
):
    """ROWS rows and OUTPUTS outputs over one split of the inputs. Grid (SPLITS, row tiles, NUM_OUTPUTS / OUTPUTS)."""
    PART: tl.constexpr = NUM_INPUTS // SPLITS
    split = tl.program_id(0)
    first_row = tl.program_id(1) * ROWS
    first_output = tl.program_id(2) * OUTPUTS
    let_next_start(PDL)
    if PREFETCH:
        _prefetch_weight(weight_ptr, first_output, split * PART, NUM_INPUTS, PART, OUTPUTS, THREADS)
    wait_for_previous(PDL)

    # sums [ROWS, OUTPUTS]
    sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for first in tl.range(split * PART, (split + 1) * PART, INPUTS, num_stages=NUM_STAGES):
        x = x_desc.load([first_row, first])
        weight = weight_desc.load([first_output, first])
        sums = tl.dot(x, weight.T, sums)

    is_last = True
    if SPLITS > 1:
        tile = tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)
        partial = partial_ptr + tile * (SPLITS * ROWS * OUTPUTS)
        partial += tl.arange(0, ROWS)[:, None] * OUTPUTS + tl.arange(0, OUTPUTS)[None, :]
        tl.store(partial + split * (ROWS * OUTPUTS), sums)
        tl.debug_barrier()
        is_last = tl.atomic_add(counters_ptr + tile, 1, sem="acq_rel") == SPLITS - 1
        if is_last:
            tl.debug_barrier()
            sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
            for part in tl.static_range(SPLITS):
                sums += tl.load(partial + part * (ROWS * OUTPUTS), cache_modifier=".cg")
            tl.store(counters_ptr + tile, 0)
    if is_last:
        rows = first_row + tl.arange(0, ROWS)
        outputs = first_output + tl.arange(0, OUTPUTS)
        if BIAS:
            sums += tl.load(bias_ptr + outputs).to(tl.float32)[None, :]
        target = out_ptr + rows[:, None] * NUM_OUTPUTS + outputs[None, :]
        tl.store(target, sums.to(out_ptr.dtype.element_ty), mask=(rows < num_rows)[:, None])


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearTiles:
    """How a product is cut up; measured on an H200."""

    outputs: int
    splits: int
    stages: int


def linear_tiles(num_rows: int, num_outputs: int, num_inputs: int) -> LinearTiles | None:
    """None where cuBLAS is as fast: tiles far from full or no single wave, weights whose bytes are the limit."""
    is_narrow = num_outputs <= (_FEW_OUTPUTS if num_rows > TILE_ROWS else 2 * _FEW_OUTPUTS)
    outputs = 32 if is_narrow else 64
    programs = ceil_div(num_rows, TILE_ROWS) * (num_outputs // outputs)
    if -num_rows % TILE_ROWS > _MAX_PADDING or num_inputs >= _MAX_INPUTS or programs > _MAX_PROGRAMS:
        return None
    splits = 1
    while num_inputs >= _MANY_INPUTS and splits < _MAX_SPLITS and 2 * splits * programs <= _MAX_PROGRAMS:
        splits *= 2
    if not num_rows or num_outputs % outputs or num_inputs % (TILE_INPUTS * splits):
        return None
    return LinearTiles(outputs=outputs, splits=splits, stages=5 if outputs == 32 else 4)


def suits(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether this kernel takes the product: x [T, in], weight [out, in]."""
    return (
        (on_hopper() or triton.knobs.runtime.interpret)
        and x.dtype in (torch.bfloat16, torch.float16)
        and linear_tiles(x.shape[0], *weight.shape) is not None
        and x.stride(1) == 1
        and x.stride(0) % 8 == 0
        and x.data_ptr() % 16 == 0
        and weight.is_contiguous()
        and weight.data_ptr() % 16 == 0
    )


def tiled_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    counters: torch.Tensor,
    tiles: LinearTiles | None = None,
) -> torch.Tensor:
    """``x @ weight.T + bias`` for a product that ``suits``: x [T, in] -> [T, out] in x's dtype.

    counters int32, at least ``_MAX_PROGRAMS`` zeros, zeros again afterwards. Reads the weight once for every 64 rows;
    sums in float32.
    """
    (num_rows, num_inputs), num_outputs = x.shape, weight.shape[0]
    tiles = tiles or linear_tiles(num_rows, num_outputs, num_inputs)
    if tiles is None:
        raise ValueError(f"{num_rows} rows and a weight of {num_outputs} x {num_inputs} are no case for tiles")
    grid = (tiles.splits, ceil_div(num_rows, TILE_ROWS), num_outputs // tiles.outputs)
    out = torch.empty((num_rows, num_outputs), dtype=x.dtype, device=x.device)
    partial = counters
    if tiles.splits > 1:
        partial = torch.empty(
            grid[0] * grid[1] * grid[2] * TILE_ROWS * tiles.outputs, dtype=torch.float32, device=x.device
        )
    tiled_linear_kernel[grid](
        TensorDescriptor.from_tensor(x, [TILE_ROWS, TILE_INPUTS]),
        TensorDescriptor.from_tensor(weight, [tiles.outputs, TILE_INPUTS]),
        weight,
        weight if bias is None else bias,
        out,
        partial,
        counters,
        num_rows,
        NUM_OUTPUTS=num_outputs,
        NUM_INPUTS=num_inputs,
        SPLITS=tiles.splits,
        BIAS=bias is not None,
        ROWS=TILE_ROWS,
        OUTPUTS=tiles.outputs,
        INPUTS=TILE_INPUTS,
        NUM_STAGES=1 if on_hip() else tiles.stages,
        PREFETCH=on_hopper() and num_rows <= _MAX_PREFETCHED_ROWS and num_outputs <= _MAX_PREFETCHED_OUTPUTS,
        THREADS=128,
        num_warps=4,
        **early_start(),
    )
    return out
