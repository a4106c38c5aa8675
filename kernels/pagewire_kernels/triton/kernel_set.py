"""The Triton set behind the one kernel interface.

Decides only which kernels a step needs, from the batch's host-side fields. Nothing here or below reads a tensor's
contents on the host, so a step can be captured in a CUDA graph. Keeps the counters by which split work finds its last
part; they are zero between kernels, and one stream runs a device's kernels.
"""

import torch

from pagewire_kernels.interface import AttentionBatch, QkNorm, QuantizedProduct, SamplingBatch
from pagewire_kernels.quantized import QuantizedWeight
from pagewire_kernels.reference import DequantizedProduct
from pagewire_kernels.triton import skinny_linear, tiled_linear
from pagewire_kernels.triton.choices import forbid, settle
from pagewire_kernels.triton.dense_linear import dense_linear
from pagewire_kernels.triton.float8_linear import float8_product
from pagewire_kernels.triton.paged_chunk import paged_chunk
from pagewire_kernels.triton.paged_decode import paged_decode
from pagewire_kernels.triton.quantized_linear import PackedProduct, Scratch
from pagewire_kernels.triton.rms_norm import add_rms_norm, rms_norm
from pagewire_kernels.triton.rotary_kv_write import rotary_kv_write
from pagewire_kernels.triton.sampler import sample
from pagewire_kernels.triton.silu_mul import silu_mul

_NUM_COUNTERS = 16384


class TritonKernels:
    """Kernels for CUDA and ROCm devices; also runs on CPU tensors in Triton's interpreter (tests)."""

    name = "triton"

    def __init__(self) -> None:
        self._counters = torch.empty(0)
        self._scratch = Scratch()

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return rms_norm(x, weight, eps)

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return add_rms_norm(x, residual, weight, eps)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return silu_mul(gate_up)

    def rotary_kv_write(
        self,
        qkv: torch.Tensor,
        cos_sin: torch.Tensor,
        kv_pages: torch.Tensor,
        batch: AttentionBatch,
        num_heads: int,
        num_kv_heads: int,
        norm: QkNorm | None = None,
    ) -> torch.Tensor:
        return rotary_kv_write(qkv, cos_sin, kv_pages, batch, num_heads, num_kv_heads, norm)

    def paged_attention(
        self, q: torch.Tensor, kv_pages: torch.Tensor, batch: AttentionBatch, scale: float
    ) -> torch.Tensor:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if batch.num_decodes > 0:
            paged_decode(q, kv_pages, batch, scale, out, self._zeros(batch.num_decodes * kv_pages.shape[2], q.device))
        if batch.kv_lens.shape[0] > batch.num_decodes:
            paged_chunk(q, kv_pages, batch, scale, out)
        return out

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if tiled_linear.suits(x, weight):
            return tiled_linear.tiled_linear(x, weight, bias, self._zeros(_NUM_COUNTERS, x.device))
        if skinny_linear.suits(x, weight):
            return skinny_linear.skinny_linear(x, weight, bias, self._zeros(skinny_linear.MAX_COUNTERS, x.device))
        return dense_linear(x, weight, bias)

    def takes_quantized(self, bits: int, group_size: int, has_offsets: bool, dtype: torch.dtype) -> bool:
        return False

    def prepare_quantized(self, weight: QuantizedWeight, dtype: torch.dtype) -> QuantizedProduct:
        """Packed, or float8 as it is, where that is possible; else as floats."""
        try:
            if weight.is_float8:
                return float8_product(weight, dtype)
            return PackedProduct(weight, dtype, self._zeros(_NUM_COUNTERS, weight.codes.device), self._scratch)
        except ValueError:
            return DequantizedProduct(weight, dtype)

    def _zeros(self, count: int, device: torch.device) -> torch.Tensor:
        if len(self._counters) < count or self._counters.device != device:
            self._counters = torch.zeros(max(count, _NUM_COUNTERS), dtype=torch.int32, device=device)
        return self._counters

    def sample(self, logits: torch.Tensor, batch: SamplingBatch) -> tuple[torch.Tensor, torch.Tensor]:
        return sample(logits, batch)

    def forbid(self, logits: torch.Tensor, places: torch.Tensor, words: torch.Tensor) -> None:
        forbid(logits, places, words)

    def settle(
        self,
        logits: torch.Tensor,
        token_ids: torch.Tensor,
        statuses: torch.Tensor,
        faults: torch.Tensor,
        places: torch.Tensor,
        packed: torch.Tensor,
    ) -> None:
        settle(logits, token_ids, statuses, faults, places, packed)
