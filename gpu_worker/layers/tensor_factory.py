"""Makes the parameters of a model: uninitialised, to be filled by the loader, which fails if one is left.

Of parameters that are divided over the ranks, only this rank's part is made.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from gpu_worker.layers.divided_linear import DividedLinear
from gpu_worker.layers.linear import Linear, Product
from gpu_worker.layers.quantized_linear import Projection, QuantizedLinear
from gpu_worker.rank_group import ALONE, RankGroup
from gpu_worker.shard import Shard

AnyLinear = Linear | QuantizedLinear | DividedLinear


@dataclass(frozen=True, slots=True)
class TensorFactory:
    """Remembers which parameter each name of a checkpoint fills."""

    dtype: torch.dtype
    device: torch.device
    product: Product
    quantized: frozenset[str]
    """Modules whose weights are quantised: no memory is taken for them here."""
    group: RankGroup = ALONE
    slots: dict[str, torch.Tensor] = field(default_factory=dict)
    """Views of the parameters by the names checkpoints use."""
    shards: dict[str, tuple[Shard, ...]] = field(default_factory=dict)
    """Of the slots: which part of each dimension of the checkpoint's tensor fills them."""
    quantized_linears: list[QuantizedLinear] = field(default_factory=list)

    def vector(self, name: str, size: int) -> torch.Tensor:
        return self._slot(name, Shard.all_of(size))

    def matrix(self, name: str, rows: Shard, columns: Shard) -> torch.Tensor:
        return self._slot(name, rows, columns)

    def linear(self, outputs: Mapping[str, Shard], num_inputs: int, *, bias: bool = False) -> Linear | QuantizedLinear:
        """Projections of one input, one below the other: outputs by module name, in their order."""
        stacked_bias = self._stacked(outputs, ".bias") if bias else None
        return self._linear(outputs, Shard.all_of(num_inputs), stacked_bias)

    def divided_linear(self, name: str, num_outputs: int, inputs: Shard, *, bias: bool = False) -> AnyLinear:
        """A projection of inputs that are divided over the ranks."""
        outputs = {name: Shard.all_of(num_outputs)}
        stacked_bias = self._stacked(outputs, ".bias") if bias else None
        if inputs.is_all:
            return self._linear(outputs, inputs, stacked_bias)
        return DividedLinear(self._linear(outputs, inputs, None), num_outputs, stacked_bias, self.group)

    def _linear(
        self, outputs: Mapping[str, Shard], inputs: Shard, bias: torch.Tensor | None
    ) -> Linear | QuantizedLinear:
        if self.quantized.isdisjoint(outputs):
            return Linear(self._stacked(outputs, ".weight", inputs), bias, self.product)
        projections = [
            Projection(
                name=name,
                outputs=rows,
                weight=None if name in self.quantized else self.matrix(f"{name}.weight", rows, inputs),
            )
            for name, rows in outputs.items()
        ]
        self.quantized_linears.append(QuantizedLinear(projections, inputs, bias, self.group))
        return self.quantized_linears[-1]

    def _slot(self, name: str, *shards: Shard) -> torch.Tensor:
        self.slots[name] = torch.empty([shard.size for shard in shards], dtype=self.dtype, device=self.device)
        self.shards[name] = shards
        return self.slots[name]

    def _stacked(self, outputs: Mapping[str, Shard], ending: str, *rest: Shard) -> torch.Tensor:
        """One tensor whose rows are the parameters named, and their slots."""
        sizes = [rows.size for rows in outputs.values()]
        whole = torch.empty(sum(sizes), *(shard.size for shard in rest), dtype=self.dtype, device=self.device)
        for (name, rows), part in zip(outputs.items(), whole.split(sizes), strict=True):
            self.slots[name + ending] = part
            self.shards[name + ending] = (rows, *rest)
        return whole
