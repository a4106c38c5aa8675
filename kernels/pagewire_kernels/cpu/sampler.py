"""Sampling on a CPU, equal to the reference but without sorting a vocabulary or drawing noise for all of it.

No noise exceeds MAX_GUMBEL, so once the noise of the most likely tokens is known, a token can only win if its scaled
logit lies within MAX_GUMBEL of the best score so far. Those tokens are the only ones whose noise is computed.
"""

import torch

from pagewire_kernels.interface import SamplingBatch
from pagewire_kernels.philox import MAX_GUMBEL, gumbel, noise_words
from pagewire_kernels.truncation import mass_limit, masses, scale_logits

_PROBED_TOKENS = 32
"""Most likely tokens whose noise is drawn first to bound the winner's score."""
_SORTED_TOKENS = 1024
"""Most likely tokens in which a top_p border is looked for before the whole row is sorted."""


def sample(logits: torch.Tensor, batch: SamplingBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """As in the interface: logits [R, V] -> (token ids int32 [R], status uint8 [R])."""
    # max propagates NaN, so the status needs no pass of its own. torch's CPU argmax returns the first maximum.
    peaks, token_ids = logits.max(dim=1) if logits.shape[0] else (logits.new_empty(0), torch.empty(0))
    is_nan = peaks.isnan()
    token_ids = token_ids.to(torch.int32)
    if not batch.all_greedy:
        random_rows = ((batch.temperature > 0.0) & ~is_nan).nonzero()[:, 0].tolist()
        for row in random_rows:
            token_ids[row] = _sample_row(logits[row], batch, row)
    return token_ids, is_nan.to(torch.uint8)


def _sample_row(logits: torch.Tensor, batch: SamplingBatch, row: int) -> torch.Tensor:
    scaled = scale_logits(logits, float(batch.temperature[row]))
    threshold = scaled.new_tensor(float("-inf"))
    if batch.any_truncation:
        threshold = truncation_threshold(
            scaled, int(batch.top_k[row]), float(batch.top_p[row]), float(batch.min_p[row])
        )
    key = int(batch.seeds[row]), int(batch.output_positions[row]), int(batch.output_index[row])
    probed = torch.topk(scaled, min(_PROBED_TOKENS, scaled.shape[0])).indices
    probed = probed[scaled[probed] >= threshold]
    best = _noisy(scaled, probed, key).max()
    # The bound is lowered by a few roundings of its own size, which only admits more tokens.
    bound = torch.where(best.isinf(), best, best - MAX_GUMBEL - best.abs() * 1e-6)
    candidates = (scaled >= torch.maximum(threshold, bound)).nonzero()[:, 0]
    noisy = _noisy(scaled, candidates, key)
    return candidates[(noisy == noisy.max()).nonzero()[0, 0]]


def _noisy(scaled: torch.Tensor, token_ids: torch.Tensor, key: tuple[int, int, int]) -> torch.Tensor:
    return scaled[token_ids] + gumbel(noise_words(token_ids, *key))


def truncation_threshold(scaled: torch.Tensor, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """Smallest kept value of ``scaled`` [V]; ``truncation.py`` defines what is kept."""
    peak = scaled.max()
    threshold = scaled.new_tensor(float("-inf"))
    if min_p > 0.0:
        threshold = peak + torch.log(scaled.new_tensor(min_p))
    if 0 < top_k < scaled.shape[0]:
        threshold = torch.maximum(threshold, torch.topk(scaled, top_k).values[-1])
    if top_p < 1.0:
        threshold = _top_p_threshold(scaled[scaled >= threshold], peak, top_p)
    return threshold


def _top_p_threshold(kept: torch.Tensor, peak: torch.Tensor, top_p: float) -> torch.Tensor:
    limit = mass_limit(masses(kept, peak).sum(), top_p)
    for count in (min(_SORTED_TOKENS, kept.shape[0]), kept.shape[0]):
        likeliest = torch.topk(kept, count).values
        mass = masses(likeliest, peak)
        above = torch.cumsum(mass, dim=0) - mass
        inside = likeliest[above < limit]
        if inside.shape[0] < count:
            break
    return inside[-1]
