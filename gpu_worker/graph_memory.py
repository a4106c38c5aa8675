"""How much memory CUDA graphs will take, told before the page pool is there, which gets what they leave.

A few of the graphs are captured for a trial, over a pool that no page of is named: the largest, which brings the memory
that all share, and some spread over the rest, whose mean is what each further one takes.
"""

import torch
from pagewire_kernels import KernelSet

from gpu_worker.model_runner import ModelRunner
from gpu_worker.models.llama import LlamaModel
from gpu_worker.page_pool import PageShape, allocate_pages
from gpu_worker.request_rows import RowLimits

_NUM_SAMPLES = 8
_MARGIN = 1.1


def expected_graph_bytes(model: LlamaModel, kernels: KernelSet, page: PageShape, limits: RowLimits) -> int:
    """Bytes that the graphs of every shape will hold, with a tenth to spare."""
    device = model.device
    runner = ModelRunner(model, kernels, allocate_pages(1, page, device), limits, device)
    largest, *others = runner.round_shapes().all()
    samples = others[:: max(1, len(others) // _NUM_SAMPLES)]
    shared = runner.capture_graphs([largest]).num_bytes
    graphs = runner.capture_graphs(samples)
    each = (graphs.num_bytes - shared) / max(1, len(samples))
    del runner, graphs
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return int((shared + each * len(others)) * _MARGIN)
