"""The definition of correct: every operation in plain torch, one sequence and one row at a time, float32 inside.

Slow on purpose. Both other kernel sets are tested against this one; it shares with them only the page layout, the noise
generator (``philox.py``) and the meaning of truncation (``truncation.py``).
"""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F

from pagewire_kernels.interface import MAX_FP8, AttentionBatch, QkNorm, SamplingBatch
from pagewire_kernels.philox import gumbel, noise_words
from pagewire_kernels.quantized import QuantizedWeight
from pagewire_kernels.truncation import mass_limit, masses, min_p_threshold, scale_logits


class ReferenceKernels:
    """Plain torch on any device. Outputs of padded tokens and sequences (kv_len 0) are zero."""

    name = "reference"

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        residual.add_(x)
        return self.rms_norm(residual, weight, eps)

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return F.linear(x, weight, bias)

    def takes_quantized(self, bits: int, group_size: int, has_offsets: bool, dtype: torch.dtype) -> bool:
        return False

    def prepare_quantized(self, weight: QuantizedWeight, dtype: torch.dtype) -> "DequantizedProduct":
        return DequantizedProduct(weight, dtype)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.float().chunk(2, dim=-1)
        return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)

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
        _, _, _, page_size, head_dim = kv_pages.shape
        heads = qkv.view(qkv.shape[0], -1, head_dim)
        q, k, v = heads.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
        if norm is not None:
            q, k = self.rms_norm(q, norm.query_weight, norm.eps), self.rms_norm(k, norm.key_weight, norm.eps)
        cos, sin = cos_sin[batch.positions.long()][:, None].chunk(2, dim=-1)
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        for token, slot in enumerate(batch.slots.tolist()):
            if slot >= 0:
                kv_pages[slot // page_size, 0, :, slot % page_size] = _stored(k[token], kv_pages.dtype)
                kv_pages[slot // page_size, 1, :, slot % page_size] = _stored(v[token], kv_pages.dtype)
        return q

    def paged_attention(
        self, q: torch.Tensor, kv_pages: torch.Tensor, batch: AttentionBatch, scale: float
    ) -> torch.Tensor:
        out = torch.zeros_like(q, memory_format=torch.contiguous_format)
        starts, kv_lens = batch.query_starts.tolist(), batch.kv_lens.tolist()
        for sequence, kv_len in enumerate(kv_lens):
            first, last = starts[sequence], starts[sequence + 1]
            if kv_len > 0 and last > first:
                keys, values = _sequence_kv(kv_pages, batch.page_tables[sequence], kv_len)
                out[first:last] = _causal_attention(q[first:last], keys, values, scale)
        return out

    def sample(self, logits: torch.Tensor, batch: SamplingBatch) -> tuple[torch.Tensor, torch.Tensor]:
        token_ids, status = [], []
        for row in range(logits.shape[0]):
            is_nan = bool(logits[row].isnan().any())
            token_ids.append(0 if is_nan else _sample_row(logits[row], batch, row))
            status.append(int(is_nan))
        device = logits.device
        return (
            torch.tensor(token_ids, dtype=torch.int32, device=device),
            torch.tensor(status, dtype=torch.uint8, device=device),
        )

    def forbid(self, logits: torch.Tensor, places: torch.Tensor, words: torch.Tensor) -> None:
        for place, mask in zip(places.tolist(), words.tolist(), strict=True):
            ruled_out = [token for token in range(logits.shape[1]) if not mask[token // 32] >> token % 32 & 1]
            logits[place, ruled_out] += float("-inf")

    def settle(
        self,
        logits: torch.Tensor,
        token_ids: torch.Tensor,
        statuses: torch.Tensor,
        faults: torch.Tensor,
        places: torch.Tensor,
        packed: torch.Tensor,
    ) -> None:
        for row, place in enumerate(places.tolist()):
            is_lost = not statuses[row] and bool((logits[row] == float("-inf")).all())
            status = int(faults[row] if is_lost else statuses[row])
            packed[0, place], packed[1, place] = 0 if status else int(token_ids[row]), status


class DequantizedProduct:
    """Holds the weight as floats."""

    def __init__(self, weight: QuantizedWeight, dtype: torch.dtype) -> None:
        self.weight = dequantize(weight, dtype)
        self.num_bytes = self.weight.nbytes

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return F.linear(x, self.weight, bias)


def dequantize(weight: QuantizedWeight, dtype: torch.dtype) -> torch.Tensor:
    """[out, in] in the inputs' order: computed and rounded in the scales' dtype, then converted to ``dtype``."""
    groups = torch.arange(weight.shape[1], device=weight.codes.device) // weight.group_size
    scales = weight.scales[:, groups]
    if weight.offsets is not None:
        values = weight.codes.to(scales.dtype) * scales + weight.offsets[:, groups]
    elif weight.zeros is not None:
        values = (weight.codes.short() - weight.zeros[:, groups].short()).to(scales.dtype) * scales
    else:
        values = weight.codes.to(scales.dtype) * scales
    if weight.perm is not None:
        values = torch.empty_like(values).index_copy_(1, weight.perm, values)
    return values.to(dtype)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [T, heads, D]; cos, sin float32 [T, 1, D / 2]: the halves of D are the pairs' two parts."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def _stored(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Keys or values as pages hold them."""
    return (x.float().clamp(-MAX_FP8, MAX_FP8) if dtype == torch.float8_e4m3fn else x).to(dtype)


def _sequence_kv(kv_pages: torch.Tensor, page_table: torch.Tensor, kv_len: int) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 keys and values [kv_len, num_kv_heads, head_dim] of one sequence."""
    page_size = kv_pages.shape[3]
    positions = torch.arange(kv_len, device=kv_pages.device)
    page_ids = page_table[: -(-kv_len // page_size)].long()[positions // page_size]
    offsets = positions % page_size
    pages = kv_pages.float() if kv_pages.dtype == torch.float8_e4m3fn else kv_pages  # few operations know float8
    return pages[page_ids, 0, :, offsets].float(), pages[page_ids, 1, :, offsets].float()


def _causal_attention(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    """q [n, H, D] are the last n of the L tokens in keys, values [L, Hkv, D]."""
    query_len, num_heads, _ = q.shape
    kv_len, num_kv_heads, _ = keys.shape
    keys = keys.repeat_interleave(num_heads // num_kv_heads, dim=1)
    values = values.repeat_interleave(num_heads // num_kv_heads, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q.float(), keys) * scale
    query_positions = torch.arange(kv_len - query_len, kv_len, device=q.device)
    hidden = torch.arange(kv_len, device=q.device)[None, :] > query_positions[:, None]
    weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)


def _sample_row(logits: torch.Tensor, batch: SamplingBatch, row: int) -> int:
    temperature = float(batch.temperature[row])
    if temperature == 0.0:
        return int(_first_argmax(logits.float()))
    threshold = truncation_threshold(
        logits.float(), temperature, int(batch.top_k[row]), float(batch.top_p[row]), float(batch.min_p[row])
    )
    token_ids = torch.arange(logits.shape[0], device=logits.device)
    words = noise_words(token_ids, batch.seeds[row], batch.output_positions[row].long(), batch.output_index[row].long())
    noisy = scale_logits(logits, temperature) + gumbel(words)
    noisy = torch.where(logits >= threshold, noisy, float("-inf"))
    return int(_first_argmax(noisy))


def _first_argmax(values: torch.Tensor) -> torch.Tensor:
    """Lowest index of the maximum, which torch.argmax does not promise on every device."""
    return (values == values.max()).nonzero()[0, 0]


def adjusted_logits(
    logits: torch.Tensor,
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    repetition_penalty: float = 1.0,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
    bias: Mapping[int, float] | None = None,
    allowed_token_ids: Sequence[int] = (),
    bad_words: Sequence[Sequence[int]] = (),
    min_tokens: int = 0,
    stop_token_ids: Sequence[int] = (),
) -> torch.Tensor:
    """The logits [V] of one row that temperature and truncation then see, in float32.

    The order: a repetition penalty for each distinct token of prompt and output, a frequency penalty for each
    occurrence in the output, a presence penalty for each distinct token of it; biases; then -inf for tokens that are
    not allowed, that would complete a bad word begun in the output, and for stop tokens before ``min_tokens``.
    """
    adjusted = logits.float().clone()
    for token_id in {*prompt, *output}:
        if adjusted[token_id] > 0:
            adjusted[token_id] /= repetition_penalty
        else:
            adjusted[token_id] *= repetition_penalty
    for token_id in set(output):
        adjusted[token_id] -= frequency_penalty * output.count(token_id)
        adjusted[token_id] -= presence_penalty
    for token_id, added in (bias or {}).items():
        adjusted[token_id] += added
    forbidden = {*range(len(logits))} - {*allowed_token_ids} if allowed_token_ids else set()
    forbidden |= {word[-1] for word in bad_words if [*output[len(output) - len(word) + 1 :]] == [*word[:-1]]}
    if len(output) < min_tokens:
        forbidden |= {*stop_token_ids}
    adjusted[sorted(forbidden)] = float("-inf")
    return adjusted


def truncation_threshold(
    logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float
) -> torch.Tensor:
    """Smallest of the float32 logits [V] that min_p, top_k and top_p keep, in that order."""
    kept = torch.sort(logits, descending=True).values
    peak = kept[0]
    if min_p > 0.0:
        kept = kept[kept >= min_p_threshold(peak, temperature, min_p)]
    if 0 < top_k < kept.shape[0]:
        kept = kept[kept >= kept[top_k - 1]]
    if top_p < 1.0:
        mass = masses(kept, peak, temperature)
        above = torch.cumsum(mass, dim=0) - mass
        kept = kept[kept >= kept[above < mass_limit(mass.sum(), top_p)][-1]]
    return kept[-1]
