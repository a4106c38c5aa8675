"""CUDA graphs of whole steps: from reading the rows to the tokens fed back, one graph a shape.

Launching a step operation by operation takes the host milliseconds; a graph takes it microseconds. A graph replays the
very calls it was captured from on the same addresses, so it computes what they would. All graphs share one memory pool:
they run one after the other, and what a step leaves behind is copied out before the next one begins.

All are captured before the worker says hello, over inputs that are all padding: they name no page and no row.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from gpu_worker.sampler import Sampled
from gpu_worker.step_shape import StepShape


@dataclass(frozen=True, slots=True)
class StepGraph:
    """One captured step."""

    sampled: Sampled
    """What the step gives, overwritten by the next replay of any graph."""
    _graph: torch.cuda.CUDAGraph

    def replay(self) -> Sampled:
        self._graph.replay()
        return self.sampled


class _Memory:
    """Names the memory of a tensor that was allocated while capturing, without keeping it from later graphs.

    Kept alive, every graph's logits would need memory of their own.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.__cuda_array_interface__ = {
            "shape": (tensor.numel() * tensor.element_size(),),
            "typestr": "|u1",
            "data": (tensor.data_ptr(), False),
            "version": 3,
        }


@lru_cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """Always the same: every stream that cuBLAS has worked on keeps a workspace."""
    return torch.cuda.Stream(device)


def _without_owning(sampled: Sampled) -> Sampled:
    logits = sampled.logits
    if not logits.numel():
        return sampled
    memory = torch.as_tensor(_Memory(logits), device=logits.device)
    return Sampled(sampled.packed, memory.view(logits.dtype).view(logits.shape))


class StepGraphs:
    """The captured steps by shape."""

    def __init__(self) -> None:
        self._graphs: dict[StepShape, StepGraph] = {}
        self._pool: Any = None
        self.num_bytes = 0
        """Device memory the graphs hold, kernels' private parts included."""

    def __len__(self) -> int:
        return len(self._graphs)

    def capture(
        self,
        shapes: Iterable[StepShape],
        prepare: Callable[[StepShape], Callable[[], Sampled]],
        device: torch.device,
    ) -> None:
        """Capture these shapes too. ``prepare`` fills the inputs of a shape with padding and gives what to capture."""
        free_before, _ = torch.cuda.mem_get_info(device)
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        stream = _capture_stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for shape in shapes:
                run = prepare(shape)
                run()  # compiles kernels and makes workspaces, which cannot be done while capturing
                stream.synchronize()
                graph = torch.cuda.CUDAGraph()
                # Not "global": a thread of NCCL's looks at its events meanwhile.
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    sampled = run()
                finally:
                    graph.capture_end()
                graph.replay()  # the first one uploads it
                self._graphs[shape] = StepGraph(_without_owning(sampled), graph)
        torch.cuda.current_stream(device).wait_stream(stream)
        torch.cuda.synchronize(device)
        self.num_bytes += max(0, free_before - torch.cuda.mem_get_info(device)[0])

    def find(self, shape: StepShape) -> StepGraph | None:
        """The graph of a shape, if there is one."""
        return self._graphs.get(shape)
