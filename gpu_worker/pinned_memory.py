"""Pinned host memory: what steps take turns in, so that a copy to the device needs no allocation and no wait, and what
a few columns travel in together."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_ALIGNMENT = 16
TORCH_DTYPES: Mapping[Any, torch.dtype] = {np.int32: torch.int32, np.int64: torch.int64, np.float32: torch.float32}
"""Of columns, by numpy's type."""


class PinnedRing:
    """A few buffers of one size; each is written anew once the copy last made from it is done."""

    def __init__(self, num_bytes: int, depth: int = 4) -> None:
        self._buffers = [torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True) for _ in range(depth)]
        self._arrays: list[npt.NDArray[np.uint8]] = [buffer.numpy() for buffer in self._buffers]
        self._events = [torch.cuda.Event() for _ in range(depth)]
        self._next = 0

    def begin(self) -> npt.NDArray[np.uint8]:
        """The next buffer, to be written; waits only if as many copies as there are buffers are still queued."""
        self._events[self._next].synchronize()
        return self._arrays[self._next]

    def copy_to(self, target: torch.Tensor) -> None:
        """Queue a copy of the buffer's first bytes to all of ``target``."""
        target.copy_(self._buffers[self._next][: len(target)], non_blocking=True)
        self._events[self._next].record()
        self._next = (self._next + 1) % len(self._buffers)


def upload_together(columns: Sequence[npt.NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """Columns of int32, int64 or float32 on the device, in one copy that nobody waits for."""
    if device.type == "cpu":
        return [torch.from_numpy(column) for column in columns]
    ends = list(accumulate(-(-column.nbytes // _ALIGNMENT) * _ALIGNMENT for column in columns))
    on_host = torch.empty(ends[-1], dtype=torch.uint8, pin_memory=True)
    memory, starts = on_host.numpy(), [0, *ends[:-1]]
    for start, column in zip(starts, columns, strict=True):
        memory[start : start + column.nbytes] = np.ascontiguousarray(column).view(np.uint8).ravel()
    together = on_host.to(device, non_blocking=True)
    return [
        together[start : start + column.nbytes].view(TORCH_DTYPES[column.dtype.type]).view(column.shape)
        for start, column in zip(starts, columns, strict=True)
    ]
