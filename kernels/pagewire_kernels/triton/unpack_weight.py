# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: N803, N806
"""Packed weights as floats again, for products of so many rows that arithmetic is the limit, not bytes.

The same bits as ``reference.dequantize``: code minus zero is exact, times the scale is rounded once to the scale's
dtype, and then converted.
"""

import torch
import triton
import triton.language as tl

from pagewire_kernels.triton.launch import ceil_div
from pagewire_kernels.triton.packed_weight import CHUNK_INPUTS, TILE_OUTPUTS, PackedWeight


@triton.jit
def unpack_weight_kernel(
    words_ptr,
    scales_ptr,
    out_ptr,
    first_tile,
    NUM_OUTPUTS: tl.constexpr,
    NUM_INPUTS: tl.constexpr,
    CHUNKS: tl.constexpr,
    SUBGROUPS: tl.constexpr,
    BF16: tl.constexpr,
    SCALE_BF16: tl.constexpr,
):
    """64 outputs x 128 inputs. Grid (tiles, chunks of the inputs)."""
    X_CHUNKS: tl.constexpr = (NUM_INPUTS + 127) // 128
    ZERO_BITS: tl.constexpr = 0x7F if BF16 else 0x3FF
    tile = tl.program_id(0)
    chunk = tl.program_id(1)
    row = tl.arange(0, 64)
    column = tl.arange(0, 32)
    block = (first_tile + tile).to(tl.int64) * CHUNKS + chunk
    words_of = words_ptr + block * 2048 + row[:, None] * 32 + column[None, :]
    words = tl.load(words_of).to(tl.int32)
    outputs = (first_tile + tile) * 64 + row
    out = out_ptr + (tile * 64 + row).to(tl.int64)[:, None] * NUM_INPUTS + chunk * 128 + column[None, :]
    for plane in tl.static_range(4):
        scales_of = scales_ptr + block * (64 * SUBGROUPS) + (plane * SUBGROUPS // 4 * 64) + row
        codes = (words >> (4 * plane)) & 0xF
        word = tl.load(scales_of)
        zeros = (word >> 16) & ZERO_BITS
        if CHUNKS != X_CHUNKS:  # these were the high halves
            low_words = tl.load(words_of + X_CHUNKS * 2048).to(tl.int32)
            codes = codes * 16 + ((low_words >> (4 * plane)) & 0xF)
            word = tl.load(scales_of + X_CHUNKS * (64 * SUBGROUPS))
            zeros = zeros * 16 + ((word >> 16) & ZERO_BITS)
        values = (codes - zeros[:, None]).to(tl.float32)
        if SCALE_BF16:
            values = (values * (word << 16).to(tl.float32, bitcast=True)[:, None]).to(tl.bfloat16)
        else:
            scale = (word & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
            values = (values * scale[:, None]).to(tl.float16)
        inside = (outputs < NUM_OUTPUTS)[:, None] & (chunk * 128 + plane * 32 + column < NUM_INPUTS)[None, :]
        tl.store(out + plane * 32, values.to(out_ptr.dtype.element_ty), mask=inside)


def unpack_tiles(packed: PackedWeight, first_tile: int, out: torch.Tensor) -> None:
    """Write outputs from ``64 first_tile`` on to ``out`` [n, in], contiguous, in the inputs' dtype; n a multiple of 64
    or up to the last output."""
    unpack_weight_kernel[(ceil_div(out.shape[0], TILE_OUTPUTS), ceil_div(packed.num_inputs, CHUNK_INPUTS))](
        packed.words,
        packed.scales,
        out,
        first_tile,
        NUM_OUTPUTS=packed.num_outputs,
        NUM_INPUTS=packed.num_inputs,
        CHUNKS=packed.num_chunks,
        SUBGROUPS=packed.num_subgroups,
        BF16=packed.dtype == torch.bfloat16,
        SCALE_BF16=packed.scale_dtype == torch.bfloat16,
        num_warps=4,
    )
