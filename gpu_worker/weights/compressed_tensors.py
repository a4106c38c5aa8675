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
from gpu_worker.weights.float8 import Float8Format, parse_block
from gpu_worker.weights.grouping import grouped
from gpu_worker.weights.quantization_fields import SECTION, choice, group_size_of, unsupported
from gpu_worker.weights.stored_module import StoredModule

BITS = (2, 3, 4, 8)
FORMATS = ("pack-quantized", "float-quantized", "naive-quantized")
_BY_GROUP = ("group", "dynamic", True)
_ORDERS = (*_BY_GROUP, "weight", "static", False, None)
"""Of an order by weight the columns are stored as they were; true and false are older words for group and none."""


@dataclass(frozen=True, slots=True, order=True)
class PackedScheme:
    """Integers of ``bits``, a scale a group or a row."""

    bits: int
    group_size: int
    """-1: one group of all inputs."""
    is_symmetric: bool
    is_ordered: bool
    """Columns belong to the groups that ``weight_g_idx`` names."""

    def fits(self, bits: int, num_inputs: int, num_groups: int) -> bool:
        return bits == self.bits and num_groups == -(-num_inputs // group_size_of(self.group_size, num_inputs))


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFormat:
    """Every module follows one of ``schemes``."""

    schemes: tuple[PackedScheme, ...]
    method: str = "compressed-tensors"
    markers: tuple[str, ...] = ("weight_packed",)
    endings: tuple[str, ...] = ("weight_packed", "weight_shape", "weight_scale", "weight_zero_point", "weight_g_idx")

    @property
    def label(self) -> str:
        return f"compressed-tensors {'/'.join(map(str, self._bits))}-bit"

    @property
    def _bits(self) -> list[int]:
        return sorted({scheme.bits for scheme in self.schemes})

    def unpack(self, module: StoredModule) -> QuantizedWeight:
        """Raises ModelLoadError naming the tensor that does not fit."""
        num_outputs, num_inputs = module.num_outputs, module.num_inputs
        shape = module.take("weight_shape", (torch.int64, torch.int32), (2,)).tolist()
        if shape != [num_outputs, num_inputs]:
            raise module.error("weight_shape", f"is {shape}; the config asks for {[num_outputs, num_inputs]}")
        bits = self._bits_of(module)
        scales = module.take_scales("weight_scale")
        scales = scales.reshape(-1, 1).expand(num_outputs, 1).contiguous() if scales.numel() == 1 else scales
        scheme = self._scheme_of(module, bits, scales)
        return grouped(
            module,
            codes=unpack(module.tensors["weight_packed"], bits, num_inputs),
            scales=scales,
            zeros=_zeros(module, scheme, scales),
            group_size=group_size_of(scheme.group_size, num_inputs),
            bits=bits,
            group_index=_group_index(module, scheme),
            ending="weight_g_idx",
        )

    def _scheme_of(self, module: StoredModule, bits: int, scales: torch.Tensor) -> PackedScheme:
        """By the shape of the scales; an asymmetric scheme needs zero points, so it is the last choice without them."""
        has_zeros = "weight_zero_point" in module.tensors
        if scales.dim() == 2 and len(scales) == module.num_outputs:
            for scheme in sorted(self.schemes, key=lambda scheme: scheme.is_symmetric is has_zeros):
                if scheme.fits(bits, module.num_inputs, scales.shape[1]):
                    return scheme
        raise module.error(
            "weight_scale",
            f"has shape {list(scales.shape)}; [{module.num_outputs}, groups] is needed, the groups for "
            f"{module.num_inputs} inputs by group_size {[scheme.group_size for scheme in self.schemes]} of the config",
        )

    def _bits_of(self, module: StoredModule) -> int:
        packed = module.take("weight_packed", (torch.int32,))
        for bits in self._bits:
            if tuple(packed.shape) == (module.num_outputs, num_words(module.num_inputs, bits)):
                return bits
        wanted = [[module.num_outputs, num_words(module.num_inputs, bits)] for bits in self._bits]
        raise module.error(
            "weight_packed",
            f"has shape {list(packed.shape)}; {wanted} is needed for the num_bits {self._bits} of the config",
        )


def _group_index(module: StoredModule, scheme: PackedScheme) -> torch.Tensor | None:
    """-1 stands where columns were never ordered."""
    index = module.tensors.get("weight_g_idx")
    if index is None and scheme.is_ordered:
        raise module.error("weight_g_idx", "is missing; actorder of the config needs it")
    return None if index is None or bool((index == -1).all()) else index


def _zeros(module: StoredModule, scheme: PackedScheme, scales: torch.Tensor) -> torch.Tensor:
    """uint8 [out, groups]."""
    (num_outputs, num_groups), bits = scales.shape, scheme.bits
    if scheme.is_symmetric and "weight_zero_point" not in module.tensors:
        return torch.full((num_outputs, num_groups), 2 ** (bits - 1), dtype=torch.uint8, device=scales.device)
    words = module.take("weight_zero_point", (torch.int32,), (num_words(num_outputs, bits), num_groups))
    return unpack(words.t(), bits, num_outputs).t().contiguous()


def parse_compressed_tensors(fields: Mapping[str, Any]) -> PackedFormat | Float8Format:
    """Raises ModelLoadError naming the field."""
    choice(fields, "quantization_status", ("compressed", "frozen"), "compressed")
    label = choice(fields, "format", FORMATS, "pack-quantized")
    sparsity = fields.get("sparsity_config") or {}
    if not isinstance(sparsity, dict) or sparsity.get("format", "dense") != "dense":
        raise ModelLoadError(f"config: {SECTION}.sparsity_config is not supported; supported: dense")
    groups = fields.get("config_groups")
    if not isinstance(groups, dict) or not groups or not all(isinstance(group, dict) for group in groups.values()):
        raise unsupported("config_groups", groups, ("an object of schemes",))
    if label == "pack-quantized":
        return PackedFormat(schemes=tuple(sorted({_packed_scheme(name, group) for name, group in groups.items()})))
    formats = {_float8_format(name, group) for name, group in groups.items()}
    if len(formats) != 1:
        raise unsupported("config_groups", sorted(groups), ("one scheme of FP8 for all",))
    return formats.pop()


def _packed_scheme(name: str, group: Mapping[str, Any]) -> PackedScheme:
    """A scheme of integer weights with unquantised inputs."""
    weights = _weights_of(name, group)
    if group.get("input_activations"):
        raise unsupported(f"config_groups.{name}.input_activations", group["input_activations"], ("null",))
    _expect(name, weights, "type", ("int",))
    _expect(name, weights, "strategy", ("group", "channel", "tensor"))
    bits, size, symmetric = (weights.get(field) for field in ("num_bits", "group_size", "symmetric"))
    if not isinstance(bits, int) or bits not in BITS:
        raise unsupported(f"config_groups.{name}.weights.num_bits", bits, BITS)
    if weights["strategy"] != "group":
        size = -1
    if not isinstance(size, int) or isinstance(size, bool) or (size < 1 and size != -1):
        raise unsupported(f"config_groups.{name}.weights.group_size", size, ("-1", "positive integers"))
    if not isinstance(symmetric, bool | None):
        raise unsupported(f"config_groups.{name}.weights.symmetric", symmetric, ("true", "false"))
    order = weights.get("actorder")
    order = order.lower() if isinstance(order, str) else order
    if order not in _ORDERS:
        raise unsupported(f"config_groups.{name}.weights.actorder", order, _ORDERS)
    return PackedScheme(bits, size, symmetric is not False, order in _BY_GROUP)


def _float8_format(name: str, group: Mapping[str, Any]) -> Float8Format:
    """A scheme of FP8 weights, whose inputs are FP8 too unless they are null."""
    weights = _weights_of(name, group)
    _expect(name, weights, "type", ("float",))
    _expect(name, weights, "num_bits", (8,))
    _expect(name, weights, "strategy", ("tensor", "channel", "block"))
    inputs = group.get("input_activations")
    if not isinstance(inputs, dict | None):
        raise unsupported(f"config_groups.{name}.input_activations", inputs, ("an object", "null"))
    if inputs:
        _expect(name, inputs, "type", ("float",))
        _expect(name, inputs, "num_bits", (8,))
        _expect(name, inputs, "dynamic", (True, False, None))
    return Float8Format(
        method="compressed-tensors",
        block=parse_block(weights.get("block_structure"), f"config_groups.{name}.weights.block_structure"),
        is_static=bool(inputs and not inputs.get("dynamic")),
        rounds_inputs=bool(inputs),
    )


def _weights_of(name: str, group: Mapping[str, Any]) -> Mapping[str, Any]:
    weights = group.get("weights")
    if not isinstance(weights, dict):
        raise unsupported(f"config_groups.{name}.weights", weights, ("an object",))
    if group.get("output_activations"):
        raise unsupported(f"config_groups.{name}.output_activations", group["output_activations"], ("null",))
    return weights


def _expect(name: str, fields: Mapping[str, Any], field: str, allowed: tuple[Any, ...]) -> None:
    if fields.get(field) not in allowed:
        raise unsupported(f"config_groups.{name}.{field}", fields.get(field), allowed)
