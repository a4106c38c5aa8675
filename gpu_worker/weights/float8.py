"""FP8 checkpoints (e4m3, arXiv 2209.05433): weights in bytes, inputs quantised when they come (W8A8) or left as they
are (weights only).

    weight        float8_e4m3fn [out, in]
    the scale     float: one; or [out] or [out, 1]; or one a block, [out / block, in / block], rounded up
    input scale   float, optional: fixed for all inputs

Names of the scale: ``weight_scale`` (fbgemm, compressed-tensors and others) or ``weight_scale_inv`` (blocks, as
DeepSeek writes them; it multiplies all the same). DeepSeek's kind is multiplied in float32, the others in their type.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pagewire_kernels import QuantizedWeight

from gpu_worker.weights.quantization_fields import choice, unsupported
from gpu_worker.weights.stored_module import StoredModule

_SCALE_NAMES = ("weight_scale", "weight_scale_inv")
_INPUT_SCALE_NAMES = ("input_scale", "activation_scale")


@dataclass(frozen=True, slots=True, kw_only=True)
class Float8Format:
    """What the configuration says of all modules."""

    method: str
    block: tuple[int, int] | None
    """Outputs and inputs of a block; none: a scale for all or for each output."""
    is_static: bool
    """The scale of the inputs is fixed, and so must be there."""
    rounds_inputs: bool = True
    markers: tuple[str, ...] = _SCALE_NAMES
    endings: tuple[str, ...] = ("weight", *_SCALE_NAMES, *_INPUT_SCALE_NAMES, "input_scale_ub")

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> "Float8Format":
        """quant_method ``fp8`` or ``fbgemm_fp8``."""
        choice(fields, "fmt", ("e4m3", "float8_e4m3fn"), "e4m3")
        choice(fields, "scale_fmt", ("float",), "float")
        scheme = choice(fields, "activation_scheme", ("dynamic", "static"), "dynamic")
        block = parse_block(fields.get("weight_block_size"), "weight_block_size")
        return cls(method="fp8", block=block, is_static=scheme == "static")

    @property
    def label(self) -> str:
        return "fp8" if self.block is None else f"fp8, block {self.block[0]}x{self.block[1]}"

    def unpack(self, module: StoredModule) -> QuantizedWeight:
        """Raises ModelLoadError naming the tensor that does not fit."""
        shape = (module.num_outputs, module.num_inputs)
        codes = module.take("weight", (torch.float8_e4m3fn,), shape)
        if bool(codes.view(torch.uint8).bitwise_and(0x7F).eq(0x7F).any()):
            raise module.error("weight", "holds NaN")
        stored = [name for name in _SCALE_NAMES if name in module.tensors] or [_SCALE_NAMES[0]]
        if len(stored) > 1:
            raise module.error(stored[1], f"is beside {stored[0]!r}: which one counts is unclear")
        ending = stored[0]
        scales = module.take_scales(ending)
        scales = scales.float() if ending == "weight_scale_inv" else scales
        expanded, group_size = self._expanded(module, ending, scales)
        return QuantizedWeight(
            codes=codes,
            scales=expanded,
            group_size=group_size,
            bits=8,
            rounds_inputs=self.rounds_inputs,
            input_scale=self._input_scale(module) if self.rounds_inputs else None,
        )

    def _expanded(self, module: StoredModule, ending: str, scales: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Scales [out, groups] and the group size."""
        num_outputs, num_inputs = module.num_outputs, module.num_inputs
        if self.block is None:
            if scales.numel() == 1:
                return scales.reshape(1, 1).expand(num_outputs, 1).contiguous(), num_inputs
            if tuple(scales.shape) in ((num_outputs,), (num_outputs, 1)):
                return scales.reshape(num_outputs, 1).contiguous(), num_inputs
            raise module.error(ending, f"has shape {list(scales.shape)}; [1] or [{num_outputs}, 1] is needed")
        rows, columns = self.block
        blocks = [-(-num_outputs // rows), -(-num_inputs // columns)]
        if list(scales.shape) != blocks:
            raise module.error(ending, f"has shape {list(scales.shape)}; {blocks} is needed")
        return scales.repeat_interleave(min(rows, num_outputs), dim=0)[:num_outputs].contiguous(), columns

    def _input_scale(self, module: StoredModule) -> float | None:
        stored = [name for name in _INPUT_SCALE_NAMES if name in module.tensors]
        if not stored and not self.is_static:
            return None
        ending = (stored or _INPUT_SCALE_NAMES)[0]
        scale = module.take_scales(ending)
        if scale.numel() != 1 or float(scale) <= 0:
            raise module.error(ending, f"has shape {list(scale.shape)}; one positive number is needed")
        return float(scale)


def parse_block(value: Any, name: str) -> tuple[int, int] | None:
    """A pair of sizes or nothing."""
    if value is None:
        return None
    if not isinstance(value, list | tuple) or len(value) != 2 or not all(isinstance(size, int) for size in value):
        raise unsupported(name, value, ("two integers",))
    rows, columns = value
    if rows < 1 or columns < 1:
        raise unsupported(name, value, ("two positive integers",))
    return int(rows), int(columns)
