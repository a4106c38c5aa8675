"""Compiles every Triton kernel ahead of time, on a machine with or without a GPU: ``python -m pagewire_kernels.aot``.

Shows that each kernel lowers to machine code for an NVIDIA Hopper (sm_90) and an AMD MI300 (gfx942), and that its
shared memory fits there. Must run without TRITON_INTERPRET.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pagewire_kernels.aot_builds import Build, builds


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU to compile for and the shared memory one program may use on it."""

    name: str
    gpu: GPUTarget
    max_shared_bytes: int


TARGETS = (
    Target("sm_90", GPUTarget("cuda", 90, 32), 227 * 1024),
    Target("gfx942", GPUTarget("hip", "gfx942", 64), 64 * 1024),
)


def compile_build(build: Build, target: Target) -> int:
    """Compiles one entry for one target and returns its shared memory in bytes. Raises whatever Triton raises."""
    names: list[str] = build.kernel.arg_names
    signature = {name: build.types.get(name, "constexpr") for name in names}
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(names)
        if signature[name].startswith("*") and name not in (build.kernel.do_not_specialize or ())
    }
    source = ASTSource(fn=build.kernel, signature=signature, constexprs=build.constants, attrs=aligned)
    compiled = triton.compile(source, target=target.gpu, options={"num_warps": build.num_warps})
    return int(compiled.metadata.shared)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compiles the table for the named targets (default: all), a line each; 1 if one does not fit its target."""
    wanted = list(sys.argv[1:] if arguments is None else arguments)
    failures = 0
    for target in TARGETS:
        if wanted and target.name not in wanted:
            continue
        for build in builds(hip=target.gpu.backend == "hip"):
            shared_bytes = compile_build(build, target)
            fits = shared_bytes <= target.max_shared_bytes
            failures += not fits
            print(f"{target.name} {build.name}: {shared_bytes} bytes shared{'' if fits else ', TOO MUCH'}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
