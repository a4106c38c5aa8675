"""Pagewire's kernels: one interface, a Triton set for GPUs, a CPU set, and plain torch as the definition of correct."""

from pagewire_kernels.interface import (
    MAX_SHARED_PARTS,
    SHARED_TILE_ROWS,
    AttentionBatch,
    KeepsFloats,
    KernelSet,
    QkNorm,
    QuantizedProduct,
    SamplingBatch,
    SharedPrefixes,
)
from pagewire_kernels.quantized import QuantizedWeight

__all__ = [
    "MAX_SHARED_PARTS",
    "SHARED_TILE_ROWS",
    "AttentionBatch",
    "KeepsFloats",
    "KernelSet",
    "QkNorm",
    "QuantizedProduct",
    "QuantizedWeight",
    "SamplingBatch",
    "SharedPrefixes",
    "load_kernels",
]


def load_kernels(name: str) -> KernelSet:
    """The kernel set called ``name``: ``triton``, ``cpu`` or ``reference``. Raises ValueError for any other name."""
    if name == "triton":
        from pagewire_kernels.triton import TritonKernels

        return TritonKernels()
    if name == "cpu":
        from pagewire_kernels.cpu import load_cpu_kernels

        return load_cpu_kernels()
    if name == "reference":
        from pagewire_kernels.reference import ReferenceKernels

        return ReferenceKernels()
    raise ValueError(f"no kernel set {name!r}; known: triton, cpu, reference")
