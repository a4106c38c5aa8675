# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: N803
"""Sampling: argmax of ``logits / temperature`` plus Gumbel noise over the tokens that truncation keeps.

Two launches: the best token of every tile of a row, then the best tile. A row's noise is a function of its seed, output
index, position and token id alone (``philox.py``), so no generator has state. Truncated batches compute each row's
threshold first (``threshold.py``).
"""

import torch
import triton
import triton.language as tl

from pagewire_kernels.interface import SamplingBatch
from pagewire_kernels.triton.launch import ceil_div, next_power_of_two
from pagewire_kernels.triton.threshold import MIN_TEMPERATURE, truncation_thresholds

TILE_COUNTERS = 512
"""Philox counters of a tile; each gives the noise of four neighbouring tokens."""


@triton.jit
def token_scores(
    logits_row_ptr,
    token_ids,
    words,
    temperature,
    threshold,
    VOCAB: tl.constexpr,
    GREEDY: tl.constexpr,
    TRUNCATE: tl.constexpr,
):
    """(score, is NaN) of each token: -inf where truncated, NaN or outside the vocabulary. Greedy rows need no words."""
    logits = tl.load(logits_row_ptr + token_ids, mask=token_ids < VOCAB, other=float("-inf")).to(tl.float32)
    is_nan = logits != logits
    scores = logits
    if not GREEDY:  # noqa: SIM102 - one is decided while compiling, the other by each row
        if temperature > 0.0:
            scaled = tl.div_rn(logits, tl.maximum(temperature, MIN_TEMPERATURE) + tl.zeros_like(logits))
            uniform = ((words >> 9).to(tl.int32).to(tl.float32) + 0.5) * (1.0 / 8388608.0)
            scores = scaled - tl.log(-tl.log(uniform))
            if TRUNCATE:
                scores = tl.where(logits >= threshold, scores, float("-inf"))
    return tl.where(is_nan, float("-inf"), scores), is_nan.to(tl.int32)


@triton.jit
def better_of(best, best_ids, scores, token_ids):
    """Lane by lane the higher score; the first one on a tie, which has the lower id."""
    wins = scores > best
    return tl.where(wins, scores, best), tl.where(wins, token_ids, best_ids)


@triton.jit(do_not_specialize=["temperature_ptr", "seeds_ptr", "output_index_ptr", "output_positions_ptr"])
def tile_argmax_kernel(
    logits_ptr,
    temperature_ptr,
    threshold_ptr,
    seeds_ptr,
    output_index_ptr,
    output_positions_ptr,
    tile_scores_ptr,
    tile_ids_ptr,
    tile_nan_ptr,
    LOGITS_STRIDE: tl.constexpr,
    VOCAB: tl.constexpr,
    NUM_TILES: tl.constexpr,
    TILE: tl.constexpr,
    GREEDY: tl.constexpr,
    TRUNCATE: tl.constexpr,
):
    """Best token of 4 * TILE tokens of one row. Grid (R, NUM_TILES)."""
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    counters = tile * TILE + tl.arange(0, TILE)
    token_ids = counters * 4
    word_0 = counters.to(tl.uint32)
    word_1 = word_0
    word_2 = word_0
    word_3 = word_0
    temperature = 0.0
    threshold = 0.0
    if not GREEDY:
        temperature = tl.load(temperature_ptr + row)
        if TRUNCATE:
            threshold = tl.load(threshold_ptr + row)
        if temperature > 0.0:
            position = tl.load(output_positions_ptr + row) + tl.zeros_like(counters)
            index = tl.load(output_index_ptr + row) + tl.zeros_like(counters)
            word_0, word_1, word_2, word_3 = tl.philox(
                tl.load(seeds_ptr + row), counters, position, index, tl.zeros_like(counters)
            )
    logits_row_ptr = logits_ptr + row * LOGITS_STRIDE
    best, nan_0 = token_scores(logits_row_ptr, token_ids, word_0, temperature, threshold, VOCAB, GREEDY, TRUNCATE)
    best_ids = token_ids
    scores, nan_1 = token_scores(logits_row_ptr, token_ids + 1, word_1, temperature, threshold, VOCAB, GREEDY, TRUNCATE)
    best, best_ids = better_of(best, best_ids, scores, token_ids + 1)
    scores, nan_2 = token_scores(logits_row_ptr, token_ids + 2, word_2, temperature, threshold, VOCAB, GREEDY, TRUNCATE)
    best, best_ids = better_of(best, best_ids, scores, token_ids + 2)
    scores, nan_3 = token_scores(logits_row_ptr, token_ids + 3, word_3, temperature, threshold, VOCAB, GREEDY, TRUNCATE)
    best, best_ids = better_of(best, best_ids, scores, token_ids + 3)
    tile_best = tl.max(best, 0)
    tile_target = row * NUM_TILES + tile
    tl.store(tile_scores_ptr + tile_target, tile_best)
    tl.store(tile_ids_ptr + tile_target, tl.min(tl.where(best == tile_best, best_ids, 2147483647), 0))
    tl.store(tile_nan_ptr + tile_target, tl.max(nan_0 | nan_1 | nan_2 | nan_3, 0))


@triton.jit
def row_argmax_kernel(
    tile_scores_ptr,
    tile_ids_ptr,
    tile_nan_ptr,
    token_ids_ptr,
    status_ptr,
    NUM_TILES: tl.constexpr,
    TILE: tl.constexpr,
):
    """Best tile of one row. Grid (R,)."""
    row = tl.program_id(0).to(tl.int64)
    tiles = tl.arange(0, TILE)
    inside = tiles < NUM_TILES
    scores = tl.load(tile_scores_ptr + row * NUM_TILES + tiles, mask=inside, other=float("-inf"))
    ids = tl.load(tile_ids_ptr + row * NUM_TILES + tiles, mask=inside, other=2147483647)
    is_nan = tl.load(tile_nan_ptr + row * NUM_TILES + tiles, mask=inside, other=0)
    best = tl.max(scores, 0)
    tl.store(token_ids_ptr + row, tl.min(tl.where(scores == best, ids, 2147483647), 0))
    tl.store(status_ptr + row, tl.max(is_nan, 0).to(tl.uint8))


def sample(logits: torch.Tensor, batch: SamplingBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """logits [R, V] (columns contiguous) -> (token ids int32 [R], status uint8 [R]), as the interface defines them.

    Reads the logits once, or about 32 times per truncation in use by a row. Scores are float32.
    """
    rows, vocab = logits.shape
    if logits.stride(1) != 1:
        raise ValueError(f"columns must be contiguous, their stride is {logits.stride(1)}")
    token_ids = torch.empty((rows,), dtype=torch.int32, device=logits.device)
    status = torch.empty((rows,), dtype=torch.uint8, device=logits.device)
    if not rows:
        return token_ids, status
    truncate = batch.any_truncation and not batch.all_greedy
    threshold = truncation_thresholds(logits, batch) if truncate else batch.temperature
    num_tiles = ceil_div(vocab, 4 * TILE_COUNTERS)
    tile_scores = torch.empty((rows, num_tiles), dtype=torch.float32, device=logits.device)
    tile_ids = torch.empty((rows, num_tiles), dtype=torch.int32, device=logits.device)
    tile_nan = torch.empty((rows, num_tiles), dtype=torch.int32, device=logits.device)
    tile_argmax_kernel[(rows, num_tiles)](
        logits,
        batch.temperature,
        threshold,
        batch.seeds,
        batch.output_index,
        batch.output_positions,
        tile_scores,
        tile_ids,
        tile_nan,
        LOGITS_STRIDE=logits.stride(0),
        VOCAB=vocab,
        NUM_TILES=num_tiles,
        TILE=TILE_COUNTERS,
        GREEDY=batch.all_greedy,
        TRUNCATE=truncate,
        num_warps=4,
    )
    row_argmax_kernel[(rows,)](
        tile_scores,
        tile_ids,
        tile_nan,
        token_ids,
        status,
        NUM_TILES=num_tiles,
        TILE=next_power_of_two(num_tiles),
        num_warps=1,
    )
    return token_ids, status
