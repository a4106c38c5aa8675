"""A linear layer over a weight that may hold several projections one below the other."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True)
class Linear:
    """``x @ weight.T + bias``; weight [out, in], bias [out] or None. On a CPU bfloat16 runs through oneDNN."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, in] -> [T, out]."""
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class TensorFactory:
    """Makes the parameters of a model: uninitialised, to be filled by the loader, which fails if one is left."""

    dtype: torch.dtype
    device: torch.device

    def vector(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=self.dtype, device=self.device)

    def linear(self, num_outputs: int, num_inputs: int, *, bias: bool = False) -> Linear:
        weight = torch.empty(num_outputs, num_inputs, dtype=self.dtype, device=self.device)
        return Linear(weight, self.vector(num_outputs) if bias else None)
