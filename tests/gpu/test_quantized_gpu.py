"""The kernels for quantised weights on a GPU: every form in both dtypes, sizes of real models, graphs, offsets."""

import pytest
import torch
from pagewire_kernels import QuantizedWeight
from pagewire_kernels.reference import DequantizedProduct
from pagewire_kernels.triton import TritonKernels
from pagewire_kernels.triton.float8_linear import LARGEST, Float8Product, Float8WeightProduct
from pagewire_kernels.triton.fragment_linear import FragmentTiles, fragment_linear
from pagewire_kernels.triton.packed_weight import PackedWeight, pack_weight
from pagewire_kernels.triton.quantized_linear import PackedProduct
from support.kernel_cases import poison_allocations
from support.quantized_checks import FORMS, check_floats, check_products, quantized_weight

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ROWS = (1, 2, 7, 8, 9, 16, 33, 64, 100, 128, 200, 257, 385, 600)
MODEL_SIZES = ((6144, 4096), (4096, 14336), (28672, 4096), (15360, 5120), (5120, 13824), (1024, 3072))


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> TritonKernels:
    poison_allocations(monkeypatch)
    return TritonKernels()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_form(kernels: TritonKernels, form: tuple[int, int, int, int, bool], dtype: torch.dtype) -> None:
    for scale_dtype in (torch.float16, torch.bfloat16):
        weight = quantized_weight(*form[:4], permuted=form[4], scale_dtype=scale_dtype, device="cuda")
        check_floats(kernels, weight, dtype)
        check_products(kernels, weight, dtype, rows=(1, 8, 20, 70, 400))


@pytest.mark.parametrize("size", MODEL_SIZES, ids=str)
def test_sizes_of_models(kernels: TritonKernels, size: tuple[int, int]) -> None:
    weight = quantized_weight(*size, 128, 4, device="cuda", seed=sum(size))
    check_floats(kernels, weight, torch.bfloat16)
    check_products(kernels, weight, torch.bfloat16, rows=ROWS)


def test_results_do_not_depend_on_timing_or_on_other_rows(kernels: TritonKernels) -> None:
    product = kernels.prepare_quantized(quantized_weight(4096, 4096, 128, 4, device="cuda"), torch.bfloat16)
    x = torch.randn(80, 4096, device="cuda", dtype=torch.bfloat16)
    for rows in (8, 48, 64, 80):
        first = product(x[:rows], None)
        for _ in range(20):
            assert torch.equal(product(x[:rows], None), first)
    assert torch.equal(product(x[:3], None), product(x[:8], None)[:3])


def test_rows_past_the_last_are_neither_read_nor_written(kernels: TritonKernels) -> None:
    product = kernels.prepare_quantized(quantized_weight(128, 576, 64, 4, device="cuda"), torch.bfloat16)
    guarded = torch.full((140, 576), float("nan"), device="cuda", dtype=torch.bfloat16)
    for rows in (1, 5, 8, 9, 30, 40, 70, 100):
        guarded.fill_(float("nan"))
        guarded[:rows] = torch.randn(rows, 576, device="cuda", dtype=torch.bfloat16)
        assert bool(product(guarded[:rows], None).isfinite().all())


def test_a_product_in_a_graph_follows_its_inputs(kernels: TritonKernels) -> None:
    weight = quantized_weight(512, 1024, 128, 4, permuted=True, device="cuda")
    product = kernels.prepare_quantized(weight, torch.bfloat16)
    for rows in (4, 40, 600):
        x = torch.randn(rows, 1024, device="cuda", dtype=torch.bfloat16)
        product(x, None)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = product(x, None)
        x.copy_(torch.randn_like(x))
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, product(x, None))


def test_words_past_two_to_the_31_bytes_give_the_same_bits() -> None:
    if torch.cuda.mem_get_info()[0] < 8 << 30:
        pytest.skip("needs 8 GiB of free GPU memory")
    packed = pack_weight(quantized_weight(128, 4096, 128, 4, device="cuda"), torch.bfloat16)
    far_tiles = (2**31 + 2**24) // (4096 * 32)
    far = PackedWeight(
        words=torch.zeros(far_tiles + 2, *packed.words.shape[1:], dtype=torch.int16, device="cuda"),
        scales=torch.zeros(far_tiles + 2, *packed.scales.shape[1:], dtype=torch.int32, device="cuda"),
        num_outputs=(far_tiles + 2) * 64,
        num_inputs=4096,
        dtype=packed.dtype,
        scale_dtype=packed.scale_dtype,
    )
    far.words[-2:], far.scales[-2:] = packed.words, packed.scales
    x = torch.randn(2, 4096, device="cuda", dtype=torch.bfloat16)
    tiles = FragmentTiles(row_tiles=2, warps=4, unroll=1, fence=True)
    assert torch.equal(fragment_linear(x, far, None, tiles)[:, -128:], fragment_linear(x, packed, None, tiles))


def test_an_8_bit_weight_takes_a_byte_a_code(kernels: TritonKernels) -> None:
    product = kernels.prepare_quantized(quantized_weight(1024, 1024, 128, 8, device="cuda"), torch.float16)
    assert isinstance(product, PackedProduct)
    assert product.num_bytes <= 1024 * 1024 * (1 + 8 / 128)


def float8_weight(
    num_outputs: int, num_inputs: int, group_size: int, *, rounds_inputs: bool, input_scale: float | None = None
) -> QuantizedWeight:
    weight = torch.randn(num_outputs, num_inputs, device="cuda")
    num_groups = -(-num_inputs // group_size)
    scales = torch.rand(num_outputs, num_groups, device="cuda") * 1e-4 + 1e-4
    if num_groups > 1:  # rows of a block share their scales
        scales = scales[::128].repeat_interleave(128, 0)[:num_outputs]
    return QuantizedWeight(
        codes=(weight * 100).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn),
        scales=scales,
        group_size=group_size,
        bits=8,
        rounds_inputs=rounds_inputs,
        input_scale=input_scale,
    )


needs_float8 = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9), reason="no products of float8"
)


@needs_float8
@pytest.mark.parametrize("input_scale", [None, 0.02])
@pytest.mark.parametrize("in_blocks", [False, True])
def test_float8_products(kernels: TritonKernels, in_blocks: bool, input_scale: float | None) -> None:
    """As good as rounding inputs to float8 allows; halves of inputs that are far larger than the rest do not matter
    to other rows."""
    for num_outputs, num_inputs in ((1024, 2048), (208, 1536)):
        group_size = 128 if in_blocks else num_inputs
        weight = float8_weight(num_outputs, num_inputs, group_size, rounds_inputs=True, input_scale=input_scale)
        product = kernels.prepare_quantized(weight, torch.bfloat16)
        assert isinstance(product, Float8Product)
        exact = DequantizedProduct(weight, torch.float32)
        assert product.num_bytes < 1.04 * num_outputs * num_inputs
        for rows in (1, 3, 17, 100, 300):
            x = torch.randn(rows, num_inputs, device="cuda", dtype=torch.bfloat16)
            if input_scale is None:
                x[0] *= 1000
            bias = torch.randn(num_outputs, device="cuda", dtype=torch.bfloat16)
            for bias_or_none in (bias, None):
                expected = exact(x.float(), None if bias_or_none is None else bias_or_none.float())
                error = (product(x, bias_or_none).float() - expected).norm(dim=1) / expected.norm(dim=1)
                assert float(error.max()) < 0.05, (rows, float(error.max()))


@needs_float8
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("in_blocks", [False, True])
def test_float8_weights_alone_leave_inputs_as_they_are(
    kernels: TritonKernels, in_blocks: bool, dtype: torch.dtype
) -> None:
    """Ten times as near to the exact product as inputs in float8 come, from codes or floats in their place."""
    for num_outputs, num_inputs in ((1024, 2048), (208, 1536), (72, 1000)):
        weight = float8_weight(num_outputs, num_inputs, 128 if in_blocks else num_inputs, rounds_inputs=False)
        product = kernels.prepare_quantized(weight, dtype)
        assert isinstance(product, Float8WeightProduct)
        assert product.num_bytes < 1.1 * num_outputs * num_inputs
        exact = DequantizedProduct(weight, torch.float32)
        bias = torch.randn(num_outputs, device="cuda", dtype=dtype)
        for rows in (1, 3, 17, 100, 300, 301):
            if rows == 301:
                before = product.num_bytes
                product.keep_floats()
                assert product.num_bytes == before + num_outputs * num_inputs
            x = torch.randn(rows, num_inputs * 2, device="cuda", dtype=dtype)[:, ::2]
            for bias_or_none in (bias, None):
                expected = exact(x.float(), None if bias_or_none is None else bias_or_none.float())
                error = (product(x, bias_or_none).float() - expected).norm(dim=1) / expected.norm(dim=1)
                assert float(error.max()) < 0.005, (rows, float(error.max()))
