"""GPTQ checkpoints (arXiv 2210.17323) as GPTQModel and AutoGPTQ write them: 2, 3, 4 or 8 bits.

    qweight int32 [in x bits / 32, out]        codes, packed down the inputs
    qzeros  int32 [groups, out x bits / 32]    zero points, packed along the outputs
    scales  float [groups, out]
    g_idx   int32 [in]                         group of each input; missing or empty: neighbours form groups

Version 1 of the format ("gptq") stores zero points less one, modulo 2**bits; version 2 ("gptq_v2") stores them as they
are. Two rules on top of the label. A symmetric checkpoint whose stored zero points are exactly those of the other
version is read as that: published files carry the wrong label, and an error of one shifts every weight. And GPTQModel
subtracts the ones from whole words, so that below a zero point of 0 its neighbour lends one; for its files they are
added to whole words again, for others code by code.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pagewire_kernels import QuantizedWeight

from gpu_worker.weights.bit_packing import num_words, unpack
from gpu_worker.weights.grouping import grouped
from gpu_worker.weights.quantization_fields import choice, flag, group_size_of, integer, unsupported
from gpu_worker.weights.stored_module import StoredModule

BITS = (2, 3, 4, 8)
GROUP_SIZES = (-1, 16, 32, 64, 128, 256, 512, 1024)
FORMATS = ("gptq", "gptq_v2")
_MISPLACED_ONES = (0x24924924, 0x92492492 - 2**32, 0x49249249)
LABELS = ("checkpoint_format", "format")
"""Either names the format; GPTQModel writes both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GptqFormat:
    """What the configuration says of all modules; those named in ``dynamic`` may have other bits and groups."""

    bits: int
    group_size: int
    is_symmetric: bool
    is_v2: bool
    is_mixed: bool
    lends: bool
    """Ones were subtracted from whole words."""
    method: str = "gptq"
    markers: tuple[str, ...] = ("qweight",)
    endings: tuple[str, ...] = ("qweight", "qzeros", "scales", "g_idx")

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> "GptqFormat":
        """Raises ModelLoadError naming the field."""
        choice(fields, "pack_dtype", ("int32",), "int32")
        labels = {choice(fields, name, FORMATS, "") for name in LABELS if fields.get(name) is not None}
        if len(labels) > 1:
            raise unsupported("format", fields["format"], (f"{fields['checkpoint_format']} as checkpoint_format says",))
        meta = fields.get("meta")
        quantizer = str(meta.get("quantizer", "")) if isinstance(meta, dict) else ""
        return cls(
            bits=integer(fields, "bits", BITS),
            group_size=integer(fields, "group_size", GROUP_SIZES),
            is_symmetric=flag(fields, "sym", True),
            is_v2="gptq_v2" in labels,
            is_mixed=bool(fields.get("dynamic")),
            lends="gptqmodel" in quantizer,
        )

    @property
    def label(self) -> str:
        mixed = ", mixed" if self.is_mixed else ""
        return f"gptq {self.bits}-bit, group {self.group_size}{mixed}"

    def unpack(self, module: StoredModule) -> QuantizedWeight:
        """Raises ModelLoadError naming the tensor or field that does not fit."""
        bits = self._bits_of(module)
        num_outputs, num_inputs = module.num_outputs, module.num_inputs
        qweight = module.take("qweight", (torch.int32,), (num_words(num_inputs, bits), num_outputs))
        scales = module.take_scales("scales")
        if scales.dim() != 2 or scales.shape[1] != num_outputs:
            raise module.error("scales", f"has shape {list(scales.shape)}; [groups, {num_outputs}] is needed")
        group_size = self._group_size_of(module, scales.shape[0])
        words = module.take("qzeros", (torch.int32,), (scales.shape[0], num_words(num_outputs, bits)))
        return grouped(
            module,
            codes=unpack(qweight.t(), bits, num_inputs),
            scales=scales.t().contiguous(),
            zeros=self._zeros(words, bits, num_outputs).t().contiguous(),
            group_size=group_size,
            bits=bits,
            group_index=module.tensors.get("g_idx"),
        )

    def _bits_of(self, module: StoredModule) -> int:
        """By the shape of ``qweight``, which must agree with the configuration unless that has exceptions."""
        qweight = module.take("qweight", (torch.int32,))
        rows = len(qweight) if qweight.dim() else 0
        fitting = [bits for bits in BITS if num_words(module.num_inputs, bits) == rows]
        if self.bits in fitting:
            return self.bits
        if self.is_mixed and len(fitting) == 1:
            return fitting[0]
        needed = num_words(module.num_inputs, self.bits)
        raise module.error(
            "qweight", f"has {rows} rows; {needed} are needed for the {self.bits} bits of quantization_config.bits"
        )

    def _group_size_of(self, module: StoredModule, num_groups: int) -> int:
        size = group_size_of(self.group_size, module.num_inputs)
        if num_groups == -(-module.num_inputs // size):
            return size
        others = (group_size_of(size, module.num_inputs) for size in GROUP_SIZES)
        fitting = [size for size in others if num_groups == -(-module.num_inputs // size)]
        if self.is_mixed and fitting:
            return fitting[0]
        raise module.error(
            "scales",
            f"has {num_groups} groups; quantization_config.group_size {self.group_size} makes "
            f"{-(-module.num_inputs // size)} of {module.num_inputs} inputs",
        )

    def _zeros(self, words: torch.Tensor, bits: int, num_outputs: int) -> torch.Tensor:
        """uint8 [groups, out]."""
        stored = unpack(words, bits, num_outputs)
        middle = 2 ** (bits - 1)
        is_v2 = self.is_v2
        if self.is_symmetric and bool((stored == (middle - 1 if is_v2 else middle)).all()):
            is_v2 = not is_v2
        if self.is_symmetric and self.lends and bits == 3 and _taken_wrongly(words, num_outputs):
            return torch.full_like(stored, middle)
        if is_v2:
            return stored
        if self.lends and 32 % bits == 0:
            ones = sum(1 << shift for shift in range(0, 32, bits))
            return unpack(words + torch.tensor(ones, dtype=torch.int32), bits, num_outputs)
        return (stored + 1).bitwise_and_(2**bits - 1)


def _taken_wrongly(words: torch.Tensor, num_outputs: int) -> bool:
    """Whether all zero points are 4 with misplaced ones given back: earlier GPTQModels took them so of three words."""
    ones = torch.tensor(_MISPLACED_ONES, dtype=torch.int32, device=words.device).repeat(words.shape[1] // 3 + 1)
    return bool((unpack(words + ones[: words.shape[1]], 3, num_outputs) == 4).all())
