"""Paged attention on a CPU: gather pages into scratch, then attend to whole groups of sequences at once.

The query heads that share a key/value head become query rows, so keys and values are never repeated and every gathered
byte is read once. Chunks and small groups go through torch's scaled dot product attention; that one multiplies one head
of one sequence at a time, which for three query rows costs more than the product, so larger groups of decodes take
batched products instead (64 sequences of 192 tokens in bfloat16: 2.6 -> 1.0 ms). Sums and softmax are float32 in both.
"""

import torch
import torch.nn.functional as F

from pagewire_kernels.cpu.step_plan import Chunk, DecodeGroup, StepPlan


def attend(
    q: torch.Tensor, kv_pages: torch.Tensor, plan: StepPlan, scale: float, scratch: torch.Tensor
) -> torch.Tensor:
    """q [T, H, D] (last two dimensions contiguous) -> [T, H, D]. ``scratch`` is flat, of the pages' dtype and big
    enough."""
    num_tokens, num_heads, head_dim = q.shape
    rows = kv_pages.view(-1, plan.page_size * head_dim)
    grouped = q.view(num_tokens, plan.num_kv_heads, num_heads // plan.num_kv_heads, head_dim)
    out = torch.empty(grouped.shape, dtype=q.dtype)
    if plan.has_padding(num_tokens):
        out.zero_()
    for group in plan.groups:
        out[group.tokens] = _attend_group(grouped[group.tokens], rows, group, plan, scale, scratch)
    attend_chunks(grouped, rows, plan, scale, scratch, out)
    return out.view(num_tokens, num_heads, head_dim)


def attend_chunks(
    grouped: torch.Tensor,
    rows: torch.Tensor,
    plan: StepPlan,
    scale: float,
    scratch: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Writes the chunks' rows of out. grouped and out [T, num_kv_heads, group, D], rows the pages as rows of
    page_size * D."""
    for chunk in plan.chunks(grouped.shape[2]):
        _attend_chunk(grouped, rows, chunk, plan, scale, scratch, out)


def _gathered(rows: torch.Tensor, gather_rows: torch.Tensor, scratch: torch.Tensor) -> torch.Tensor:
    """The chosen rows, copied to the front of the scratch buffer."""
    target = scratch[: gather_rows.numel() * rows.shape[1]].view(-1, rows.shape[1])
    return torch.index_select(rows, 0, gather_rows, out=target)


def _attend_group(
    q: torch.Tensor, rows: torch.Tensor, group: DecodeGroup, plan: StepPlan, scale: float, scratch: torch.Tensor
) -> torch.Tensor:
    """q and the result [sequences, num_kv_heads, group, D]."""
    gathered = _gathered(rows, group.gather_rows, scratch)
    keys, values = gathered.view(2, group.num_sequences, plan.num_kv_heads, -1, plan.head_dim)
    for member, first, last in group.unwritten:
        keys[member, :, first:last].zero_()
        values[member, :, first:last].zero_()
    if not group.is_batched:
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=group.mask, scale=scale)
    if not group.num_shared_pages:
        return _batched_attention(q, keys, values, group.mask, scale)
    shared = _gathered(rows, group.shared_rows, scratch[gathered.numel() :])
    shared_keys, shared_values = shared.view(2, plan.num_kv_heads, -1, plan.head_dim)
    return _sharing_attention(q, shared_keys, shared_values, keys, values, group.mask, scale)


def _batched_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """q [sequences, heads, rows, D], keys and values [sequences, heads, positions, D], mask float32 -> as q."""
    scores = _float32_product(q.flatten(0, 1), keys.flatten(0, 1).transpose(1, 2)).mul_(scale)
    if mask is not None:
        scores.view(*q.shape[:3], -1).add_(mask)
    weights = torch.softmax(scores, dim=-1).to(values.dtype)
    return torch.bmm(weights, values.flatten(0, 1)).view(q.shape)


def _sharing_attention(
    q: torch.Tensor,
    shared_keys: torch.Tensor,
    shared_values: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
) -> torch.Tensor:
    """As batched attention, over the keys and values [heads, positions, D] of a common prefix and then each one's own.

    All sequences' queries are rows of one product with the prefix; one softmax spans both parts.
    """
    num_sequences, num_heads, group_size, head_dim = q.shape
    by_head = q.transpose(0, 1).reshape(num_heads, -1, head_dim)
    of_shared = _float32_product(by_head, shared_keys.transpose(1, 2))
    of_shared = of_shared.view(num_heads, num_sequences, group_size, -1).transpose(0, 1)
    of_own = _float32_product(q.flatten(0, 1), keys.flatten(0, 1).transpose(1, 2)).view(*q.shape[:3], -1)
    scores = torch.cat((of_shared, of_own), dim=-1).mul_(scale)
    num_shared = shared_keys.shape[1]
    if mask is not None:
        scores[..., num_shared:].add_(mask)
    weights = torch.softmax(scores, dim=-1).to(values.dtype)
    of_shared = weights[..., :num_shared].transpose(0, 1).reshape(num_heads, -1, num_shared)
    attended = torch.bmm(of_shared, shared_values).view(num_heads, num_sequences, group_size, head_dim).transpose(0, 1)
    of_own = weights[..., num_shared:].flatten(0, 1)
    return torch.baddbmm(attended.flatten(0, 1), of_own, values.flatten(0, 1)).view(q.shape)


def _float32_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The batched product in float32. torch rounds a bfloat16 product to bfloat16, too coarse for scores; a second
    product yields what the rounding took away (sums are float32 inside), as the same product minus the rounded one."""
    rounded = torch.bmm(a, b)
    if a.dtype == torch.float32:
        return rounded
    return rounded.float().add_(torch.baddbmm(rounded, a, b, beta=-1))


def _attend_chunk(
    grouped: torch.Tensor,
    rows: torch.Tensor,
    chunk: Chunk,
    plan: StepPlan,
    scale: float,
    scratch: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Writes one chunk's rows of out [T, num_kv_heads, group, D]."""
    gathered = _gathered(rows, chunk.gather_rows, scratch)
    keys, values = gathered.view(2, 1, plan.num_kv_heads, chunk.num_pages * plan.page_size, plan.head_dim)
    for first, last, mask in chunk.tiles:
        tokens = slice(chunk.first_token + first, chunk.first_token + last)
        seen = mask.shape[1]
        folded = grouped[tokens].transpose(0, 1).reshape(1, plan.num_kv_heads, -1, plan.head_dim)
        attended = F.scaled_dot_product_attention(
            folded, keys[:, :, :seen], values[:, :, :seen], attn_mask=mask, scale=scale
        )
        out[tokens] = attended.view(plan.num_kv_heads, last - first, -1, plan.head_dim).transpose(0, 1)
