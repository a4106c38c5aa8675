"""The kernels for quantised weights in Triton's interpreter against the reference: float16, the interpreter's bfloat16
arithmetic is not a GPU's. Fragments need a GPU's matrix instruction, so few rows run as ``packed_linear`` here."""

from dataclasses import replace

import pytest
import torch
from pagewire_kernels import QuantizedWeight
from pagewire_kernels.reference import DequantizedProduct, dequantize
from pagewire_kernels.triton import TritonKernels
from pagewire_kernels.triton.float8_linear import Float8WeightProduct, check_float8
from pagewire_kernels.triton.packed_linear import PackedTiles, packed_linear
from pagewire_kernels.triton.packed_weight import pack_weight
from pagewire_kernels.triton.quantized_linear import PackedProduct
from support.kernel_cases import poison_allocations, seeded
from support.quantized_checks import FORMS, check_floats, check_products, quantized_weight
from triton import knobs

pytestmark = [
    pytest.mark.skipif(not knobs.runtime.interpret, reason="Triton is not in interpreter mode: tests/gpu runs these"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> TritonKernels:
    poison_allocations(monkeypatch)
    return TritonKernels()


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_quantized_products(kernels: TritonKernels, form: tuple[int, int, int, int, bool]) -> None:
    weight = quantized_weight(*form[:4], permuted=form[4])
    check_floats(kernels, weight, torch.float16)
    check_products(kernels, weight, torch.float16, rows=(3, 20))


def test_products_of_many_rows_use_floats_made_by_panels_or_kept(
    kernels: TritonKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pagewire_kernels.triton.quantized_linear.PANEL_BYTES", 64 * 256 * 2)
    weight = quantized_weight(192, 256, 128, 4, permuted=True)
    check_products(kernels, weight, torch.float16, rows=(400,))
    product = kernels.prepare_quantized(weight, torch.float16)
    assert isinstance(product, PackedProduct)
    x = torch.randn(400, 256).half()
    by_panels, bytes_before = product(x, None), product.num_bytes
    product.keep_floats()
    assert product.num_bytes == bytes_before + product.num_float_bytes == bytes_before + 192 * 256 * 2
    torch.testing.assert_close(product(x, None), by_panels, rtol=2e-3, atol=2e-3)


def test_some_tens_of_rows_of_a_small_weight_use_the_copy(kernels: TritonKernels) -> None:
    product = kernels.prepare_quantized(quantized_weight(192, 256, 128, 4), torch.float16)
    assert isinstance(product, PackedProduct)
    product.keep_floats()
    x = torch.randn(70, 256).half()
    assert torch.equal(product(x, None), torch.nn.functional.linear(x, product.floats()))
    assert not torch.equal(product(x[:64], None), torch.nn.functional.linear(x[:64], product.floats()))


@pytest.mark.parametrize("tiles", [(64, 16, 1), (64, 16, 3), (128, 32, 2), (128, 16, 5)], ids=str)
def test_every_way_to_cut_a_product_up(kernels: TritonKernels, tiles: tuple[int, int, int]) -> None:
    """Outputs and rows that are no multiple of a tile's, splits that take unequal shares of 5 chunks."""
    weight = quantized_weight(200, 608, 64, 4)
    outputs, rows, splits = tiles
    x, bias = torch.randn(20, 608).half(), torch.randn(200).half()
    counters = torch.zeros(64, dtype=torch.int32)
    cut = PackedTiles(outputs=outputs, rows=rows, splits=splits, warps=4, stages=1)
    found = packed_linear(x, pack_weight(weight, torch.float16), bias, counters, cut)
    expected = x.float() @ dequantize(weight, torch.float16).float().t() + bias.float()
    assert (found.float() - expected).norm() < 2e-3 * expected.norm()
    assert not counters.any()


@pytest.mark.parametrize("reason", ["float32 inputs", "float32 scales", "odd inputs", "odd groups", "offsets", "zeros"])
def test_forms_that_no_layout_holds_are_dequantised(kernels: TritonKernels, reason: str) -> None:
    weight, dtype = quantized_weight(64, 96, 32, 4), torch.float16
    if reason == "float32 inputs":
        dtype = torch.float32
    elif reason == "float32 scales":
        weight = replace(weight, scales=weight.scales.float())
    elif reason == "odd inputs":
        weight = quantized_weight(64, 100, 128, 4)
    elif reason == "odd groups":
        weight = quantized_weight(64, 96, 24, 4)
    elif reason == "offsets":
        weight = replace(weight, zeros=None, offsets=weight.scales * 3)
    else:
        weight = replace(weight, zeros=torch.full_like(weight.scales, 200, dtype=torch.uint8))
    assert isinstance(kernels.prepare_quantized(weight, dtype), DequantizedProduct)
    check_products(kernels, weight, dtype, rows=(3,))


@pytest.mark.parametrize("group_size", [128, 200], ids=["in blocks", "a scale an output"])
def test_float8_weights_with_inputs_in_floats(group_size: int) -> None:
    """Sizes that divide no tile. On a CPU no set chooses this kernel, so it is asked for by itself."""
    generator = seeded(group_size)
    weight = QuantizedWeight(
        codes=torch.randn(72, 200, generator=generator).to(torch.float8_e4m3fn),
        scales=torch.rand(72, -(-200 // group_size), generator=generator) + 0.1,
        group_size=group_size,
        bits=8,
    )
    check_float8(weight, torch.float16)
    product = Float8WeightProduct(weight, torch.float16)
    bias = torch.randn(72, generator=generator).half()
    for rows in (0, 1, 20, 150, 3):
        if rows == 3:
            before = product.num_bytes
            product.keep_floats()
            assert product.num_bytes == before + product.num_float_bytes == before + 72 * 200
        x = torch.randn(rows, 400, generator=generator).half()[:, ::2]
        expected = x.float() @ dequantize(weight, torch.float32).t() + bias.float()
        assert (product(x, bias).float() - expected).norm() <= 1e-3 * expected.norm()
