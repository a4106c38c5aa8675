"""What the ranks of a worker compute together: collectives of tensors, never of objects.

Every rank runs the same steps and so calls the same collectives in the same order. A sum is computed once and handed to
all, what is joined is copied: afterwards all ranks hold the same bits, which is why each can sample for itself.
"""

from typing import Protocol

import torch
import torch.distributed as dist
import torch.nn.functional as F

# Its name up to torch 2.12 is a deprecated one from 2.13 on.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class RankGroup(Protocol):
    """One rank's view of all ranks of its worker."""

    rank: int
    size: int

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' parts, which are of one shape; may overwrite the part."""
        ...

    def join(self, part: torch.Tensor, width: int) -> torch.Tensor:
        """Columns of all ranks side by side: part [R, at most width] -> [R, size * width], short parts padded."""
        ...

    def least(self, number: int) -> int:
        """The least of all ranks' numbers."""
        ...


class Alone:
    """The one rank of a worker that is not divided."""

    rank = 0
    size = 1

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        return part

    def join(self, part: torch.Tensor, width: int) -> torch.Tensor:
        return part

    def least(self, number: int) -> int:
        return number


ALONE = Alone()


class ProcessGroup:
    """Ranks that are processes of one machine: NCCL between GPUs, gloo between CPUs."""

    def __init__(self, rank: int, size: int, device: torch.device, meeting_fd: int) -> None:
        """Returns when all ranks are there. ``meeting_fd``: an empty file in memory that all ranks have inherited."""
        self.rank = rank
        self.size = size
        self._device = device
        store = dist.FileStore(f"/proc/self/fd/{meeting_fd}", size)  # type: ignore[attr-defined]
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=size, device_id=device if device.type == "cuda" else None
        )
        self.least(0)  # connects all to all

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(part)
        return part

    def join(self, part: torch.Tensor, width: int) -> torch.Tensor:
        rows = len(part)
        padded = F.pad(part, (0, width - part.shape[1])).contiguous()
        parts = padded.new_empty(self.size * rows, width)
        _gather(parts, padded)
        return parts.view(self.size, rows, width).transpose(0, 1).reshape(rows, self.size * width)

    def least(self, number: int) -> int:
        numbers = torch.tensor([number], dtype=torch.int64, device=self._device)
        dist.all_reduce(numbers, op=dist.ReduceOp.MIN)
        return int(numbers)

    def close(self) -> None:
        """Call when the other ranks are gone. NCCL would wait for them; it ends with the process."""
        if self._device.type == "cpu":
            dist.destroy_process_group()
