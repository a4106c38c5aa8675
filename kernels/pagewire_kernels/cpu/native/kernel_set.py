"""The CPU set with its hot loops in C: pages are read where they lie, and a layer's small operations are one call each.

Measured on two cores of a Zen 4 (SmolLM2-135M, bfloat16) against the torch operations of the class it extends: see
docs/benchmarks.md. float16 and unusual head sizes go to those operations.
"""

import ctypes
from collections.abc import Callable

import torch

from pagewire_kernels.cpu.kernel_set import CpuKernels
from pagewire_kernels.cpu.native.build import load_library
from pagewire_kernels.interface import AttentionBatch

_SUFFIXES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
_MAX_ROWS, _MAX_DIM = 64, 256
"""As in kernels.c."""
_CHUNK_ROWS = 48
"""Query rows of a tile of a chunk: enough to share the conversion of its keys, few enough to stay in the cache."""

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
        self._items_of: tuple[AttentionBatch, int, torch.Tensor, bool] | None = None

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        if x.dtype not in _SUFFIXES or not x.is_contiguous():
            return super().rms_norm(x, weight, eps)
        return self._norm(None, x, weight, eps)

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        if x.dtype not in _SUFFIXES or not (x.is_contiguous() and residual.is_contiguous()):
            return super().add_rms_norm(x, residual, weight, eps)
        return self._norm(x.data_ptr(), residual, weight, eps)

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
    ) -> torch.Tensor:
        """As in the interface; qkv is overwritten and the queries returned are a view of it."""
        if qkv.dtype not in _SUFFIXES or qkv.dtype != kv_pages.dtype or not qkv.is_contiguous():
            return super().rotary_kv_write(qkv, cos_sin, kv_pages, batch, num_heads, num_kv_heads)
        page_size, head_dim = kv_pages.shape[3:]
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
        items, covers_all = self._items(batch, group, num_tokens)
        make = torch.empty if covers_all else torch.zeros
        out = make(num_tokens, num_heads, head_dim, dtype=q.dtype)
        tables = batch.page_tables
        self._functions["paged_attention", q.dtype](
            *(q.data_ptr(), q.stride(0), kv_pages.data_ptr(), tables.data_ptr(), tables.stride(0)),
            *(items.data_ptr(), len(items), num_kv_heads, group, head_dim, page_size, scale, out.data_ptr()),
        )
        return out

    def _norm(self, x: int | None, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        out = torch.empty_like(residual)
        self._functions["add_rms_norm", residual.dtype](
            x, residual.data_ptr(), weight.data_ptr(), eps, residual.shape[0], residual.shape[1], out.data_ptr()
        )
        return out

    def _items(self, batch: AttentionBatch, group: int, num_tokens: int) -> tuple[torch.Tensor, bool]:
        """Tiles of queries, int32 [N, 4] (kernels.inc says of what), and whether they cover all tokens. Made once a
        step."""
        kept = self._items_of
        if kept is not None and kept[0] is batch and kept[1] == group:
            return kept[2], kept[3]
        starts, kv_lens = batch.query_starts.tolist(), batch.kv_lens.tolist()
        tile = max(1, _CHUNK_ROWS // group)
        items = [
            (sequence, first, min(tile, end - first), kv_len - end + first + 1)
            for sequence, (start, end, kv_len) in enumerate(zip(starts, starts[1:], kv_lens, strict=False))
            if kv_len > 0
            for first in range(start, end, tile)
        ]
        # The longest first, so that the last ones to finish are short.
        items.sort(key=lambda item: -item[2] * item[3])
        covered = sum(item[2] for item in items)
        column = torch.tensor(items, dtype=torch.int32).view(-1, 4)
        self._items_of = (batch, group, column, covered == num_tokens)
        return column, covered == num_tokens


def _function(library: ctypes.CDLL, name: str, arguments: tuple[type, ...]) -> Callable[..., None]:
    function = library[name]
    function.argtypes, function.restype = arguments, None
    return function
