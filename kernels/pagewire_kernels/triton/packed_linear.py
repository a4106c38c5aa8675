# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: N803, N806, RET505, UP031  (Triton follows no early return and formats no f-string)
"""Products of some rows (up to a few hundred) with a packed weight, also where there is no ``fragment_linear``.

The weight is the matrix instruction's first operand, made in registers from the codes of a chunk, and the rows,
transposed, its second, so that no lane works on padding of the large side. A subgroup's sums are scaled when they are
complete: one multiplication an output, not one a weight. Where one program a tile of outputs would leave processors
idle, the chunks are split; each split leaves its sums in float32, and the last one to arrive adds them up in split
order. The counters that tell who is last are zero again when the kernel ends.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from pagewire_kernels.triton.launch import ceil_div, next_power_of_two, on_hopper
from pagewire_kernels.triton.packed_weight import TILE_OUTPUTS, PackedWeight

MAX_TILE_ROWS = 128


@triton.jit
def _unpack(words, zeros, PLANE: tl.constexpr, BF16: tl.constexpr, ASM: tl.constexpr):
    """The numbers of one plane: code minus zero, exact, in the rows' dtype."""
    if not ASM and BF16:
        return (((words >> (4 * PLANE)) & 0xF) | 0x4300).to(tl.bfloat16, bitcast=True) - zeros
    elif not ASM:
        return (((words >> (4 * PLANE)) & 0xF) | 0x6400).to(tl.float16, bitcast=True) - zeros
    elif BF16:
        return tl.inline_asm_elementwise(
            "{ .reg .b32 t; shr.u32 t, $1, %d; lop3.b32 t, t, 0x000f000f, 0x43004300, 0xea; "
            "sub.rn.bf16x2 $0, t, $2; }" % (4 * PLANE),
            "=r,r,r", [words, zeros], dtype=tl.bfloat16, is_pure=True, pack=2,
        )  # fmt: skip
    else:
        return tl.inline_asm_elementwise(
            "{ .reg .b32 t; shr.u32 t, $1, %d; lop3.b32 t, t, 0x000f000f, 0x64006400, 0xea; "
            "sub.f16x2 $0, t, $2; }" % (4 * PLANE),
            "=r,r,r", [words, zeros], dtype=tl.float16, is_pure=True, pack=2,
        )  # fmt: skip


@triton.jit
def _planes(words, zeros, SUBGROUP: tl.constexpr, SUBGROUPS: tl.constexpr, BF16: tl.constexpr, ASM: tl.constexpr):
    """The numbers of a subgroup's planes side by side: [outputs, 32 planes]. No number leaves its lane."""
    OUTPUTS: tl.constexpr = words.shape[0]
    FIRST: tl.constexpr = SUBGROUP * 4 // SUBGROUPS
    first = _unpack(words, zeros, FIRST, BF16, ASM)
    if SUBGROUPS == 4:
        return first
    elif SUBGROUPS == 2:
        pair = tl.join(first, _unpack(words, zeros, FIRST + 1, BF16, ASM))
        return tl.reshape(tl.permute(pair, (0, 2, 1)), [OUTPUTS, 64])
    else:
        pair = tl.join(first, _unpack(words, zeros, 1, BF16, ASM))
        other = tl.join(_unpack(words, zeros, 2, BF16, ASM), _unpack(words, zeros, 3, BF16, ASM))
        return tl.reshape(tl.permute(tl.join(pair, other), (0, 3, 2, 1)), [OUTPUTS, 128])


@triton.jit
def _split_scale(word, BF16: tl.constexpr, SCALE_BF16: tl.constexpr):
    """Scale in float32 and zero in the rows' dtype."""
    if SCALE_BF16:
        scale = (word << 16).to(tl.float32, bitcast=True)
    else:
        scale = (word & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    high = (word >> 16).to(tl.int16)
    if BF16:
        return scale, high.to(tl.bfloat16, bitcast=True)
    else:
        return scale, high.to(tl.float16, bitcast=True)


@triton.jit(do_not_specialize=["num_rows"])
def packed_linear_kernel(
    x_ptr,
    words_ptr,
    scales_ptr,
    bias_ptr,
    out_ptr,
    partial_ptr,
    counters_ptr,
    num_rows,
    X_STRIDE: tl.constexpr,
    NUM_OUTPUTS: tl.constexpr,
    NUM_INPUTS: tl.constexpr,
    CHUNKS: tl.constexpr,
    SUBGROUPS: tl.constexpr,
    SPLITS: tl.constexpr,
    BIAS: tl.constexpr,
    BF16: tl.constexpr,
    SCALE_BF16: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    ASM: tl.constexpr,
    PDL: tl.constexpr,
):
    """OUTPUTS outputs of ROWS rows over one split of the chunks. Grid (padded outputs / OUTPUTS, SPLITS, row tiles)."""
    X_CHUNKS: tl.constexpr = (NUM_INPUTS + 127) // 128
    LAST_TILE: tl.constexpr = (NUM_OUTPUTS - 1) // 64
    tile = tl.program_id(0)
    split = tl.program_id(1)
    row_tile = tl.program_id(2)
    outputs = tile * OUTPUTS + tl.arange(0, OUTPUTS)
    rows = row_tile * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, 32)
    block = tl.minimum(outputs // 64, LAST_TILE).to(tl.int64) * CHUNKS
    words_of = words_ptr + (block * 2048 + outputs % 64 * 32)[:, None] + column[None, :]
    scales_of = scales_ptr + block * (64 * SUBGROUPS) + outputs % 64
    # Rows that pad the tile are read as others are: all as the last one, they would wait for one line of the cache.
    x_of = x_ptr + (rows % num_rows).to(tl.int64)[None, :] * X_STRIDE
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()

    # sums [OUTPUTS, ROWS]
    sums = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for chunk in tl.range(CHUNKS * split // SPLITS, CHUNKS * (split + 1) // SPLITS, num_stages=NUM_STAGES):
        x_chunk = chunk if CHUNKS == X_CHUNKS else chunk % X_CHUNKS
        words = tl.load(words_of + chunk * 2048, eviction_policy="evict_first")
        for subgroup in tl.static_range(SUBGROUPS):
            scale, zeros = _split_scale(tl.load(scales_of + (chunk * SUBGROUPS + subgroup) * 64), BF16, SCALE_BF16)
            first = x_chunk * 128 + subgroup * (128 // SUBGROUPS)
            inputs = tl.arange(0, 128 // SUBGROUPS)
            if NUM_INPUTS % 128 == 0:
                x = tl.load(x_of + (first + inputs)[:, None])
            else:
                x = tl.load(x_of + (first + inputs)[:, None], mask=(inputs < NUM_INPUTS - first)[:, None], other=0.0)
            numbers = _planes(words, zeros[:, None], subgroup, SUBGROUPS, BF16, ASM)
            part = tl.dot(numbers, x)
            sums += part * scale[:, None]

    exists = (rows < num_rows)[None, :] & (outputs < NUM_OUTPUTS)[:, None]
    is_last = True
    if SPLITS > 1:
        # the sums of one program are one piece of memory, whatever its outputs and rows
        place = tl.arange(0, OUTPUTS)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
        program = (row_tile * tl.num_programs(0) + tile).to(tl.int64)
        partial = partial_ptr + program * (SPLITS * OUTPUTS * ROWS) + place
        tl.store(partial + split * (OUTPUTS * ROWS), sums)
        tl.debug_barrier()
        is_last = tl.atomic_add(counters_ptr + program, 1, sem="acq_rel") == SPLITS - 1
        if is_last:
            tl.debug_barrier()
            sums = tl.zeros([OUTPUTS, ROWS], tl.float32)
            for number in tl.static_range(SPLITS):
                sums += tl.load(partial + number * (OUTPUTS * ROWS), cache_modifier=".cg")
            tl.store(counters_ptr + program, 0)
    if is_last:
        if BIAS:
            sums += tl.load(bias_ptr + outputs, mask=outputs < NUM_OUTPUTS, other=0.0).to(tl.float32)[:, None]
        target = out_ptr + rows.to(tl.int64)[None, :] * NUM_OUTPUTS + outputs[:, None]
        tl.store(target, sums.to(out_ptr.dtype.element_ty), mask=exists)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTiles:
    """How a product is cut up; measured on an H200."""

    outputs: int
    """64 or 128 a program."""
    rows: int
    splits: int
    warps: int
    stages: int


def packed_tiles(num_rows: int, num_tiles: int, num_chunks: int, hopper: bool) -> PackedTiles:
    """Many outputs fill the device by themselves; few are split along the inputs, the more the fewer rows there are.

    Nothing was measured but on Hopper; elsewhere tiles are such as fit.
    """
    rows = min(max(16, next_power_of_two(num_rows)), MAX_TILE_ROWS)
    if not hopper:
        return PackedTiles(outputs=64, rows=min(rows, 64), splits=1, warps=4, stages=1)
    is_wide, is_narrow = num_tiles >= 256, num_tiles <= 64
    most = max(1, num_chunks // 4)
    if rows == MAX_TILE_ROWS:
        splits = 1 if is_wide else 4 if is_narrow and num_rows <= rows else 2
        return PackedTiles(outputs=64, rows=rows, splits=min(splits, most), warps=4, stages=3)
    if is_wide:
        splits = 2 if rows == 16 else 1
        return PackedTiles(outputs=128, rows=rows, splits=min(splits, most), warps=4, stages=3 if rows == 16 else 4)
    if rows == 16:
        return PackedTiles(outputs=128, rows=rows, splits=min(8, most), warps=8 if is_narrow else 4, stages=3)
    if rows == 64 and num_chunks >= 64:
        return PackedTiles(outputs=128, rows=rows, splits=8, warps=4, stages=3)
    splits = 8 if rows == 32 and is_narrow else 4
    return PackedTiles(outputs=64, rows=rows, splits=min(splits, most), warps=4, stages=4 if is_narrow else 3)


def packed_linear(
    x: torch.Tensor,
    packed: PackedWeight,
    bias: torch.Tensor | None,
    counters: torch.Tensor,
    tiles: PackedTiles | None = None,
) -> torch.Tensor:
    """``x @ w.T + bias``: x [T, in] in the packed weight's dtype -> [T, out] in it.

    counters int32, one for each tile of outputs and rows, zeros, and zeros again afterwards. Reads codes and scales
    once for every ``tiles.rows`` rows; sums in float32.
    """
    x = x if x.stride(1) == 1 and x.stride(0) % 8 == 0 else x.contiguous()
    num_rows, device = x.shape[0], x.device
    hopper = on_hopper()
    tiles = tiles or packed_tiles(num_rows, packed.num_tiles, packed.num_chunks, hopper)
    grid = (ceil_div(packed.num_tiles * TILE_OUTPUTS, tiles.outputs), tiles.splits, ceil_div(num_rows, tiles.rows))
    out = torch.empty((num_rows, packed.num_outputs), dtype=x.dtype, device=device)
    partial = counters
    if tiles.splits > 1:
        partial = torch.empty(
            grid[0] * grid[2] * tiles.splits * tiles.outputs * tiles.rows, dtype=torch.float32, device=device
        )
    packed_linear_kernel[grid](
        x,
        packed.words,
        packed.scales,
        x if bias is None else bias,
        out,
        partial,
        counters,
        num_rows,
        X_STRIDE=x.stride(0),
        NUM_OUTPUTS=packed.num_outputs,
        NUM_INPUTS=packed.num_inputs,
        CHUNKS=packed.num_chunks,
        SUBGROUPS=packed.num_subgroups,
        SPLITS=tiles.splits,
        BIAS=bias is not None,
        BF16=packed.dtype == torch.bfloat16,
        SCALE_BF16=packed.scale_dtype == torch.bfloat16,
        ROWS=tiles.rows,
        OUTPUTS=tiles.outputs,
        NUM_STAGES=tiles.stages,
        ASM=hopper,
        PDL=hopper,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
        **({"launch_pdl": True} if hopper else {}),
    )
    return out
