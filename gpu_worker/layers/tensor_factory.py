"""Makes the parameters of a model: uninitialised, to be filled by the loader, which fails if one is left."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from gpu_worker.layers.linear import Linear, Product
from gpu_worker.layers.quantized_linear import Projection, QuantizedLinear

AnyLinear = Linear | QuantizedLinear


@dataclass(frozen=True, slots=True)
class TensorFactory:
    """Remembers which parameter each name of a checkpoint fills."""

    dtype: torch.dtype
    device: torch.device
    product: Product
    quantized: frozenset[str]
    """Modules whose weights are quantised: no memory is taken for them here."""
    slots: dict[str, torch.Tensor] = field(default_factory=dict)
    """Views of the parameters by the names checkpoints use."""
    quantized_linears: list[QuantizedLinear] = field(default_factory=list)

    def vector(self, name: str, size: int) -> torch.Tensor:
        self.slots[name] = torch.empty(size, dtype=self.dtype, device=self.device)
        return self.slots[name]

    def matrix(self, name: str, rows: int, columns: int) -> torch.Tensor:
        self.slots[name] = torch.empty(rows, columns, dtype=self.dtype, device=self.device)
        return self.slots[name]

    def linear(self, outputs: Mapping[str, int], num_inputs: int, *, bias: bool = False) -> AnyLinear:
        """Projections of one input, one below the other: outputs by module name, in their order."""
        stacked_bias = self._stacked(outputs, ".bias", ()) if bias else None
        if not self.quantized.isdisjoint(outputs):
            return self._quantized_linear(outputs, num_inputs, stacked_bias)
        return Linear(self._stacked(outputs, ".weight", (num_inputs,)), stacked_bias, self.product)

    def _quantized_linear(
        self, outputs: Mapping[str, int], num_inputs: int, bias: torch.Tensor | None
    ) -> QuantizedLinear:
        projections = [
            Projection(
                name=name,
                num_outputs=size,
                weight=None if name in self.quantized else self.matrix(f"{name}.weight", size, num_inputs),
            )
            for name, size in outputs.items()
        ]
        self.quantized_linears.append(QuantizedLinear(projections, num_inputs, bias))
        return self.quantized_linears[-1]

    def _stacked(self, outputs: Mapping[str, int], ending: str, rest: tuple[int, ...]) -> torch.Tensor:
        """One tensor whose rows are the parameters named, and their slots."""
        whole = torch.empty(sum(outputs.values()), *rest, dtype=self.dtype, device=self.device)
        parts = whole.split(list(outputs.values()))
        self.slots.update({name + ending: part for name, part in zip(outputs, parts, strict=True)})
        return whole
