"""The CPU kernel set: the same operations from few, large torch calls."""

from pagewire_kernels.cpu.kernel_set import CpuKernels

__all__ = ["CpuKernels"]
