"""Products with plain weights that no kernel of ours takes: NVIDIA's two libraries, each where it is faster.

cuBLAS and cuBLASLt have the same kernels and choose differently among them. For some tens of rows of a large weight
cuBLASLt chooses better, everywhere else cuBLAS does (measured on an H200, ADR 49).
"""

import torch
import torch.nn.functional as F

from pagewire_kernels.triton.launch import on_hopper

_FIRST_ROWS, _LAST_ROWS = 33, 112
_MIN_INPUTS, _MAX_OUTPUTS = 4096, 65536


def dense_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``x @ weight.T + bias``: x [T, in], weight [out, in] -> [T, out]."""
    if not _suits_lt(x, weight):
        return F.linear(x, weight, bias)
    prefer = torch.backends.cuda.preferred_blas_library
    usual = prefer()
    prefer("cublaslt")
    try:
        return F.linear(x, weight, bias)
    finally:
        prefer(usual)


def _suits_lt(x: torch.Tensor, weight: torch.Tensor) -> bool:
    num_outputs, num_inputs = weight.shape
    return (
        _FIRST_ROWS <= x.shape[0] <= _LAST_ROWS
        and num_inputs >= _MIN_INPUTS
        and num_outputs <= _MAX_OUTPUTS
        and x.dtype in (torch.bfloat16, torch.float16)
        and on_hopper()
    )
