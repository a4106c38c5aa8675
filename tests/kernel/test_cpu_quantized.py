"""Quantised products of the CPU sets against the reference: every form, rows around the blocks, ragged edges."""

from dataclasses import dataclass

import pytest
import torch
from pagewire_kernels import QuantizedWeight
from pagewire_kernels.cpu import CpuKernels, NativeCpuKernels
from pagewire_kernels.cpu.native.quantized_linear import NativeQuantizedProduct
from pagewire_kernels.reference import dequantize

ROWS = (1, 2, 3, 4, 7, 8, 9, 16, 23)


@dataclass(frozen=True, slots=True)
class Form:
    bits: int
    group_size: int
    second: str
    scales: torch.dtype = torch.float16
    num_outputs: int = 96
    num_inputs: int = 128
    is_permuted: bool = False


FORMS = {
    "zeros": Form(4, 64, "zeros"),
    "symmetric": Form(4, 128, "middle"),
    "three-bits": Form(3, 32, "zeros"),
    "two-bits": Form(2, 32, "zeros"),
    "eight-bits": Form(8, 32, "zeros"),
    "eight-bits-symmetric": Form(8, 128, "middle", torch.bfloat16),
    "offsets": Form(4, 32, "offsets", torch.float32),
    "groups-of-16": Form(8, 16, "middle", torch.float32),
    "bfloat16-scales": Form(4, 32, "zeros", torch.bfloat16),
    "permuted": Form(4, 32, "zeros", is_permuted=True),
    "ragged-outputs": Form(4, 64, "zeros", num_outputs=71),
    "ragged-last-group": Form(4, 128, "zeros", num_inputs=200),
    "one-block": Form(8, 64, "zeros", num_outputs=5, num_inputs=64),
}


def made(form: Form) -> QuantizedWeight:
    generator = torch.Generator().manual_seed(11)
    shape = (form.num_outputs, -(-form.num_inputs // form.group_size))
    codes = torch.randint(0, 2**form.bits, (form.num_outputs, form.num_inputs), generator=generator, dtype=torch.uint8)
    zeros = torch.randint(0, 2**form.bits, shape, generator=generator, dtype=torch.uint8)
    offsets = torch.randn(shape, generator=generator)
    return QuantizedWeight(
        codes=codes,
        scales=(torch.rand(shape, generator=generator) / 2**form.bits).to(form.scales),
        zeros={"zeros": zeros, "middle": torch.full_like(zeros, 2 ** (form.bits - 1))}.get(form.second),
        offsets=offsets if form.second == "offsets" else None,
        group_size=form.group_size,
        bits=form.bits,
        perm=torch.randperm(form.num_inputs, generator=generator) if form.is_permuted else None,
    )


@pytest.fixture(scope="module")
def native() -> NativeCpuKernels:
    kernels = NativeCpuKernels()
    if not kernels.takes_quantized(4, 32, False, torch.bfloat16):
        pytest.skip("this processor has no bfloat16 products")
    return kernels


@pytest.mark.parametrize("name", FORMS)
def test_products_of_bfloat16_rows(native: NativeCpuKernels, name: str) -> None:
    """Within the rounding of the result, and of weights that the reference rounds to their scales' dtype."""
    weight = made(FORMS[name])
    product = native.prepare_quantized(weight, torch.bfloat16)
    assert isinstance(product, NativeQuantizedProduct)
    num_outputs, num_inputs = weight.shape
    generator = torch.Generator().manual_seed(1)
    exact = dequantize(weight, torch.float32).double()
    for rows in ROWS:
        x = torch.randn(rows, num_inputs, generator=generator).bfloat16()
        bias = torch.randn(num_outputs, generator=generator).bfloat16() if rows % 2 else None
        expected = x.double() @ exact.T + (0 if bias is None else bias.double())
        error = (product(x, bias).double() - expected).abs()
        assert bool((error <= expected.abs() * 2**-8 + expected.abs().max() * 2**-8).all()), rows


@pytest.mark.parametrize("name", ["zeros", "eight-bits", "permuted"])
def test_a_row_does_not_depend_on_its_neighbours_or_threads(native: NativeCpuKernels, name: str) -> None:
    weight = made(FORMS[name])
    product = native.prepare_quantized(weight, torch.bfloat16)
    x = torch.randn(23, weight.shape[1], generator=torch.Generator().manual_seed(2)).bfloat16()
    together = product(x, None)
    alone = torch.cat([product(row, None) for row in x.split(1)])
    assert torch.equal(together, alone)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert torch.equal(product(x, None), together)
    finally:
        torch.set_num_threads(threads)


def test_what_is_not_a_number_stays_in_its_row(native: NativeCpuKernels) -> None:
    product = native.prepare_quantized(made(FORMS["zeros"]), torch.bfloat16)
    x = torch.ones(9, 128, dtype=torch.bfloat16)
    x[4, 7] = float("nan")
    is_nan = product(x, None).isnan()
    assert bool(is_nan[4].all())
    assert not bool(is_nan[[0, 1, 2, 3, 5, 6, 7, 8]].any())


def test_weights_stay_small(native: NativeCpuKernels) -> None:
    """A byte for two codes; scales of two bytes a group, and as much for zero points that differ."""
    weights = 96 * 128
    assert native.prepare_quantized(made(FORMS["symmetric"]), torch.bfloat16).num_bytes == weights // 2 + 96 * 2
    assert native.prepare_quantized(made(FORMS["zeros"]), torch.bfloat16).num_bytes == weights // 2 + 96 * 2 * 4
    assert native.prepare_quantized(made(FORMS["offsets"]), torch.bfloat16).num_bytes == weights // 2 + 96 * 4 * 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kernels", [CpuKernels, NativeCpuKernels])
def test_other_types_are_computed_from_the_dequantised_weight(kernels: type[CpuKernels], dtype: torch.dtype) -> None:
    weight, made_kernels = made(FORMS["permuted"]), kernels()
    assert not made_kernels.takes_quantized(4, 32, False, dtype)
    x = torch.randn(5, 128, generator=torch.Generator().manual_seed(3)).to(dtype)
    expected = torch.nn.functional.linear(x, dequantize(weight, dtype))
    assert torch.equal(made_kernels.prepare_quantized(weight, dtype)(x, None), expected)


def test_float8_codes_and_odd_groups_are_dequantised(native: NativeCpuKernels) -> None:
    codes = torch.randn(8, 64, generator=torch.Generator().manual_seed(4)).to(torch.float8_e4m3fn)
    float8 = QuantizedWeight(codes=codes, scales=torch.full((8, 1), 0.5), group_size=64, bits=8)
    odd = made(Form(4, 4, "zeros"))
    for weight in (float8, odd):
        x = torch.randn(2, weight.shape[1], generator=torch.Generator().manual_seed(5)).bfloat16()
        expected = torch.nn.functional.linear(x, dequantize(weight, torch.bfloat16))
        assert torch.equal(native.prepare_quantized(weight, torch.bfloat16)(x, None), expected)
