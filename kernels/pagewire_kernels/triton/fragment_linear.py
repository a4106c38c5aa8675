# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, disable-error-code="assignment,var-annotated"
# ruff: noqa: N803, N806, RET505, RUF005  (Triton follows no early return and joins tuples with + alone)
"""Products of up to 8 rows with a packed weight: what a decode step of few rows is made of, bound by reading codes.

Every lane of a warp reads its part of a 16 x 128 block of codes as two 16-byte words, straight into registers, where
they already lie in the order in which the matrix instruction (mma.m16n8k16) wants its first operand; a code becomes a
number by two bit operations and one subtraction for two codes. The rows are the second operand. Scales are applied
to the sums of a group. The warps of a program take turns along the inputs, and their sums are added up once, in warp
order: results do not depend on timing.

Nothing here waits for the kernel before until its first codes are on their way (PDL: the rows alone depend on it).
NVIDIA from Hopper on only: the arithmetic is inline PTX, which Triton's interpreter and other backends do not have. The
names of a block's parts are those of ``packed_weight.py``.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from pagewire_kernels.triton.packed_weight import TILE_OUTPUTS, PackedWeight

MAX_ROWS = 8

# One word holds, for two neighbouring inputs of each plane, four codes a half: plane p at bits 4 p and 4 p + 16.
# $0 to $3: the pairs of planes 0 to 3, $4: word, $5 to $8: their zeros, $9: the magic exponent.
_UNPACK_BF16: tl.constexpr = tl.constexpr(
    "{ .reg .b32 a, b, c; shr.u32 a, $4, 4; shr.u32 b, $4, 8; shr.u32 c, $4, 12; "
    "lop3.b32 $0, $4, 0x000f000f, $9, 0xea; lop3.b32 $1, a, 0x000f000f, $9, 0xea; "
    "lop3.b32 $2, b, 0x000f000f, $9, 0xea; lop3.b32 $3, c, 0x000f000f, $9, 0xea; "
    "sub.rn.bf16x2 $0, $0, $5; sub.rn.bf16x2 $1, $1, $6; sub.rn.bf16x2 $2, $2, $7; sub.rn.bf16x2 $3, $3, $8; }"
)
_UNPACK_FP16: tl.constexpr = tl.constexpr(_UNPACK_BF16.value.replace("sub.rn.bf16x2", "sub.f16x2"))
_MMA_BF16: tl.constexpr = tl.constexpr(
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {$0,$1,$2,$3},{$4,$5,$6,$7},{$8,$9},{$10,$11,$12,$13};"
)
_MMA_FP16: tl.constexpr = tl.constexpr(_MMA_BF16.value.replace("bf16", "f16"))
_LOAD_WORDS: tl.constexpr = tl.constexpr("ld.global.L1::no_allocate.L2::256B.v4.b32 {$0,$1,$2,$3}, [$4];")
_LOAD_ROWS: tl.constexpr = tl.constexpr(
    "{ .reg .pred p; setp.ne.s32 p, $5, 0; mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0; "
    "@p ld.global.v4.b32 {$0,$1,$2,$3}, [$4]; }"
)
# Loads issued before a barrier cannot be moved behind it, and the arithmetic needs the barrier's result: without this
# the compiler puts loads next to their uses, and too few are under way (4096 x 4096: 6.9 us against 5.6).
_FENCE_BF16: tl.constexpr = tl.constexpr(
    "{ .reg .pred p; setp.lt.s32 p, $1, 0; bar.red.popc.u32 $0, 0, p; or.b32 $0, $0, 0x43004300; }"
)
_FENCE_FP16: tl.constexpr = tl.constexpr(_FENCE_BF16.value.replace("0x4300", "0x6400").replace("4300;", "6400;"))


@triton.jit
def _add(a, b, c, d, e, f, g, h):
    return a + e, b + f, c + g, d + h


@triton.jit
def _load4(ASM: tl.constexpr, address):
    return tl.inline_asm_elementwise(
        ASM, "=r,=r,=r,=r,l", [address], dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=False, pack=1
    )


@triton.jit
def _load_block(words, scales, SUBGROUPS: tl.constexpr, ROW_TILES: tl.constexpr, exists):
    """Codes and scales of ROW_TILES x (16 outputs x 128 inputs), 8 words and 2 SUBGROUPS scales of each a lane."""
    loaded = ()
    for tile in tl.static_range(ROW_TILES):
        for half in tl.static_range(2):
            loaded = loaded + _load4(_LOAD_WORDS, words + (tile * 1024 + half * 512))
    for tile in tl.static_range(ROW_TILES):
        for subgroup in tl.static_range(SUBGROUPS):
            for half in tl.static_range(2):
                loaded = loaded + (tl.load(scales + (subgroup * 64 + tile * 16 + half * 8), mask=exists, other=0),)
    return loaded


@triton.jit
def _load_rows(address, chunk, NUM_INPUTS: tl.constexpr):
    """This lane's part of 8 rows x 128 inputs: for each of the 4 planes 8 neighbouring inputs."""
    loaded = ()
    for plane in tl.static_range(4):
        if NUM_INPUTS % 128 == 0:
            loaded = loaded + _load4("ld.global.v4.b32 {$0,$1,$2,$3}, [$4];", address + plane * 64)
        else:
            exists = (chunk * 128 + plane * 32 < NUM_INPUTS).to(tl.int32)
            loaded = loaded + tl.inline_asm_elementwise(
                _LOAD_ROWS, "=&r,=&r,=&r,=&r,l,r", [address + plane * 64, exists],
                dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=False, pack=1,
            )  # fmt: skip
    return loaded


@triton.jit
def _scale(word, BF16: tl.constexpr):
    if BF16:
        return (word << 16).to(tl.float32, bitcast=True)
    else:
        return (word & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _zeros(word):
    """The zero of a scale word twice, as the pair it is subtracted from."""
    return tl.inline_asm_elementwise(
        "prmt.b32 $0, $1, $1, 0x3232;", "=r,r", [word], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _unpack(word, zeros0, zeros1, zeros2, zeros3, magic, BF16: tl.constexpr):
    ASM: tl.constexpr = _UNPACK_BF16 if BF16 else _UNPACK_FP16
    return tl.inline_asm_elementwise(
        ASM, "=&r,=&r,=&r,=&r,r,r,r,r,r,r", [word, zeros0, zeros1, zeros2, zeros3, magic],
        dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def _mma(a0, a1, a2, a3, b0, b1, sums, BF16: tl.constexpr):
    ASM: tl.constexpr = _MMA_BF16 if BF16 else _MMA_FP16
    return tl.inline_asm_elementwise(
        ASM, "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f", [a0, a1, a2, a3, b0, b1, sums[0], sums[1], sums[2], sums[3]],
        dtype=(tl.float32, tl.float32, tl.float32, tl.float32), is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def _numbers(block, magic, WORDS: tl.constexpr, SCALES: tl.constexpr, SUBGROUPS: tl.constexpr, BF16: tl.constexpr):
    """4 words of one output as pairs of numbers: 4 planes of the first, of the second..."""
    zeros0 = _zeros(block[SCALES])
    zeros1 = _zeros(block[SCALES + SUBGROUPS // 4 * 2])
    zeros2 = _zeros(block[SCALES + SUBGROUPS // 2 * 2])
    zeros3 = _zeros(block[SCALES + SUBGROUPS * 3 // 4 * 2])
    numbers = ()
    for word in tl.static_range(4):
        numbers = numbers + _unpack(block[WORDS + word], zeros0, zeros1, zeros2, zeros3, magic, BF16)
    return numbers


@triton.jit
def _multiply_tile(block, rows, sums, magic, zero, TILE: tl.constexpr, SUBGROUPS: tl.constexpr,
                   ROW_TILES: tl.constexpr, BF16: tl.constexpr, SCALE_BF16: tl.constexpr):  # fmt: skip
    """The 4 sums of a row tile and its products of one block."""
    SCALES: tl.constexpr = ROW_TILES * 8 + TILE * (2 * SUBGROUPS)
    upper = _numbers(block, magic, TILE * 8, SCALES, SUBGROUPS, BF16)  # outputs 0 to 7
    lower = _numbers(block, magic, TILE * 8 + 4, SCALES + 1, SUBGROUPS, BF16)  # outputs 8 to 15
    total = (sums[TILE * 4], sums[TILE * 4 + 1], sums[TILE * 4 + 2], sums[TILE * 4 + 3])
    for subgroup in tl.static_range(SUBGROUPS):
        part = (zero, zero, zero, zero)
        for plane in tl.static_range(subgroup * 4 // SUBGROUPS, (subgroup + 1) * 4 // SUBGROUPS):
            for pair in tl.static_range(2):
                part = _mma(
                    upper[pair * 8 + plane], lower[pair * 8 + plane],
                    upper[pair * 8 + 4 + plane], lower[pair * 8 + 4 + plane],
                    rows[plane * 4 + pair * 2], rows[plane * 4 + pair * 2 + 1], part, BF16,
                )  # fmt: skip
        above = _scale(block[SCALES + subgroup * 2], SCALE_BF16)
        below = _scale(block[SCALES + subgroup * 2 + 1], SCALE_BF16)
        total = (
            total[0] + part[0] * above, total[1] + part[1] * above,
            total[2] + part[2] * below, total[3] + part[3] * below,
        )  # fmt: skip
    return total


@triton.jit
def _multiply(block, rows, sums, magic, zero, SUBGROUPS: tl.constexpr, ROW_TILES: tl.constexpr,
              BF16: tl.constexpr, SCALE_BF16: tl.constexpr):  # fmt: skip
    """``sums`` (4 a row tile) and the products of one block."""
    added = ()
    for tile in tl.static_range(ROW_TILES):
        added = added + _multiply_tile(block, rows, sums, magic, zero, tile, SUBGROUPS, ROW_TILES, BF16, SCALE_BF16)
    return added


@triton.jit
def _fence(num_rows, FENCE: tl.constexpr, BF16: tl.constexpr):
    """The magic exponent of two codes; with FENCE loads before it stay before it."""
    MAGIC: tl.constexpr = 0x43004300 if BF16 else 0x64006400
    ASM: tl.constexpr = _FENCE_BF16 if BF16 else _FENCE_FP16
    if FENCE:
        return tl.inline_asm_elementwise(ASM, "=r,r", [num_rows], dtype=tl.int32, is_pure=False, pack=1)
    else:
        return num_rows * 0 + MAGIC


@triton.jit(do_not_specialize=["num_rows"])
def fragment_linear_kernel(
    x_ptr,
    words_ptr,
    scales_ptr,
    bias_ptr,
    out_ptr,
    num_rows,
    X_STRIDE: tl.constexpr,
    NUM_OUTPUTS: tl.constexpr,
    NUM_INPUTS: tl.constexpr,
    CHUNKS: tl.constexpr,
    SUBGROUPS: tl.constexpr,
    BIAS: tl.constexpr,
    BF16: tl.constexpr,
    SCALE_BF16: tl.constexpr,
    ROW_TILES: tl.constexpr,
    WARPS: tl.constexpr,
    UNROLL: tl.constexpr,
    FENCE: tl.constexpr,
    PDL: tl.constexpr,
):
    """16 ROW_TILES outputs of all rows; warp w takes chunks w, w + WARPS, ... Grid (padded outputs / those,)."""
    X_CHUNKS: tl.constexpr = (NUM_INPUTS + 127) // 128
    STEP: tl.constexpr = WARPS * UNROLL
    STEPS: tl.constexpr = (CHUNKS + STEP - 1) // STEP
    thread = tl.arange(0, 32 * WARPS)
    lane = thread & 31
    first = thread >> 5  # the warp's first chunk
    group = lane >> 2
    quarter = lane & 3
    row_tile = tl.program_id(0) * ROW_TILES
    block = (row_tile // 4).to(tl.int64) * CHUNKS
    within = (row_tile % 4) * 16 + group
    words = words_ptr.to(tl.int64) + block * 4096 + within * 64 + quarter * 16
    scales = scales_ptr + block * (64 * SUBGROUPS) + within
    x = x_ptr.to(tl.int64) + tl.minimum(group, num_rows - 1).to(tl.int64) * (X_STRIDE * 2) + quarter * 16

    zero = tl.zeros([32 * WARPS], tl.float32)
    sums = ()
    for _ in tl.static_range(4 * ROW_TILES):
        sums = sums + (zero,)
    blocks = ()
    for part in tl.static_range(UNROLL):
        chunk = first + part * WARPS
        exists = chunk < CHUNKS
        chunk = tl.minimum(chunk, CHUNKS - 1)
        blocks = blocks + (
            _load_block(words + chunk * 4096, scales + chunk * (64 * SUBGROUPS), SUBGROUPS, ROW_TILES, exists),
        )
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    rows = ()
    for part in tl.static_range(UNROLL):
        chunk = tl.minimum(first + part * WARPS, CHUNKS - 1)
        chunk = chunk if CHUNKS == X_CHUNKS else chunk % X_CHUNKS
        rows = rows + (_load_rows(x + chunk * 256, chunk, NUM_INPUTS),)
    magic = _fence(thread * 0 + num_rows, FENCE, BF16)
    for step in tl.range(1, STEPS, num_stages=1):
        next_blocks, next_rows = (), ()
        for part in tl.static_range(UNROLL):
            chunk = step * STEP + first + part * WARPS
            exists = chunk < CHUNKS
            chunk = tl.minimum(chunk, CHUNKS - 1)
            next_blocks = next_blocks + (
                _load_block(words + chunk * 4096, scales + chunk * (64 * SUBGROUPS), SUBGROUPS, ROW_TILES, exists),
            )
            chunk = chunk if CHUNKS == X_CHUNKS else chunk % X_CHUNKS
            next_rows = next_rows + (_load_rows(x + chunk * 256, chunk, NUM_INPUTS),)
        magic = _fence(thread * 0 + num_rows, FENCE, BF16)
        for part in tl.static_range(UNROLL):
            sums = _multiply(blocks[part], rows[part], sums, magic, zero, SUBGROUPS, ROW_TILES, BF16, SCALE_BF16)
        blocks, rows = next_blocks, next_rows
    for part in tl.static_range(UNROLL):
        sums = _multiply(blocks[part], rows[part], sums, magic, zero, SUBGROUPS, ROW_TILES, BF16, SCALE_BF16)

    place = tl.arange(0, 32)
    outputs = row_tile * 16 + (place >> 2)
    row = (place & 3) * 2
    for tile in tl.static_range(ROW_TILES):
        a, b, c, d = sums[tile * 4], sums[tile * 4 + 1], sums[tile * 4 + 2], sums[tile * 4 + 3]
        if WARPS > 1:
            a, b, c, d = tl.reduce(
                (tl.reshape(a, [WARPS, 32]), tl.reshape(b, [WARPS, 32]),
                 tl.reshape(c, [WARPS, 32]), tl.reshape(d, [WARPS, 32])), 0, _add,
            )  # fmt: skip
        _store(out_ptr, bias_ptr, outputs + tile * 16, row, num_rows, a, b, NUM_OUTPUTS, BIAS)
        _store(out_ptr, bias_ptr, outputs + tile * 16 + 8, row, num_rows, c, d, NUM_OUTPUTS, BIAS)


@triton.jit
def _store(out_ptr, bias_ptr, outputs, row, num_rows, even, odd, NUM_OUTPUTS: tl.constexpr, BIAS: tl.constexpr):
    inside = outputs < NUM_OUTPUTS
    if BIAS:
        bias = tl.load(bias_ptr + outputs, mask=inside, other=0.0).to(tl.float32)
        even += bias
        odd += bias
    out = out_ptr + row * NUM_OUTPUTS + outputs
    tl.store(out, even.to(out_ptr.dtype.element_ty), mask=inside & (row < num_rows))
    tl.store(out + NUM_OUTPUTS, odd.to(out_ptr.dtype.element_ty), mask=inside & (row + 1 < num_rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentTiles:
    """How a product is cut up; measured on an H200."""

    row_tiles: int
    """16 outputs each; a program's."""
    warps: int
    unroll: int
    """Chunks a warp has under way."""
    fence: bool


def fragment_tiles(num_tiles: int, num_chunks: int) -> FragmentTiles:
    """Many outputs: wide programs. Many inputs: more warps to share the chunks of 16 outputs."""
    if num_tiles >= 256:
        return FragmentTiles(row_tiles=2, warps=4, unroll=1, fence=True)
    if num_chunks >= 64:
        return FragmentTiles(row_tiles=1, warps=8, unroll=2, fence=False)
    return FragmentTiles(row_tiles=1, warps=4, unroll=2, fence=True)


def fragment_linear(
    x: torch.Tensor, packed: PackedWeight, bias: torch.Tensor | None, tiles: FragmentTiles | None = None
) -> torch.Tensor:
    """``x @ w.T + bias``: x [1 to 8, in], rows 16-byte aligned, in the packed weight's dtype -> [T, out] in it.

    Reads codes and scales once; sums in float32.
    """
    x = x if x.stride(1) == 1 and x.stride(0) % 8 == 0 else x.contiguous()
    out = torch.empty((x.shape[0], packed.num_outputs), dtype=x.dtype, device=x.device)
    tiles = tiles or fragment_tiles(packed.num_tiles, packed.num_chunks)
    fragment_linear_kernel[(packed.num_tiles * (TILE_OUTPUTS // 16) // tiles.row_tiles,)](
        x,
        packed.words,
        packed.scales,
        x if bias is None else bias,
        out,
        x.shape[0],
        X_STRIDE=x.stride(0),
        NUM_OUTPUTS=packed.num_outputs,
        NUM_INPUTS=packed.num_inputs,
        CHUNKS=packed.num_chunks,
        SUBGROUPS=packed.num_subgroups,
        BIAS=bias is not None,
        BF16=packed.dtype == torch.bfloat16,
        SCALE_BF16=packed.scale_dtype == torch.bfloat16,
        ROW_TILES=tiles.row_tiles,
        WARPS=tiles.warps,
        UNROLL=tiles.unroll,
        FENCE=tiles.fence,
        PDL=True,
        num_warps=tiles.warps,
        num_stages=1,
        launch_pdl=True,
    )
    return out
