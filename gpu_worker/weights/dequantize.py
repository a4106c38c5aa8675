"""Quantised GGUF blocks to floats.

The common types of 32 elements a block are done here, a whole tensor at once; the others by the gguf package, which
goes row by row. Both give the same floats, bit for bit.
"""

import gguf
import numpy as np
import numpy.typing as npt
import torch

_BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}


def dequantize(raw: npt.NDArray[np.uint8], kind: gguf.GGMLQuantizationType) -> torch.Tensor:
    """raw uint8 [rows..., bytes of a row] -> float32 [rows..., columns]."""
    if kind.name not in _BLOCK_BYTES:
        return torch.from_numpy(gguf.quants.dequantize(raw, kind))
    blocks = torch.from_numpy(raw.copy()).view(*raw.shape[:-1], -1, _BLOCK_BYTES[kind.name])
    scale = blocks[..., :2].contiguous().view(torch.float16).float()
    if kind.name == "Q8_0":
        values = blocks[..., 2:].view(torch.int8).float().mul_(scale)
    elif kind.name == "Q4_0":
        values = _nibbles(blocks[..., 2:]).sub_(8).mul_(scale)
    else:
        offset = blocks[..., 2:4].contiguous().view(torch.float16).float()
        values = _nibbles(blocks[..., 4:]).mul_(scale).add_(offset)
    return values.flatten(-2)


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [..., 16] -> float32 [..., 32]: low halves of all bytes, then high halves."""
    return torch.cat((packed & 15, packed >> 4), dim=-1).float()
