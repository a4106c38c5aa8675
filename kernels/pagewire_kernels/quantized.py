"""A quantised weight in the one form every checkpoint format is unpacked to when it is loaded, and kernel sets repack.

Column k of ``codes`` belongs to input ``perm[k]`` (without a permutation: to input k) and to group ``k // group_size``;
the last group may be shorter. What a weight is, exactly (``reference.dequantize`` computes it):

    w[o, perm[k]] = (codes[o, k] - zeros[o, group]) * scales[o, group]      one rounding, to the scales' dtype
    w[o, perm[k]] = codes[o, k] * scales[o, group] + offsets[o, group]      float32, two roundings (GGUF Q4_1, Q4_K)

Integers up to 256 are exact in every scale type, so the first line is what GPTQModel, AutoAWQ and compressed-tensors
compute, bit for bit. Checkpoints that order columns by activation (GPTQ's ``desc_act``) come with their columns sorted
by group, so that no kernel looks a column's group up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedWeight:
    """Unpacked and checked; all tensors on one device."""

    codes: torch.Tensor
    """[out, in]: uint8, each below ``2**bits``; or float8_e4m3fn, and then neither zeros nor offsets."""
    scales: torch.Tensor
    """[out, groups] float16, bfloat16 or float32, finite, as the checkpoint stores them."""
    group_size: int
    """Columns a group; groups = ceil(in / group_size)."""
    bits: int
    """2, 3, 4 or 8."""
    zeros: torch.Tensor | None = None
    """uint8 [out, groups]; exactly one of zeros and offsets goes with integer codes."""
    offsets: torch.Tensor | None = None
    """[out, groups] in the scales' dtype."""
    perm: torch.Tensor | None = None
    """int64 [in]; none: columns are in the inputs' order."""
    rounds_inputs: bool = False
    """Of float8 codes: inputs are rounded to float8 as well, where the device multiplies these."""
    input_scale: float | None = None
    """Of inputs that are rounded: the scale that a checkpoint fixes for them; none: taken from each row of them."""

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)."""
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def num_groups(self) -> int:
        return self.scales.shape[1]

    @property
    def is_float8(self) -> bool:
        return self.codes.dtype == torch.float8_e4m3fn

    def to(self, device: torch.device) -> "QuantizedWeight":
        parts = ("codes", "scales", "zeros", "offsets", "perm")
        tensors = {name: getattr(self, name) for name in parts}
        return replace(self, **{name: part.to(device) for name, part in tensors.items() if part is not None})

    def select_outputs(self, rows: slice | torch.Tensor) -> "QuantizedWeight":
        """The rows given, in their order: a shard of the outputs, or heads in another order."""
        return self._select(rows, slice(None), slice(None), self.group_size)

    def can_select_inputs(self, size: int) -> bool:
        """Whether shards of ``size`` inputs each are whole groups of neighbours, or parts of a single group."""
        return self.perm is None and (self.num_groups == 1 or size % self.group_size == 0)

    def select_inputs(self, start: int, stop: int) -> "QuantizedWeight":
        """A shard of the inputs. Raises ValueError where it would cut one of several groups or columns are permuted."""
        if self.num_groups == 1:
            groups, group_size = slice(0, 1), min(self.group_size, stop - start)
        else:
            groups, group_size = slice(start // self.group_size, -(-stop // self.group_size)), self.group_size
        if self.perm is not None or start % group_size or (stop % group_size and stop != self.shape[1]):
            raise ValueError(f"inputs {start} to {stop} are not whole groups of {self.group_size} neighbours")
        return self._select(slice(None), slice(start, stop), groups, group_size)

    def _select(self, rows: slice | torch.Tensor, columns: slice, groups: slice, group_size: int) -> "QuantizedWeight":
        """Copies, so that the whole can be dropped."""

        def of_groups(part: torch.Tensor | None) -> torch.Tensor | None:
            return None if part is None else _copy(part[rows, groups])

        return replace(
            self,
            codes=_copy(self.codes[rows, columns]),
            scales=_copy(self.scales[rows, groups]),
            zeros=of_groups(self.zeros),
            offsets=of_groups(self.offsets),
            group_size=group_size,
        )


def _copy(part: torch.Tensor) -> torch.Tensor:
    return part.clone(memory_format=torch.contiguous_format)


def can_concatenate(first: QuantizedWeight, second: QuantizedWeight) -> bool:
    """Whether ``concatenate`` takes the two: they differ in nothing but their numbers."""
    forms = [
        (part.codes.dtype, part.shape[1], part.bits, part.group_size, part.scales.dtype) for part in (first, second)
    ]
    inputs = [(part.rounds_inputs, part.input_scale) for part in (first, second)]
    fields = [(part.zeros is None, part.offsets is None, part.perm is None) for part in (first, second)]
    if forms[0] != forms[1] or inputs[0] != inputs[1] or fields[0] != fields[1]:
        return False
    return first.perm is None or second.perm is None or torch.equal(first.perm, second.perm)


def concatenate(parts: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """Projections of one input, one below the other. The parts must fit by ``can_concatenate``."""
    if len(parts) == 1:
        return parts[0]
    zeros = [part.zeros for part in parts if part.zeros is not None]
    offsets = [part.offsets for part in parts if part.offsets is not None]
    return replace(
        parts[0],
        codes=torch.cat([part.codes for part in parts]),
        scales=torch.cat([part.scales for part in parts]),
        zeros=torch.cat(zeros) if zeros else None,
        offsets=torch.cat(offsets) if offsets else None,
    )
