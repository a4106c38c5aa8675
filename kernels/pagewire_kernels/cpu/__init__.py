"""The CPU kernel set: few, large torch calls, and C for the hot loops where there is a compiler."""

from pagewire_kernels.cpu.kernel_set import CpuKernels
from pagewire_kernels.cpu.native import BuildError, NativeCpuKernels

__all__ = ["CpuKernels", "NativeCpuKernels", "load_cpu_kernels"]


def load_cpu_kernels() -> CpuKernels:
    """The faster set that this machine can build; its ``name`` says which it is."""
    try:
        return NativeCpuKernels()
    except BuildError:
        return CpuKernels()
