"""The CPU set behind the one kernel interface.

Keeps the plan of the last step it saw (``step_plan.py``), so that the layers of a step share everything that does not
depend on their contents, and one scratch buffer for gathered pages that layers and steps share. Not thread-safe.
"""

import torch
import torch.nn.functional as F

from pagewire_kernels.cpu.attention import attend
from pagewire_kernels.cpu.sampler import sample
from pagewire_kernels.cpu.step_plan import StepPlan
from pagewire_kernels.interface import AttentionBatch, SamplingBatch


class CpuKernels:
    """Kernels for CPU tensors. An AttentionBatch's tensors must not change once a kernel has seen it."""

    name = "cpu"

    def __init__(self) -> None:
        self._plan: StepPlan | None = None
        self._scratch = torch.empty(0)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, eps)

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return F.rms_norm(residual.add_(x), weight.shape, weight, eps)

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
    ) -> torch.Tensor:
        """As in the interface; qkv is overwritten and the queries returned are a view of it."""
        plan = self._plan_of(batch, kv_pages)
        head_dim = kv_pages.shape[4]
        heads = qkv.view(qkv.shape[0], num_heads + 2 * num_kv_heads, head_dim)
        rotated = heads[:, : num_heads + num_kv_heads]
        cos, signed_sin = plan.angles(batch, cos_sin)
        wide = rotated.float()
        rotated.copy_((wide * cos).addcmul_(wide.roll(head_dim // 2, -1), signed_sin))
        written = heads[:, num_heads:]
        if plan.written_tokens is not None:
            written = written[plan.written_tokens]
        kv_pages.view(-1, head_dim).index_put_((plan.write_rows,), written)
        return heads[:, :num_heads]

    def paged_attention(
        self, q: torch.Tensor, kv_pages: torch.Tensor, batch: AttentionBatch, scale: float
    ) -> torch.Tensor:
        plan = self._plan_of(batch, kv_pages)
        if self._scratch.dtype != kv_pages.dtype or self._scratch.numel() < plan.scratch_elements:
            self._scratch = torch.empty(plan.scratch_elements, dtype=kv_pages.dtype)
        return attend(q, kv_pages, plan, scale, self._scratch)

    def sample(self, logits: torch.Tensor, batch: SamplingBatch) -> tuple[torch.Tensor, torch.Tensor]:
        return sample(logits, batch)

    def _plan_of(self, batch: AttentionBatch, kv_pages: torch.Tensor) -> StepPlan:
        plan = self._plan
        if plan is None or plan.batch is not batch or plan.page_shape != kv_pages.shape[2:]:
            plan = self._plan = StepPlan(batch, kv_pages)
        return plan
