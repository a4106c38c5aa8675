"""Pinned host memory that steps take turns in, so that a copy to the device needs no allocation and no wait."""

import numpy as np
import numpy.typing as npt
import torch


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
