"""GGUF blocks that stay quantised in memory: their codes, scales and zero points or offsets.

    Q4_0  (code - 8) * d             groups of 32     Q4_1  code * d + m                  groups of 32
    Q8_0  (code - 128) * d           groups of 32     Q4_K  code * (d * s) - dmin * m     groups of 32, in blocks of 256
    Q6_K  (code - 32) * (d * s)      groups of 16, in blocks of 256; 6 bits, held as 8

All in float32, as ggml and the gguf package compute them; products of a block's scale and its groups' are exact.
Source: github.com/ggml-org/ggml/blob/master/src/ggml-common.h
"""

from collections.abc import Callable
from dataclasses import dataclass

import gguf
import numpy as np
import numpy.typing as npt
import torch
from pagewire_kernels import QuantizedWeight


@dataclass(frozen=True, slots=True)
class BlockForm:
    """What a kernel set needs to know of a type before weights of it are read."""

    bits: int
    group_size: int
    has_offsets: bool


FORMS = {
    "Q4_0": BlockForm(4, 32, False),
    "Q4_1": BlockForm(4, 32, True),
    "Q8_0": BlockForm(8, 32, False),
    "Q4_K": BlockForm(4, 32, True),
    "Q6_K": BlockForm(8, 16, False),
}


def unpack_blocks(raw: npt.NDArray[np.uint8], kind: str) -> QuantizedWeight:
    """raw uint8 [out, bytes of a row] of a type in ``FORMS`` -> the weight."""
    num_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    blocks = torch.from_numpy(raw.copy()).view(len(raw), -1, num_bytes)
    codes, scales, offsets = _UNPACK[kind](blocks)
    zero = {"Q4_0": 8, "Q8_0": 128, "Q6_K": 32}.get(kind)
    scales = scales.flatten(1)
    return QuantizedWeight(
        codes=codes.flatten(1),
        scales=scales,
        zeros=None if zero is None else torch.full(scales.shape, zero, dtype=torch.uint8),
        offsets=None if offsets is None else offsets.flatten(1),
        group_size=FORMS[kind].group_size,
        bits=FORMS[kind].bits,
    )


_Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
"""Codes uint8 [out, blocks, elements], scales and offsets float32 [out, blocks, groups]."""


def _halves(packed: torch.Tensor) -> torch.Tensor:
    """[..., n] bytes -> [..., 2n]: low nibbles of all, then high ones."""
    return torch.cat((packed & 15, packed >> 4), dim=-1)


def _float16(raw: torch.Tensor) -> torch.Tensor:
    """[..., 2] bytes -> float32 [..., 1]."""
    return raw.contiguous().view(torch.float16).float()


def _q4_0(blocks: torch.Tensor) -> _Parts:
    return _halves(blocks[..., 2:]), _float16(blocks[..., :2]), None


def _q4_1(blocks: torch.Tensor) -> _Parts:
    return _halves(blocks[..., 4:]), _float16(blocks[..., :2]), _float16(blocks[..., 2:4])


def _q8_0(blocks: torch.Tensor) -> _Parts:
    return blocks[..., 2:] ^ 0x80, _float16(blocks[..., :2]), None


def _q4_k(blocks: torch.Tensor) -> _Parts:
    """Twelve bytes hold eight pairs of 6 bits: a scale and a minimum for each group."""
    low, middle, rest = blocks[..., 4:16].split(4, dim=-1)
    scales = torch.cat((low & 0x3F, (rest & 0x0F) | ((low >> 2) & 0x30)), dim=-1).float()
    minima = torch.cat((middle & 0x3F, (rest >> 4) | ((middle >> 2) & 0x30)), dim=-1).float()
    codes = _halves(blocks[..., 16:].unflatten(-1, (4, 32))).flatten(-2)
    return codes, _float16(blocks[..., :2]) * scales, -(_float16(blocks[..., 2:4]) * minima)


def _q6_k(blocks: torch.Tensor) -> _Parts:
    """Low four bits, high two bits, sixteen signed scales, the block's scale."""
    low = _halves(blocks[..., :128].unflatten(-1, (2, 64)))
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    high = (blocks[..., 128:192].unflatten(-1, (2, 1, 32)) >> shifts) & 3
    codes = low.flatten(-2) | high.flatten(-3) << 4
    scales = blocks[..., 192:208].contiguous().view(torch.int8).float()
    return codes, _float16(blocks[..., 208:]) * scales, None


_UNPACK: dict[str, Callable[[torch.Tensor], _Parts]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q6_K": _q6_k,
}
