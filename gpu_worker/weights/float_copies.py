"""Decides whether quantised weights are also kept as floats, for products of so many rows that bytes do not matter.

Without a copy such products unpack the weight each time, which for an 8B model takes 5 ms a step; with it, memory that
would hold pages. Kernel sets whose products do neither have nothing to keep.
"""

from collections.abc import Iterable

from pagewire_kernels import KeepsFloats

from gpu_worker.layers.quantized_linear import QuantizedLinear

AUTO_SHARE = 0.3
"""Of the memory that is left for pages, what ``auto`` spends on copies at most."""


def keep_float_copies(linears: Iterable[QuantizedLinear], mode: str, spare_bytes: int) -> int:
    """Keep copies of all or none, as ``--quantization-prefill`` says: auto, copy or codes. Returns their bytes."""
    products = [product for linear in linears for product in linear.products() if isinstance(product, KeepsFloats)]
    num_bytes = sum(product.num_float_bytes for product in products)
    if mode == "codes" or (mode == "auto" and num_bytes > AUTO_SHARE * spare_bytes):
        return 0
    for product in products:
        product.keep_floats()
    return num_bytes
