"""compressed-tensors checkpoints, as llm-compressor writes them: pack-quantized integers or FP8.

    weight_packed      int32 [out, in x bits / 32]      codes plus 2**(bits - 1), packed along the inputs
    weight_shape       int [2]                          out and in
    weight_scale       float [out, groups]
    weight_zero_point  int32 [out x bits / 32, groups]  if asymmetric; packed along the outputs, with the same offset
    weight_g_idx       int [in]                         group of each input, where columns were ordered by activation

The configuration has a scheme for each group of modules; which one a module follows shows in its tensors.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pagewire_kernels import QuantizedWeight

from gpu_worker.errors import ModelLoadError
from gpu_worker.weights.bit_packing import num_words, unpack
from gpu_worker.weights.float8 import Float8Format, parse_block, refuse_float8_cache
from gpu_worker.weights.grouping import grouped
from gpu_worker.weights.quantization_fields import SECTION, choice, unsupported
from gpu_worker.weights.stored_module import StoredModule

BITS = (2, 3, 4, 8)
FORMATS = ("pack-quantized", "float-quantized", "naive-quantized")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFormat:
    """Integers of ``bits`` (one entry a scheme), a scale a group or a row."""

    bits: tuple[int, ...]
    method: str = "compressed-tensors"
    markers: tuple[str, ...] = ("weight_packed",)
    endings: tuple[str, ...] = ("weight_packed", "weight_shape", "weight_scale", "weight_zero_point", "weight_g_idx")

    @property
    def label(self) -> str:
        return f"compressed-tensors {'/'.join(map(str, self.bits))}-bit"

    def unpack(self, module: StoredModule) -> QuantizedWeight:
        """Raises ModelLoadError naming the tensor that does not fit."""
        num_outputs, num_inputs = module.num_outputs, module.num_inputs
        shape = module.take("weight_shape", (torch.int64, torch.int32), (2,)).tolist()
        if shape != [num_outputs, num_inputs]:
            raise module.error("weight_shape", f"is {shape}; the config asks for {[num_outputs, num_inputs]}")
        bits = self._bits_of(module)
        scales = module.take_scales("weight_scale")
        scales = scales.reshape(-1, 1).expand(num_outputs, 1).contiguous() if scales.numel() == 1 else scales
        if scales.dim() != 2 or scales.shape[0] != num_outputs or num_inputs % scales.shape[1]:
            raise module.error(
                "weight_scale",
                f"has shape {list(scales.shape)}; [{num_outputs}, groups that divide {num_inputs}] is needed",
            )
        return grouped(
            module,
            codes=unpack(module.tensors["weight_packed"], bits, num_inputs),
            scales=scales,
            zeros=_zeros(module, bits, scales.shape[1]),
            group_size=num_inputs // scales.shape[1],
            bits=bits,
            group_index=module.tensors.get("weight_g_idx"),
            ending="weight_g_idx",
        )

    def _bits_of(self, module: StoredModule) -> int:
        packed = module.take("weight_packed", (torch.int32,))
        for bits in self.bits:
            if tuple(packed.shape) == (module.num_outputs, num_words(module.num_inputs, bits)):
                return bits
        wanted = [[module.num_outputs, num_words(module.num_inputs, bits)] for bits in self.bits]
        raise module.error(
            "weight_packed",
            f"has shape {list(packed.shape)}; {wanted} is needed for the num_bits {list(self.bits)} of the config",
        )


def _zeros(module: StoredModule, bits: int, num_groups: int) -> torch.Tensor:
    """uint8 [out, groups]."""
    num_outputs = module.num_outputs
    if "weight_zero_point" not in module.tensors:
        return torch.full((num_outputs, num_groups), 2 ** (bits - 1), dtype=torch.uint8)
    words = module.take("weight_zero_point", (torch.int32,), (num_words(num_outputs, bits), num_groups))
    return unpack(words.t(), bits, num_outputs).t().contiguous()


def parse_compressed_tensors(fields: Mapping[str, Any]) -> PackedFormat | Float8Format:
    """Raises ModelLoadError naming the field."""
    choice(fields, "quantization_status", ("compressed", "frozen"), "compressed")
    label = choice(fields, "format", FORMATS, "pack-quantized")
    refuse_float8_cache(fields)
    if (fields.get("sparsity_config") or {}).get("format", "dense") != "dense":
        raise ModelLoadError(f"config: {SECTION}.sparsity_config is not supported; supported: dense")
    groups = fields.get("config_groups")
    if not isinstance(groups, dict) or not groups or not all(isinstance(group, dict) for group in groups.values()):
        raise unsupported("config_groups", groups, ("an object of schemes",))
    if label == "pack-quantized":
        return PackedFormat(bits=tuple(sorted({_packed_bits(name, group) for name, group in groups.items()})))
    blocks = {_float8_block(name, group) for name, group in groups.items()}
    if len(blocks) != 1:
        raise unsupported("config_groups", sorted(map(str, blocks)), ("one block structure for all",))
    return Float8Format(method="compressed-tensors", block=blocks.pop())


def _packed_bits(name: str, group: Mapping[str, Any]) -> int:
    """A scheme of integer weights with unquantised inputs."""
    weights = _weights_of(name, group)
    if group.get("input_activations"):
        raise unsupported(f"config_groups.{name}.input_activations", group["input_activations"], ("null",))
    _expect(name, weights, "type", ("int",))
    _expect(name, weights, "strategy", ("group", "channel", "tensor"))
    bits = weights.get("num_bits")
    if not isinstance(bits, int) or bits not in BITS:
        raise unsupported(f"config_groups.{name}.weights.num_bits", bits, BITS)
    return bits


def _float8_block(name: str, group: Mapping[str, Any]) -> tuple[int, int] | None:
    """A scheme of FP8 weights, and what its scales cover."""
    weights = _weights_of(name, group)
    _expect(name, weights, "type", ("float",))
    _expect(name, weights, "num_bits", (8,))
    _expect(name, weights, "strategy", ("tensor", "channel", "block"))
    inputs = group.get("input_activations")
    if isinstance(inputs, dict):
        _expect(name, inputs, "type", ("float",))
        _expect(name, inputs, "num_bits", (8,))
    return parse_block(weights.get("block_structure"), f"config_groups.{name}.weights.block_structure")


def _weights_of(name: str, group: Mapping[str, Any]) -> Mapping[str, Any]:
    weights = group.get("weights")
    if not isinstance(weights, dict):
        raise unsupported(f"config_groups.{name}.weights", weights, ("an object",))
    return weights


def _expect(name: str, fields: Mapping[str, Any], field: str, allowed: tuple[Any, ...]) -> None:
    if fields.get(field) not in allowed:
        raise unsupported(f"config_groups.{name}.{field}", fields.get(field), allowed)
