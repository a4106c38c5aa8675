"""How much memory CUDA graphs will take, told before the page pool is there, which gets what they leave.

A few of the graphs are captured for a trial, over a pool of one page that nothing names: the largest, which brings the
memory that all share, and some spread over the rest. What a further one takes is their mean without the extremes: free
memory is the whole device's, and another process may take or give back some meanwhile.
"""

import statistics
from collections.abc import Sequence

import torch
from pagewire_kernels import KernelSet

from gpu_worker.model_runner import ModelRunner
from gpu_worker.models.llama import LlamaModel
from gpu_worker.page_pool import PageShape, allocate_pages
from gpu_worker.request_rows import RowLimits
from gpu_worker.step_shape import StepShape

_NUM_SAMPLES = 8
_MARGIN = 1.1
_ROUNDING_BYTES = 1 << 20
"""The driver takes memory in pieces of 2 MiB: a graph shows up to one too little."""
_MOST_OUTSIDE_TORCH = 512 << 20
"""Of the largest graph's memory: what the driver and kernels' code take is far less."""


def expected_graph_bytes(model: LlamaModel, kernels: KernelSet, page: PageShape, limits: RowLimits) -> int:
    """Bytes that the graphs of every shape will hold, with some to spare."""
    device = model.device
    runner = ModelRunner(model, kernels, allocate_pages(1, page, device), limits, device)
    largest, *others = runner.round_shapes().all()
    of_torch = torch.cuda.memory_reserved(device)
    shared = _captured_bytes(runner, [largest])
    of_torch = torch.cuda.memory_reserved(device) - of_torch
    samples = others[:: max(1, len(others) // _NUM_SAMPLES)]
    taken = sorted(_captured_bytes(runner, [shape]) for shape in samples)
    each = statistics.fmean(taken[1:-1]) if len(taken) > 2 else max(taken, default=0)
    del runner
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    expected = min(shared, of_torch + _MOST_OUTSIDE_TORCH) + (each + _ROUNDING_BYTES) * len(others)
    return int(expected * _MARGIN)


def _captured_bytes(runner: ModelRunner, shapes: Sequence[StepShape]) -> int:
    before = runner.graphs.num_bytes
    return runner.capture_graphs(shapes).num_bytes - before
