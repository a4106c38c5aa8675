"""Quantised products in C: the weight stays 4 or 8 bits in memory, and is repacked once for vectors of 16 outputs.

``quantized.inc`` describes the layout. Codes of 2 and 3 bits are held in 4. Where all zero points are equal, as in
symmetric checkpoints, they are part of the table of codes and cost nothing.
"""

import ctypes
from collections.abc import Callable

import torch

from pagewire_kernels.quantized import QuantizedWeight

_OUTPUTS, _WIDTH = 32, 16
"""Of a block and of a vector, as in quantized.inc."""
_KINDS = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2}
_NOTHING, _ZEROS, _OFFSETS = 0, 1, 2
_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
ARGUMENTS = (_POINTER, _LONG, *(_POINTER,) * 5, *(_LONG,) * 4, *(_INT,) * 3, _POINTER, _POINTER)


MIN_INPUTS = 8
"""A vector's inputs, which are of one group."""


def suits(group_size: int, dtype: torch.dtype) -> bool:
    """Whether the C function takes weights of such groups, if ``MIN_INPUTS`` divides their inputs too."""
    return dtype == torch.bfloat16 and group_size % MIN_INPUTS == 0


class NativeQuantizedProduct:
    """A weight that ``suits``, without float8 codes."""

    def __init__(self, weight: QuantizedWeight, function: Callable[..., None]) -> None:
        self._function = function
        self._num_outputs, self._num_inputs = weight.shape
        self._group_size, self._num_groups = weight.group_size, weight.num_groups
        self._perm = weight.perm
        self._bits = 4 if weight.bits <= 4 else 8
        self._codes = _pack_codes(weight.codes, self._bits)
        zeros = weight.zeros
        middle = 0 if zeros is None else int(zeros.flatten()[0])
        if zeros is not None and bool((zeros == middle).all()):
            zeros = None
        else:
            middle = 0
        self._table = _table(self._bits, middle)
        seconds = weight.offsets if zeros is None else zeros
        self._second = _NOTHING if seconds is None else _OFFSETS if zeros is None else _ZEROS
        dtype = _narrowest(weight.scales, weight.offsets)
        self._kind = _KINDS[dtype]
        self._scales = _pack_constants(weight.scales.to(dtype))
        self._seconds = None if seconds is None else _pack_constants(seconds.to(dtype))
        parts = (self._codes, self._scales, self._seconds, self._perm)
        self.num_bytes = sum(part.nbytes for part in parts if part is not None)

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        x = x.contiguous() if self._perm is None else x.index_select(1, self._perm)
        rows = x.shape[0]
        out = x.new_empty(rows, self._num_outputs)
        sums = torch.empty(rows * self._num_groups if self._second != _NOTHING else 0, dtype=torch.float32)
        wide_bias = None if bias is None else bias.float()
        self._function(
            *(x.data_ptr(), rows, self._codes.data_ptr(), self._scales.data_ptr()),
            *(None if self._seconds is None else self._seconds.data_ptr(), self._table.data_ptr()),
            *(None if wide_bias is None else wide_bias.data_ptr(), self._num_outputs, self._num_inputs),
            *(self._group_size, self._num_groups, self._bits, self._kind, self._second),
            *(sums.data_ptr(), out.data_ptr()),
        )
        return out


def _pack_codes(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """uint8 [out, in] -> int32 [blocks, in / per vector, vectors, 16]."""
    per_vector = 32 // bits
    packed = []
    for rows in codes.split(_OUTPUTS * 64):  # a few at a time: words are eight times as large while they are made
        whole = torch.nn.functional.pad(rows, (0, 0, 0, -len(rows) % _OUTPUTS))
        pairs = whole.view(-1, _OUTPUTS // _WIDTH, _WIDTH, codes.shape[1] // per_vector, per_vector // 2, 2).int()
        shifts = torch.arange(0, 16, bits)[:, None] + torch.tensor([0, 16])
        words = (pairs << shifts.int()).sum((-1, -2), dtype=torch.int32)
        packed.append(words.permute(0, 3, 1, 2).contiguous())
    return torch.cat(packed)


def _pack_constants(values: torch.Tensor) -> torch.Tensor:
    """[out, groups] -> [blocks, groups, vectors, 16]."""
    whole = torch.nn.functional.pad(values, (0, 0, 0, -len(values) % _OUTPUTS))
    return whole.view(-1, _OUTPUTS // _WIDTH, _WIDTH, values.shape[1]).permute(0, 3, 1, 2).contiguous()


def _table(bits: int, zero: int) -> torch.Tensor:
    """bfloat16 [2, 32]: what a code's low half, less the zero point, and its high half add; entries 16 to 31 repeat."""
    low = torch.arange(16) - zero
    high = torch.arange(16) * 16 if bits == 8 else torch.zeros(16)
    return torch.stack((low, high)).repeat(1, 2).to(torch.bfloat16)


def _narrowest(scales: torch.Tensor, offsets: torch.Tensor | None) -> torch.dtype:
    """The dtype that holds the constants exactly: GGUF's are float16 in the file."""
    if scales.dtype != torch.float32:
        return scales.dtype
    parts = [scales] if offsets is None else [scales, offsets]
    exact = all(torch.equal(part.half().float(), part) for part in parts)
    return torch.float16 if exact else torch.float32
