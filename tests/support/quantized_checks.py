"""Quantised weights of every form, and what a kernel set's products with them have to fulfil."""

import torch
from pagewire_kernels import KernelSet, QuantizedWeight
from pagewire_kernels.reference import dequantize
from pagewire_kernels.triton import TritonKernels
from pagewire_kernels.triton.quantized_linear import PackedProduct
from support.kernel_cases import seeded

FORMS = (
    # outputs, inputs, group size, bits, permuted
    (64, 128, 128, 4, False),
    (130, 320, 64, 4, False),
    (100, 96, 32, 4, True),
    (70, 160, 96, 3, False),
    (64, 576, 576, 8, False),
    (192, 256, 128, 8, True),
    (64, 192, 32, 2, False),
)
"""Sizes that divide no tile, groups that cover one to four planes of 32 inputs and that end within a chunk of 128."""


def quantized_weight(
    num_outputs: int,
    num_inputs: int,
    group_size: int,
    bits: int,
    *,
    permuted: bool = False,
    scale_dtype: torch.dtype = torch.float16,
    device: str = "cpu",
    seed: int = 0,
) -> QuantizedWeight:
    """Random codes, scales and zeros, these up to one past the codes as GPTQ's old convention gives them."""
    generator = seeded(seed)
    num_groups = -(-num_inputs // group_size)
    codes = torch.randint(0, 2**bits, (num_outputs, num_inputs), generator=generator, dtype=torch.uint8)
    zeros = torch.randint(0, min(255, 2**bits) + 1, (num_outputs, num_groups), generator=generator)
    scales = torch.rand(num_outputs, num_groups, generator=generator) * 0.02 + 0.001
    return QuantizedWeight(
        codes=codes.to(device),
        scales=scales.to(device, scale_dtype),
        zeros=zeros.to(device, torch.uint8),
        group_size=group_size,
        bits=bits,
        perm=torch.randperm(num_inputs, generator=generator).to(device) if permuted else None,
    )


def check_floats(kernels: TritonKernels, weight: QuantizedWeight, dtype: torch.dtype) -> None:
    """Unpacked weights are the reference's, computed on a CPU, bit for bit."""
    product = kernels.prepare_quantized(weight, dtype)
    assert isinstance(product, PackedProduct)
    floats = product.floats().cpu()
    on_cpu = QuantizedWeight(
        codes=weight.codes.cpu(),
        scales=weight.scales.cpu(),
        zeros=None if weight.zeros is None else weight.zeros.cpu(),
        group_size=weight.group_size,
        bits=weight.bits,
    )
    assert torch.equal(floats, dequantize(on_cpu, dtype))


def check_products(kernels: KernelSet, weight: QuantizedWeight, dtype: torch.dtype, rows: tuple[int, ...]) -> None:
    """Products with and without a bias, twice: counters must be as they were."""
    product, device = kernels.prepare_quantized(weight, dtype), weight.codes.device
    dense = dequantize(weight, dtype).float()
    tolerance = 8e-3 if torch.bfloat16 in (dtype, weight.scales.dtype) else 2e-3
    num_outputs, num_inputs = weight.shape
    for number in rows:
        generator = seeded(number)
        x = torch.randn(number, num_inputs, generator=generator).to(device, dtype)
        bias = torch.randn(num_outputs, generator=generator).to(device, dtype)
        for bias_or_none in (bias, None):
            expected = torch.nn.functional.linear(
                x.float(), dense, None if bias_or_none is None else bias_or_none.float()
            )
            for _ in range(2):
                actual = product(x, bias_or_none).float()
                assert actual.shape == expected.shape
                error = (actual - expected).norm() / expected.norm().clamp_min(1e-30)
                assert float(error) < tolerance, (weight.shape, number, float(error))
