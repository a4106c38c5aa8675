"""The layout that every kernel for quantised weights reads: 4-bit codes in tiles, scale and zero in one word.

::

    words  int16 [tiles, chunks, 64 outputs, 32]      scales  int32 [tiles, chunks, subgroups, 64 outputs]

A *tile* is 64 outputs, a *chunk* 128 inputs, four *planes* of 32. Bits 4 p of word j of a chunk are the code of input
``32 p + j``. So the 16 bytes that a lane of a warp reads are, for one output, eight neighbouring inputs of each plane,
which is what the matrix instruction wants in a register (``fragment_linear.py``); and a tile of words times four tiles
of rows is a product of a whole chunk (``packed_linear.py``). Neither moves a code to another lane.

A chunk has 1, 2 or 4 *subgroups*, as many as it takes that none lies in two groups. A scale word holds the scale's bits
as the checkpoint has them and, above them, the zero as the number that codes turn into, a power of two plus the zero
(``128 + z`` in bfloat16, ``1024 + z`` in float16), so that subtracting it is exact.

What is missing at the edges has scale 0: outputs up to a multiple of 64, inputs up to one of 128. Codes of 8 bits are
two weights of 4 bits, high halves (scale x 16) then low halves along the chunks, over the same inputs; 2 and 3 bits are
held in 4.
"""

from dataclasses import dataclass

import torch

from pagewire_kernels.quantized import QuantizedWeight
from pagewire_kernels.triton.launch import ceil_div

TILE_OUTPUTS = 64
CHUNK_INPUTS = 128
PLANES = 4
PLANE_INPUTS = CHUNK_INPUTS // PLANES
_MAGIC = {torch.bfloat16: 128, torch.float16: 1024}
_MAX_ZERO = {4: 64, 8: 255}
"""Of codes of up to 4 and of 8 bits."""
_PACKED_AT_ONCE = 4 << 20
"""Codes repacked at once: bounds what packing needs beside its result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWeight:
    """A weight for products with inputs of one dtype."""

    words: torch.Tensor
    """int16 [tiles, chunks, 64, 32]."""
    scales: torch.Tensor
    """int32 [tiles, chunks, subgroups, 64]."""
    num_outputs: int
    num_inputs: int
    dtype: torch.dtype
    """Of the inputs: float16 or bfloat16; the zeros are written for it."""
    scale_dtype: torch.dtype
    """Float16 or bfloat16."""

    @property
    def num_tiles(self) -> int:
        return self.words.shape[0]

    @property
    def num_chunks(self) -> int:
        """Twice the chunks of the inputs where codes have 8 bits."""
        return self.words.shape[1]

    @property
    def num_subgroups(self) -> int:
        return self.scales.shape[2]

    @property
    def num_bytes(self) -> int:
        return self.words.nbytes + self.scales.nbytes


def pack_weight(weight: QuantizedWeight, dtype: torch.dtype) -> PackedWeight:
    """Repack a weight, some tiles at a time. Its permutation stays the caller's to apply.

    Raises:
        ValueError: the weight, or the dtype of the inputs, is none that this layout can hold.
    """
    all_zeros = check_packable(weight, dtype)
    num_outputs, num_inputs = weight.shape
    halves = 2 if weight.bits == 8 else 1
    subgroups = count_subgroups(weight.group_size, num_inputs)
    tiles, chunks = ceil_div(num_outputs, TILE_OUTPUTS), ceil_div(num_inputs, CHUNK_INPUTS)
    device = weight.codes.device
    words = torch.empty(tiles, halves * chunks, TILE_OUTPUTS, PLANE_INPUTS, dtype=torch.int16, device=device)
    scales = torch.empty(tiles, halves * chunks, subgroups, TILE_OUTPUTS, dtype=torch.int32, device=device)
    starts = torch.arange(chunks * subgroups, device=device) * (CHUNK_INPUTS // subgroups)
    exists, groups = starts < num_inputs, (starts // weight.group_size).clamp_max(weight.num_groups - 1)
    step = max(1, _PACKED_AT_ONCE // (chunks * CHUNK_INPUTS * TILE_OUTPUTS))
    for first in range(0, tiles, step):
        here = slice(first, min(first + step, tiles))
        rows = slice(here.start * TILE_OUTPUTS, min(here.stop * TILE_OUTPUTS, num_outputs))
        part_scales = torch.where(exists, weight.scales[rows][:, groups], 0)
        part_codes, part_zeros = weight.codes[rows], all_zeros[rows][:, groups]
        for half in range(halves):
            inside = slice(half * chunks, (half + 1) * chunks)
            high = halves == 2 and half == 0
            shift = 4 if high else 0
            words[here, inside] = _pack_codes((part_codes >> shift) & 15 if halves == 2 else part_codes, chunks)
            zeros = (part_zeros >> shift) & 15 if halves == 2 else part_zeros
            scales[here, inside] = _pack_scales(part_scales * 16 if high else part_scales, zeros, dtype, chunks)
    return PackedWeight(
        words=words,
        scales=scales,
        num_outputs=num_outputs,
        num_inputs=num_inputs,
        dtype=dtype,
        scale_dtype=weight.scales.dtype,
    )


def check_packable(weight: QuantizedWeight, dtype: torch.dtype) -> torch.Tensor:
    """The weight's zeros. Raises ValueError for a form that this layout cannot hold."""
    if dtype not in _MAGIC or weight.scales.dtype not in _MAGIC:
        raise ValueError(f"inputs of {dtype} and scales of {weight.scales.dtype}: both must have 16 bits")
    if weight.is_float8 or weight.zeros is None:
        raise ValueError("only integer codes with integer zeros can be packed")
    if weight.shape[1] % PLANE_INPUTS:
        raise ValueError(f"{weight.shape[1]} inputs are no multiple of {PLANE_INPUTS}")
    count_subgroups(weight.group_size, weight.shape[1])
    if int(weight.zeros.max()) > _MAX_ZERO[8 if weight.bits == 8 else 4]:
        raise ValueError(f"a zero of {int(weight.zeros.max())} with codes of {weight.bits} bits")
    if weight.bits == 8 and float(weight.scales.abs().max()) * 16 > torch.finfo(weight.scales.dtype).max:
        raise ValueError("a scale is too large to be multiplied by 16")
    return weight.zeros


def count_subgroups(group_size: int, num_inputs: int) -> int:
    """Parts of a chunk of which none lies in two groups. Raises ValueError where there are more than planes."""
    for subgroups in (1, 2, PLANES):
        if group_size >= num_inputs or group_size % (CHUNK_INPUTS // subgroups) == 0:
            return subgroups
    raise ValueError(f"groups of {group_size} inputs are no multiple of {PLANE_INPUTS}")


def _pack_codes(codes: torch.Tensor, chunks: int) -> torch.Tensor:
    """uint8 [rows, in] -> int16 [tiles, chunks, 64, 32]."""
    rows, num_inputs = codes.shape
    tiles = ceil_div(rows, TILE_OUTPUTS)
    padding = (0, chunks * CHUNK_INPUTS - num_inputs, 0, tiles * TILE_OUTPUTS - rows)
    if any(padding):
        codes = torch.nn.functional.pad(codes, padding)
    planes = codes.view(tiles, TILE_OUTPUTS, chunks, PLANES, PLANE_INPUTS).transpose(1, 2).unbind(3)
    words = planes[0].to(torch.int32)
    for number, plane in enumerate(planes[1:], start=1):
        words |= plane.to(torch.int32) << (4 * number)
    return _wrapped(words, 16).to(torch.int16)


def _pack_scales(scales: torch.Tensor, zeros: torch.Tensor, dtype: torch.dtype, chunks: int) -> torch.Tensor:
    """[rows, chunks x subgroups] of both -> int32 [tiles, chunks, subgroups, 64]."""
    rows = scales.shape[0]
    tiles = ceil_div(rows, TILE_OUTPUTS)
    magic = (zeros.to(torch.float32) + _MAGIC[dtype]).to(dtype)
    words = _bits(scales) | (_bits(magic) << 16)
    if rows % TILE_OUTPUTS:
        words = torch.nn.functional.pad(words, (0, 0, 0, tiles * TILE_OUTPUTS - rows))
    return _wrapped(words, 32).to(torch.int32).view(tiles, TILE_OUTPUTS, chunks, -1).permute(0, 2, 3, 1)


def _bits(values: torch.Tensor) -> torch.Tensor:
    return values.view(torch.int16).to(torch.int64) & 0xFFFF


def _wrapped(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Unsigned numbers as signed ones of the same bits."""
    return torch.where(values >= 1 << (bits - 1), values - (1 << bits), values)
