"""The CPU set behind the one kernel interface.

Keeps the plan of the last step it saw (``step_plan.py``), so that the layers of a step share everything that does not
depend on their contents, and one scratch buffer for gathered pages that layers and steps share. Not thread-safe.
"""

import torch
import torch.nn.functional as F

from pagewire_kernels.cpu.attention import attend
from pagewire_kernels.cpu.choices import forbid, settle
from pagewire_kernels.cpu.sampler import sample
from pagewire_kernels.cpu.step_plan import StepPlan
from pagewire_kernels.interface import AttentionBatch, QkNorm, QuantizedProduct, SamplingBatch
from pagewire_kernels.quantized import QuantizedWeight
from pagewire_kernels.reference import DequantizedProduct

_MANY_TOKENS = 64
"""Tokens from which norms in place beat F.rms_norm, which makes a new tensor at each of its steps (512 tokens of 576:
0.50 -> 0.15 ms; below, its fewer calls win)."""


class CpuKernels:
    """Kernels for CPU tensors. An AttentionBatch's tensors must not change once a kernel has seen it."""

    name = "cpu"

    def __init__(self) -> None:
        self._plan: StepPlan | None = None
        self._scratch = torch.empty(0)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        if x.shape[0] < _MANY_TOKENS:
            return F.rms_norm(x, weight.shape, weight, eps)
        wide = x.to(torch.float32, copy=True)
        norms = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        inverse = norms.square_().div_(x.shape[1]).add_(eps).rsqrt_()
        return wide.mul_(inverse).mul_(weight.float()).to(x.dtype)

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return self.rms_norm(residual.add_(x), weight, eps)

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return F.linear(x, weight, bias)

    def takes_quantized(self, bits: int, group_size: int, has_offsets: bool, dtype: torch.dtype) -> bool:
        return False

    def prepare_quantized(self, weight: QuantizedWeight, dtype: torch.dtype) -> QuantizedProduct:
        return DequantizedProduct(weight, dtype)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        size = gate_up.shape[1] // 2
        return F.silu(gate_up[:, :size]).mul_(gate_up[:, size:])

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
        """As in the interface; qkv is overwritten and the queries returned are a view of it."""
        plan = self._plan_of(batch, kv_pages)
        head_dim = kv_pages.shape[4]
        heads = qkv.view(qkv.shape[0], num_heads + 2 * num_kv_heads, head_dim)
        if norm is not None:
            self._norm_heads(heads, num_heads, num_kv_heads, norm)
        rotated = heads[:, : num_heads + num_kv_heads]
        cos, signed_sin = plan.angles(batch, cos_sin)
        wide = rotated.float()
        # cat, not roll: for a chunk of 512 tokens roll takes longer than all the rest together.
        swapped = torch.cat((wide[..., head_dim // 2 :], wide[..., : head_dim // 2]), dim=-1)
        rotated.copy_((wide * cos).addcmul_(swapped, signed_sin))
        written = heads[:, num_heads:]
        if plan.written_tokens is not None:
            written = written[plan.written_tokens]
        kv_pages.view(-1, head_dim).index_put_((plan.write_rows,), written)
        return heads[:, :num_heads]

    def _norm_heads(self, heads: torch.Tensor, num_heads: int, num_kv_heads: int, norm: QkNorm) -> None:
        """heads [T, num_heads + 2 * num_kv_heads, head_dim], queries and keys normed in place."""
        queries, keys = heads[:, :num_heads], heads[:, num_heads : num_heads + num_kv_heads]
        for part, weight in ((queries, norm.query_weight), (keys, norm.key_weight)):
            part.copy_(self.rms_norm(part.reshape(-1, part.shape[2]), weight, norm.eps).view(part.shape))

    def paged_attention(
        self, q: torch.Tensor, kv_pages: torch.Tensor, batch: AttentionBatch, scale: float
    ) -> torch.Tensor:
        plan = self._plan_of(batch, kv_pages)
        return attend(q, kv_pages, plan, scale, self._scratch_of(plan.scratch, kv_pages.dtype))

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

    def _scratch_of(self, num_elements: int, dtype: torch.dtype) -> torch.Tensor:
        if self._scratch.dtype != dtype or self._scratch.numel() < num_elements:
            self._scratch = torch.empty(num_elements, dtype=dtype)
        return self._scratch

    def _plan_of(self, batch: AttentionBatch, kv_pages: torch.Tensor) -> StepPlan:
        plan = self._plan
        if plan is None or plan.batch is not batch or plan.page_shape != kv_pages.shape[2:]:
            plan = self._plan = StepPlan(batch, kv_pages)
        return plan
