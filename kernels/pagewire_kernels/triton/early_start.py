# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: N803
"""Kernels that start before the kernel before them has ended (programmatic dependent launch, Hopper and later).

What such a kernel does before it waits may only read what no kernel of the step writes, which is the weights. Every
program waits, those without work too: a kernel that ends has then seen the end of all kernels before it, so that the
one after it may rely on them all.
"""

import triton
import triton.language as tl

from pagewire_kernels.triton.launch import on_hopper


def early_start() -> dict[str, bool]:
    """Launch arguments of a kernel whose parameter PDL says whether it starts early."""
    return {"PDL": True, "launch_pdl": True} if on_hopper() else {"PDL": False}


@triton.jit
def let_next_start(PDL: tl.constexpr):
    """From here on the next kernel may start, as far as it does not wait."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_previous(PDL: tl.constexpr):
    """Behind this everything that earlier kernels wrote is there."""
    if PDL:
        tl.extra.cuda.gdc_wait()
