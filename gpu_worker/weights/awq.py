"""AWQ checkpoints (arXiv 2306.00978) in the "gemm" packing of AutoAWQ and GPTQModel: 4 bits.

    qweight int32 [in, out / 8]         codes, packed along the outputs
    qzeros  int32 [groups, out / 8]     zero points, packed alike; without them a zero point is 8
    scales  float [groups, out]

The nibbles of a word, from its low end, are outputs 0, 2, 4, 6, 1, 3, 5, 7 of eight.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pagewire_kernels import QuantizedWeight

from gpu_worker.weights.bit_packing import unpack
from gpu_worker.weights.quantization_fields import choice, flag, group_size_of, integer
from gpu_worker.weights.stored_module import StoredModule

BITS = (4,)
GROUP_SIZES = (-1, 32, 64, 128)
_NIBBLE_OF_OUTPUT = (0, 4, 1, 5, 2, 6, 3, 7)


@dataclass(frozen=True, slots=True, kw_only=True)
class AwqFormat:
    """What the configuration says of all modules."""

    bits: int
    group_size: int
    has_zeros: bool
    method: str = "awq"
    markers: tuple[str, ...] = ("qweight",)
    endings: tuple[str, ...] = ("qweight", "qzeros", "scales")

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> "AwqFormat":
        """AutoAWQ's own ``quant_config.json`` calls bits and group size ``w_bit`` and ``q_group_size``."""
        bits = "w_bit" if "w_bit" in fields else "bits"
        size = "q_group_size" if "q_group_size" in fields else "group_size"
        for name in ("version", "format", "checkpoint_format"):
            choice(fields, name, ("gemm",), "gemm")
        return cls(
            bits=integer(fields, bits, BITS),
            group_size=integer(fields, size, GROUP_SIZES),
            has_zeros=flag(fields, "zero_point", True),
        )

    @property
    def label(self) -> str:
        return f"awq {self.bits}-bit, group {self.group_size}"

    def unpack(self, module: StoredModule) -> QuantizedWeight:
        """Raises ModelLoadError naming the tensor that does not fit."""
        num_outputs, num_inputs = module.num_outputs, module.num_inputs
        group_size = group_size_of(self.group_size, num_inputs)
        if num_outputs % 8 or num_inputs % group_size:
            raise module.error(
                "qweight",
                f"of {num_inputs} inputs and {num_outputs} outputs: AWQ needs inputs that groups of "
                f"{group_size} divide and outputs that 8 divides",
            )
        groups = num_inputs // group_size
        qweight = module.take("qweight", (torch.int32,), (num_inputs, num_outputs // 8))
        scales = module.take_scales("scales", (groups, num_outputs))
        zeros = torch.full((num_outputs, groups), 8, dtype=torch.uint8, device=qweight.device)
        if self.has_zeros or "qzeros" in module.tensors:
            zeros = _in_order(module.take("qzeros", (torch.int32,), (groups, num_outputs // 8)))
        return QuantizedWeight(
            codes=_in_order(qweight), scales=scales.t().contiguous(), zeros=zeros, group_size=group_size, bits=4
        )


def _in_order(words: torch.Tensor) -> torch.Tensor:
    """int32 [n, out / 8] -> uint8 [out, n]."""
    nibbles = unpack(words, 4, words.shape[1] * 8).view(len(words), -1, 8)
    return nibbles[:, :, list(_NIBBLE_OF_OUTPUT)].flatten(1).t().contiguous()
