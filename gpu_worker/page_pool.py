"""The tensors that hold keys and values, and how many pages they have.

One tensor a layer, ``[num_pages, 2, num_kv_heads, page_size, head_dim]``. Who owns which page is the scheduler's
business; here they are only memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gpu_worker.errors import PagePoolTooSmallError
from gpu_worker.model_config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PageShape:
    """Size of one page over all layers."""

    num_layers: int
    num_kv_heads: int
    page_size: int
    head_dim: int
    dtype: torch.dtype

    @classmethod
    def of(cls, config: ModelConfig, page_size: int, dtype: torch.dtype) -> "PageShape":
        return cls(
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            page_size=page_size,
            head_dim=config.head_dim,
            dtype=dtype,
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of a page, keys and values of all layers."""
        elements = 2 * self.num_layers * self.num_kv_heads * self.page_size * self.head_dim
        return elements * self.dtype.itemsize


def count_pages(available_bytes: int, shape: PageShape, *, max_model_len: int, max_num_seqs: int) -> int:
    """Pages that fit, at most what ``max_num_seqs`` requests of ``max_model_len`` tokens use.

    Raises PagePoolTooSmallError if not even one request of full length fits: such a pool could never serve the
    advertised length.
    """
    per_request = -(-max_model_len // shape.page_size)
    fitting = max(0, available_bytes) // shape.num_bytes
    if fitting < per_request:
        raise PagePoolTooSmallError(
            f"the page pool is too small: one request of max_model_len {max_model_len} needs {per_request} pages = "
            f"{per_request * shape.num_bytes:,} bytes, available are {max(0, available_bytes):,} = {fitting} pages; "
            "lower --max-model-len or raise --kv-cache-memory-bytes or --gpu-memory-utilization"
        )
    return min(fitting, per_request * max_num_seqs)


def allocate_pages(num_pages: int, shape: PageShape, device: torch.device) -> Sequence[torch.Tensor]:
    """One tensor a layer, uninitialised: no slot is read before it is written, and untouched pages take no memory.

    Raises PagePoolTooSmallError if there is not so much memory.
    """
    size = (num_pages, 2, shape.num_kv_heads, shape.page_size, shape.head_dim)
    try:
        return [torch.empty(size, dtype=shape.dtype, device=device) for _ in range(shape.num_layers)]
    except (RuntimeError, MemoryError):  # on a CPU torch raises plain ones
        raise PagePoolTooSmallError(
            f"the page pool cannot be allocated: {num_pages} pages = {num_pages * shape.num_bytes >> 20} MiB; "
            "lower --kv-cache-memory-bytes, --gpu-memory-utilization or --max-num-seqs"
        ) from None


def copy_pages(kv_pages: Sequence[torch.Tensor], sources: torch.Tensor, destinations: torch.Tensor) -> None:
    """Copy whole pages in every layer; sources and destinations int64 and disjoint."""
    for layer in kv_pages:
        content = layer.view(torch.uint8) if layer.itemsize == 1 else layer  # few operations know float8
        content[destinations] = content[sources]
