"""The CPU set with its hot loops in C: decodes read pages where they lie, and a layer's small operations are one call
each. Chunks stay with torch, whose products use the processor's bfloat16 instructions (16 chunks of 32 tokens over 512:
13 ms a layer against 20 in C).

Measured on two cores of a Zen 4 (SmolLM2-135M, bfloat16) against the torch operations of the class it extends: see
docs/benchmarks.md. float16 and unusual head sizes go to those operations.
"""

import ctypes
from collections.abc import Callable

import torch

from pagewire_kernels.cpu.attention import attend_chunks
from pagewire_kernels.cpu.kernel_set import CpuKernels
from pagewire_kernels.cpu.native import quantized_linear
from pagewire_kernels.cpu.native.build import load_library
from pagewire_kernels.interface import AttentionBatch, QkNorm, QuantizedProduct
from pagewire_kernels.quantized import QuantizedWeight

_SUFFIXES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
_MAX_ROWS, _MAX_DIM = 64, 256
"""As in kernels.c."""
_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_ARGUMENTS = {
    "add_rms_norm": (_POINTER, _POINTER, _POINTER, _FLOAT, _LONG, _LONG, _POINTER),
    "silu_mul": (_POINTER, _LONG, _LONG, _POINTER),
    "rotary_kv_write": (*(_POINTER,) * 5, _LONG, _INT, _INT, _INT, _INT),
    "paged_attention": (
        *(_POINTER, _LONG, _POINTER, _POINTER, _LONG, _POINTER, _LONG),
        *(_INT, _INT, _INT, _INT, _FLOAT, _POINTER),
    ),
}


class NativeCpuKernels(CpuKernels):
    """As CpuKernels. Constructing it compiles the library if need be; raises BuildError."""

    name = "cpu-native"

    def __init__(self) -> None:
        super().__init__()
        library = load_library()
        self._functions = {
            (name, dtype): _function(library, f"{name}_{suffix}", arguments)
            for name, arguments in _ARGUMENTS.items()
            for dtype, suffix in _SUFFIXES.items()
        }
        self._quantized_linear = None
        if library["quantized_linear_is_built"]():
            self._quantized_linear = _function(library, "quantized_linear", quantized_linear.ARGUMENTS)
        self._items_of: tuple[AttentionBatch, torch.Tensor, bool] | None = None

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        if x.dtype not in _SUFFIXES or not x.is_contiguous():
            return super().rms_norm(x, weight, eps)
        return self._norm(None, x, weight, eps)

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        if x.dtype not in _SUFFIXES or not (x.is_contiguous() and residual.is_contiguous()):
            return super().add_rms_norm(x, residual, weight, eps)
        return self._norm(x.data_ptr(), residual, weight, eps)

    def takes_quantized(self, bits: int, group_size: int, has_offsets: bool, dtype: torch.dtype) -> bool:
        return self._quantized_linear is not None and quantized_linear.suits(group_size, dtype)

    def prepare_quantized(self, weight: QuantizedWeight, dtype: torch.dtype) -> QuantizedProduct:
        suits = quantized_linear.suits(weight.group_size, dtype) and weight.shape[1] % quantized_linear.MIN_INPUTS == 0
        if self._quantized_linear is None or weight.is_float8 or not suits:
            return super().prepare_quantized(weight, dtype)
        return quantized_linear.NativeQuantizedProduct(weight, self._quantized_linear)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        if gate_up.dtype not in _SUFFIXES or not gate_up.is_contiguous():
            return super().silu_mul(gate_up)
        tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(tokens, size)
        self._functions["silu_mul", gate_up.dtype](gate_up.data_ptr(), tokens, size, out.data_ptr())
        return out

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
        if qkv.dtype not in _SUFFIXES or qkv.dtype != kv_pages.dtype or not qkv.is_contiguous():
            return super().rotary_kv_write(qkv, cos_sin, kv_pages, batch, num_heads, num_kv_heads, norm)
        page_size, head_dim = kv_pages.shape[3:]
        if norm is not None:
            self._norm_heads(qkv.view(qkv.shape[0], -1, head_dim), num_heads, num_kv_heads, norm)
        self._functions["rotary_kv_write", qkv.dtype](
            *(qkv.data_ptr(), cos_sin.data_ptr(), batch.positions.data_ptr(), batch.slots.data_ptr()),
            *(kv_pages.data_ptr(), qkv.shape[0], num_heads, num_kv_heads, head_dim, page_size),
        )
        return qkv.view(qkv.shape[0], num_heads + 2 * num_kv_heads, head_dim)[:, :num_heads]

    def paged_attention(
        self, q: torch.Tensor, kv_pages: torch.Tensor, batch: AttentionBatch, scale: float
    ) -> torch.Tensor:
        num_tokens, num_heads, head_dim = q.shape
        num_kv_heads, page_size = kv_pages.shape[2:4]
        group = num_heads // num_kv_heads
        has_layout = q.stride(1) == head_dim and q.stride(2) == 1
        if q.dtype not in _SUFFIXES or q.dtype != kv_pages.dtype or head_dim > _MAX_DIM or group > _MAX_ROWS:
            return super().paged_attention(q, kv_pages, batch, scale)
        if not has_layout:
            q = q.contiguous()
        items, covers_all = self._items(batch, num_tokens)
        make = torch.empty if covers_all else torch.zeros
        out = make(num_tokens, num_kv_heads, group, head_dim, dtype=q.dtype)
        tables = batch.page_tables
        self._functions["paged_attention", q.dtype](
            *(q.data_ptr(), q.stride(0), kv_pages.data_ptr(), tables.data_ptr(), tables.stride(0)),
            *(items.data_ptr(), len(items), num_kv_heads, group, head_dim, page_size, scale, out.data_ptr()),
        )
        if batch.max_query_len > 1:
            plan = self._plan_of(batch, kv_pages)
            scratch = self._scratch_of(plan.chunk_scratch, q.dtype)
            rows = kv_pages.view(-1, page_size * head_dim)
            attend_chunks(q.view(out.shape), rows, plan, scale, scratch, out)
        return out.view(q.shape)

    def _norm(self, x: int | None, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        out = torch.empty_like(residual)
        self._functions["add_rms_norm", residual.dtype](
            x, residual.data_ptr(), weight.data_ptr(), eps, residual.shape[0], residual.shape[1], out.data_ptr()
        )
        return out

    def _items(self, batch: AttentionBatch, num_tokens: int) -> tuple[torch.Tensor, bool]:
        """The decodes, int32 [N, 4] (kernels.inc says of what), and whether no packed token is padding. Made once a
        step."""
        kept = self._items_of
        if kept is not None and kept[0] is batch:
            return kept[1], kept[2]
        kv_lens, starts = batch.kv_lens.tolist(), batch.query_starts.tolist()
        items = [(sequence, sequence, 1, kv_lens[sequence]) for sequence in range(batch.num_decodes)]
        covers_all = starts[-1] == num_tokens and min(kv_lens, default=0) > 0
        # The longest first, so that the last ones to finish are short.
        live = sorted((item for item in items if item[3] > 0), key=lambda item: -item[3])
        self._items_of = (batch, torch.tensor(live, dtype=torch.int32).view(-1, 4), covers_all)
        return self._items_of[1:]


def _function(library: ctypes.CDLL, name: str, arguments: tuple[type, ...]) -> Callable[..., None]:
    function = library[name]
    function.argtypes, function.restype = arguments, None
    return function
