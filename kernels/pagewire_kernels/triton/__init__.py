"""The Triton kernel set: one file an operation, each with its host function; ``kernel_set.py`` ties them together."""

from pagewire_kernels.triton.kernel_set import TritonKernels

__all__ = ["TritonKernels"]
