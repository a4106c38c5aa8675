"""The canonical form of quantised weights: what it stands for, and how it is cut and joined."""

from dataclasses import replace

import pytest
import torch
from pagewire_kernels import QuantizedWeight
from pagewire_kernels.quantized import can_concatenate, concatenate
from pagewire_kernels.reference import dequantize


def made(num_outputs: int, num_inputs: int, *, group_size: int = 32, bits: int = 4, seed: int = 0) -> QuantizedWeight:
    generator = torch.Generator().manual_seed(seed)
    groups = -(-num_inputs // group_size)
    return QuantizedWeight(
        codes=torch.randint(0, 2**bits, (num_outputs, num_inputs), generator=generator, dtype=torch.uint8),
        scales=torch.rand(num_outputs, groups, generator=generator).half(),
        zeros=torch.randint(0, 2**bits, (num_outputs, groups), generator=generator, dtype=torch.uint8),
        group_size=group_size,
        bits=bits,
    )


def test_a_weight_is_what_the_formula_says() -> None:
    """The last group is shorter; columns are permuted; the product is rounded in the scales' dtype."""
    perm = torch.randperm(80, generator=torch.Generator().manual_seed(1))
    weight = replace(made(6, 80), perm=perm)
    assert weight.zeros is not None
    found = dequantize(weight, torch.float32)
    for output, column in ((0, 0), (3, 31), (3, 32), (5, 79)):
        code, group = int(weight.codes[output, column]), column // 32
        product = torch.tensor(code - int(weight.zeros[output, group])).half() * weight.scales[output, group]
        assert found[output, perm[column]] == product.float()


def test_offsets_are_added_in_float32() -> None:
    weight = made(2, 32)
    weight = replace(weight, scales=weight.scales.float(), zeros=None, offsets=torch.tensor([[0.5], [-0.25]]))
    found = dequantize(weight, torch.float32)
    assert found[1, 7] == weight.codes[1, 7].float() * weight.scales[1, 0] - 0.25


@pytest.mark.parametrize("rows", [slice(2, 5), torch.tensor([3, 0])], ids=["slice", "order"])
def test_outputs_are_selected(rows: slice | torch.Tensor) -> None:
    weight = replace(made(6, 64), perm=torch.arange(63, -1, -1))
    assert torch.equal(dequantize(weight.select_outputs(rows), torch.float32), dequantize(weight, torch.float32)[rows])


def test_inputs_are_selected_by_whole_groups() -> None:
    weight = made(6, 80)
    whole = dequantize(weight, torch.float32)
    for start, stop in ((0, 32), (32, 80), (64, 80)):
        assert torch.equal(dequantize(weight.select_inputs(start, stop), torch.float32), whole[:, start:stop])
    for start, stop in ((16, 48), (0, 40)):
        with pytest.raises(ValueError, match="whole groups of 32"):
            weight.select_inputs(start, stop)
    with pytest.raises(ValueError, match="whole groups"):
        replace(weight, perm=torch.arange(80)).select_inputs(0, 32)


def test_a_single_group_is_divided_anywhere() -> None:
    weight = made(6, 96, group_size=96)
    assert weight.can_select_inputs(40)
    assert not made(6, 96).can_select_inputs(48)
    shards = [weight.select_inputs(start, min(start + 40, 96)) for start in (0, 40, 80)]
    whole = torch.cat([dequantize(shard, torch.float32) for shard in shards], dim=1)
    assert torch.equal(whole, dequantize(weight, torch.float32))


def test_projections_are_joined_if_they_differ_in_numbers_alone() -> None:
    first, second = made(4, 64), made(6, 64, seed=1)
    assert can_concatenate(first, second)
    joined = dequantize(concatenate([first, second]), torch.float32)
    assert torch.equal(joined, torch.cat([dequantize(part, torch.float32) for part in (first, second)]))
    perm = torch.arange(63, -1, -1)
    assert can_concatenate(replace(first, perm=perm), replace(second, perm=perm.clone()))
    for other in (made(4, 64, bits=8), made(4, 64, group_size=64), replace(second, perm=perm)):
        assert not can_concatenate(first, other)
    assert not can_concatenate(replace(first, perm=perm), replace(second, perm=torch.arange(64)))
