"""When quantised weights are also kept as floats."""

import pytest
import torch
from pagewire_kernels import QuantizedProduct

from gpu_worker.layers.quantized_linear import Projection, QuantizedLinear
from gpu_worker.shard import Shard
from gpu_worker.weights.float_copies import AUTO_SHARE, keep_float_copies


class Product:
    num_bytes = 10
    num_float_bytes = 30

    def __init__(self) -> None:
        self.is_kept = False

    def keep_floats(self) -> None:
        self.is_kept = True

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return x


class Without:
    num_bytes = 10

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return x


class Layer(QuantizedLinear):
    def __init__(self, *products: QuantizedProduct) -> None:
        super().__init__([Projection(name="a", outputs=Shard.all_of(1), weight=None)], Shard.all_of(1), None)
        self._runs = [(product, None) for product in products]


@pytest.mark.parametrize(
    ("mode", "spare", "is_kept"),
    [
        ("copy", 0, True),
        ("codes", 10**9, False),
        ("auto", 60 / AUTO_SHARE, True),
        ("auto", 59 / AUTO_SHARE, False),
    ],
)
def test_all_copies_or_none(mode: str, spare: float, is_kept: bool) -> None:
    first, second = Product(), Product()
    kept = keep_float_copies([Layer(first, Without()), Layer(second)], mode, int(spare))
    assert kept == (60 if is_kept else 0)
    assert first.is_kept == second.is_kept == is_kept


def test_kernels_without_copies_keep_none() -> None:
    assert keep_float_copies([Layer(Without())], "copy", 10**9) == 0
