"""Packed projections give what plain ones give."""

import pytest
import torch

from gpu_worker.layers.linear import Linear, can_pack

CPU = torch.device("cpu")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(96, 64), (300, 48), (7, 576)])
def test_a_packed_layer_computes_the_same(shape: tuple[int, int], bias: bool) -> None:
    torch.manual_seed(0)
    weight = torch.randn(shape).to(torch.bfloat16)
    plain = Linear(weight, torch.randn(shape[0]).to(torch.bfloat16) if bias else None)
    packed = Linear(weight.clone(), plain.bias)
    packed.pack()
    packed.pack()  # a second time changes nothing
    for num_rows in (1, 3, 16, 200):
        x = torch.randn(num_rows, shape[1]).to(torch.bfloat16)
        torch.testing.assert_close(packed(x).float(), plain(x).float(), rtol=2e-2, atol=2e-2)
    assert packed(torch.empty(0, shape[1], dtype=torch.bfloat16)).shape == (0, shape[0])


def test_float32_is_never_packed() -> None:
    assert not can_pack(CPU, torch.float32)
    weight = torch.randn(8, 8)
    layer = Linear(weight)
    layer.pack()
    assert layer.weight is weight
