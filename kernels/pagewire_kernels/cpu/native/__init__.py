"""The CPU set's hot loops in C, compiled on the machine they run on."""

from pagewire_kernels.cpu.native.build import BuildError
from pagewire_kernels.cpu.native.kernel_set import NativeCpuKernels

__all__ = ["BuildError", "NativeCpuKernels"]
