"""A linear layer whose inputs are divided over the ranks, as the layer before it left them.

Each rank multiplies its inputs with its columns of the weight, and the products are summed. A quantised weight whose
columns cannot be divided, because a group of them or an order by activation crosses the border, is divided by its rows
instead: then the inputs are brought together first, and the outputs after.
"""

import torch

from gpu_worker.layers.linear import Linear
from gpu_worker.layers.quantized_linear import QuantizedLinear
from gpu_worker.rank_group import RankGroup


class DividedLinear:
    """``x @ weight.T + bias`` on every rank: this rank's columns of x [T, in / ranks] -> [T, out]."""

    __slots__ = ("_bias", "_group", "_linear", "_num_outputs")

    def __init__(
        self, linear: Linear | QuantizedLinear, num_outputs: int, bias: torch.Tensor | None, group: RankGroup
    ) -> None:
        """``linear`` has this rank's part of the weight and no bias."""
        self._linear = linear
        self._num_outputs = num_outputs
        self._bias = bias
        self._group = group

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if isinstance(self._linear, QuantizedLinear) and self._linear.takes_all_inputs:
            outputs = self._linear(self._group.join(x, x.shape[1]))
            product = self._group.join(outputs, -(-self._num_outputs // self._group.size))[:, : self._num_outputs]
        else:
            product = self._group.sum(self._linear(x))
        return product if self._bias is None else product + self._bias

    def pack(self) -> None:
        self._linear.pack()
