# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: N803
"""Device functions both attention kernels share: where a tile of keys lies, and one step of the online softmax.

Softmax runs in base 2 with scale * log2(e) folded into the scores, and starts from the finite -1e30 rather than -inf,
so that a row that has seen no key yet never computes inf - inf.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-1.0e30)


@triton.jit
def page_rows(
    page_table_ptr,
    first_token,
    end_token,
    kv_head,
    NUM_KV_HEADS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    """int64 [TILE]: key row (in units of HEAD_DIM elements) of each token from first_token on; its value row lies
    NUM_KV_HEADS * PAGE_SIZE further. Reads the page table only below end_token; rows past it are for masked loads."""
    tokens = first_token + tl.arange(0, TILE)
    if PAGE_SIZE % TILE == 0:
        page_id = tl.load(page_table_ptr + first_token // PAGE_SIZE).to(tl.int64)
        rows = (page_id * (2 * NUM_KV_HEADS) + kv_head) * PAGE_SIZE + tokens % PAGE_SIZE
    else:
        page_ids = tl.load(page_table_ptr + tokens // PAGE_SIZE, mask=tokens < end_token, other=0).to(tl.int64)
        rows = (page_ids * (2 * NUM_KV_HEADS) + kv_head) * PAGE_SIZE + tokens % PAGE_SIZE
    return rows


@triton.jit
def softmax_step(scores, values, peak, total, weighted):
    """Folds one tile of scores [rows, TILE] and values [TILE, HEAD_DIM] into the running softmax."""
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    rescale = tl.exp2(peak - new_peak)
    weights = tl.exp2(scores - new_peak[:, None])
    total = total * rescale + tl.sum(weights, 1)
    weighted = weighted * rescale[:, None]
    weighted = tl.dot(weights.to(values.dtype), values, weighted, input_precision="ieee")
    return new_peak, total, weighted
