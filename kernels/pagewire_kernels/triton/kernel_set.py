"""The Triton set behind the one kernel interface.

Decides only which kernels a step needs, from the batch's host-side fields. Nothing here or below reads a tensor's
contents on the host, so a step can be captured in a CUDA graph.
"""

import torch

from pagewire_kernels.interface import AttentionBatch, QkNorm, SamplingBatch
from pagewire_kernels.triton.paged_chunk import paged_chunk
from pagewire_kernels.triton.paged_decode import paged_decode
from pagewire_kernels.triton.rms_norm import add_rms_norm, rms_norm
from pagewire_kernels.triton.rotary_kv_write import rotary_kv_write
from pagewire_kernels.triton.sampler import sample
from pagewire_kernels.triton.silu_mul import silu_mul


class TritonKernels:
    """Kernels for CUDA and ROCm devices; also runs on CPU tensors in Triton's interpreter (tests)."""

    name = "triton"

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
            paged_decode(q, kv_pages, batch, scale, out)
        if batch.kv_lens.shape[0] > batch.num_decodes:
            paged_chunk(q, kv_pages, batch, scale, out)
        return out

    def sample(self, logits: torch.Tensor, batch: SamplingBatch) -> tuple[torch.Tensor, torch.Tensor]:
        return sample(logits, batch)
