"""Linear layers over weights that may hold several projections one below the other.

On a CPU, oneDNN computes bfloat16 products from a blocked copy of the weight. Called through F.linear it makes that
copy anew each time, which for a few rows takes as long as the product; a packed layer keeps the blocked copy instead
of the plain one (measured on a 2-core Zen 4, all projections of SmolLM2-135M: 26 -> 16 ms for 1 row, 40 -> 24 ms for
16 rows). The operator is torch's own but not a public one, so it is tried first and left aside where it is missing or
disagrees.
"""

from collections.abc import Callable
from functools import lru_cache

import torch
import torch.nn.functional as F

Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""``(x, weight, bias) -> x @ weight.T + bias``."""
_PACKED_ROWS = 16
"""Rows the blocked layout is chosen for; it serves other numbers as well."""


class Linear:
    """``x @ weight.T + bias``: x [T, in] -> [T, out]."""

    __slots__ = ("_is_packed", "_product", "bias", "weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None, product: Product = F.linear) -> None:
        self._product = product
        self.weight = weight
        """[out, in]; once packed, a layout that only this layer can read."""
        self.bias = bias
        self._is_packed = False

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._is_packed:
            return _packed_product(x, self.weight, self.bias)
        return self._product(x, self.weight, self.bias)

    def pack(self) -> None:
        """Keep the blocked copy instead of the weight, where ``can_pack`` says that this helps. The weight is final."""
        if not self._is_packed and can_pack(self.weight.device, self.weight.dtype):
            self.weight = _reorder(self.weight)
            self._is_packed = True


@lru_cache
def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether oneDNN packs weights here and its products agree with F.linear's."""
    if device.type != "cpu" or dtype != torch.bfloat16:
        return False
    weight = torch.linspace(-1, 1, 96 * 64).view(96, 64).to(dtype)
    x, bias = torch.linspace(-1, 1, 3 * 64).view(3, 64).to(dtype), torch.linspace(-1, 1, 96).to(dtype)
    try:
        product = _packed_product(x, _reorder(weight), bias)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.allclose(product.float(), F.linear(x, weight, bias).float(), rtol=1e-2, atol=1e-2)


def _reorder(weight: torch.Tensor) -> torch.Tensor:
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACKED_ROWS)
    return packed


def _packed_product(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(x, packed, bias, "none", [], "")
    return product
