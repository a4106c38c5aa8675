# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: N803
"""Sampling: argmax of ``logits / temperature`` plus Gumbel noise over the tokens that truncation keeps.

Scores are in base 2, which devices compute logarithms in. Two launches: the best token of every tile of a row, then the
best tile. A row's noise is a function of its seed, output index, position and token id alone (``philox.py``), so no
generator has state. Truncated batches compute each row's threshold first (``threshold.py``).
"""

import torch
import triton
import triton.language as tl

from pagewire_kernels.interface import SamplingBatch
from pagewire_kernels.triton.launch import approximate, ceil_div, next_power_of_two
from pagewire_kernels.triton.noise import noisy_scores, random_words, row_key
from pagewire_kernels.triton.paged_tile import LOG2_E
from pagewire_kernels.triton.threshold import MIN_TEMPERATURE
from pagewire_kernels.triton.truncated_choice import choose_truncated

TILE_COUNTERS, TILE_STEPS, TILE_WARPS = 512, 1, 4
"""Philox counters of a step, steps of a tile; each counter gives the noise of four neighbouring tokens."""


@triton.jit
def better_of(
    best,
    best_ids,
    logits,
    word,
    token_ids,
    scale,
    threshold,
    NOISE: tl.constexpr,
    TRUNCATE: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):
    """Lane by lane the better of the best so far and the next token's score; the first one on a tie, which has the
    lower id. A NaN stays."""
    scores = logits
    if NOISE:
        scores = noisy_scores(logits, word, scale, APPROXIMATE)
        if TRUNCATE:
            scores = tl.where(logits < threshold, float("-inf"), scores)
    best_ids = tl.where(scores > best, token_ids, best_ids)
    return tl.maximum(best, scores, propagate_nan=tl.PropagateNan.ALL), best_ids


@triton.jit
def best_of_tile(
    logits_row_ptr,
    first_counter,
    key,
    scale,
    threshold,
    VOCAB: tl.constexpr,
    TILE: tl.constexpr,
    STEPS: tl.constexpr,
    NOISE: tl.constexpr,
    TRUNCATE: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):
    """(score, id, is any NaN) of the best of the four tokens of each of STEPS * TILE counters."""
    best = tl.full([TILE], float("-inf"), tl.float32)
    best_ids = (first_counter + tl.arange(0, TILE)) * 4
    for step in tl.range(0, STEPS):
        counters = first_counter + step * TILE + tl.arange(0, TILE)
        token_ids = counters[:, None] * 4 + tl.arange(0, 4)[None, :]
        logits = tl.load(logits_row_ptr + token_ids, mask=token_ids < VOCAB, other=float("-inf")).to(tl.float32)
        logits_02, logits_13 = tl.split(logits.reshape(TILE, 2, 2))
        logits_0, logits_2 = tl.split(logits_02)
        logits_1, logits_3 = tl.split(logits_13)
        words = counters, counters, counters, counters
        if NOISE:
            words = random_words(counters.to(tl.uint32), key[1], key[2], key[0])
        quadruple = logits_0, logits_1, logits_2, logits_3
        for lane in tl.static_range(4):
            best, best_ids = better_of(
                best, best_ids, quadruple[lane], words[lane], counters * 4 + lane, scale, threshold, NOISE, TRUNCATE,
                APPROXIMATE,
            )  # fmt: skip
    is_nan = best != best
    best = tl.where(is_nan, float("-inf"), best)
    tile_best = tl.max(best, 0)
    tile_id = tl.min(tl.where(best == tile_best, best_ids, 2147483647), 0)
    return tile_best, tile_id, tl.max(is_nan.to(tl.int32), 0)


@triton.jit(do_not_specialize=["temperature_ptr", "seeds_ptr", "output_index_ptr", "output_positions_ptr"])
def tile_argmax_kernel(
    logits_ptr,
    temperature_ptr,
    threshold_ptr,
    token_ids_ptr,
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
    STEPS: tl.constexpr,
    GREEDY: tl.constexpr,
    TRUNCATE: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):
    """Best token of 4 * STEPS * TILE tokens of one row that has none yet. Grid (R, NUM_TILES)."""
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    if TRUNCATE and tl.load(token_ids_ptr + row) >= 0:
        return
    first_counter = tile * (STEPS * TILE)
    logits_row_ptr = logits_ptr + row * LOGITS_STRIDE
    temperature = 0.0
    threshold = 0.0
    if not GREEDY:
        temperature = tl.load(temperature_ptr + row)
    if TRUNCATE:
        threshold = tl.load(threshold_ptr + row)
    if temperature > 0.0:
        key = row_key(row, seeds_ptr, output_positions_ptr, output_index_ptr)
        scale = tl.div_rn(LOG2_E, tl.maximum(temperature, MIN_TEMPERATURE))
        score, token_id, is_nan = best_of_tile(
            logits_row_ptr, first_counter, key, scale, threshold, VOCAB, TILE, STEPS, True, TRUNCATE, APPROXIMATE
        )
    else:
        score, token_id, is_nan = best_of_tile(
            logits_row_ptr, first_counter, (0, 0, 0), 0.0, 0.0, VOCAB, TILE, STEPS, False, False, False
        )
    target = row * NUM_TILES + tile
    tl.store(tile_scores_ptr + target, score)
    tl.store(tile_ids_ptr + target, token_id)
    tl.store(tile_nan_ptr + target, is_nan)


@triton.jit
def row_argmax_kernel(
    tile_scores_ptr,
    tile_ids_ptr,
    tile_nan_ptr,
    token_ids_ptr,
    status_ptr,
    NUM_TILES: tl.constexpr,
    TILE: tl.constexpr,
    TRUNCATE: tl.constexpr,
):
    """Best tile of one row that has no token yet. Grid (R,)."""
    row = tl.program_id(0).to(tl.int64)
    if TRUNCATE and tl.load(token_ids_ptr + row) >= 0:
        return
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

    Reads the logits once, and as often as ``truncation_thresholds`` says. Scores are float32.
    """
    rows, vocab = logits.shape
    if logits.stride(1) != 1:
        raise ValueError(f"columns must be contiguous, their stride is {logits.stride(1)}")
    token_ids = torch.empty((rows,), dtype=torch.int32, device=logits.device)
    status = torch.empty((rows,), dtype=torch.uint8, device=logits.device)
    if not rows:
        return token_ids, status
    truncate = batch.any_truncation and not batch.all_greedy
    threshold = choose_truncated(logits, batch, token_ids, status) if truncate else batch.temperature
    num_tiles = ceil_div(vocab, 4 * TILE_COUNTERS * TILE_STEPS)
    tile_scores = torch.empty((rows, num_tiles), dtype=torch.float32, device=logits.device)
    tile_ids = torch.empty((rows, num_tiles), dtype=torch.int32, device=logits.device)
    tile_nan = torch.empty((rows, num_tiles), dtype=torch.int32, device=logits.device)
    tile_argmax_kernel[(rows, num_tiles)](
        logits,
        batch.temperature,
        threshold,
        token_ids,
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
        STEPS=TILE_STEPS,
        GREEDY=batch.all_greedy,
        TRUNCATE=truncate,
        APPROXIMATE=approximate(logits.device),
        num_warps=TILE_WARPS,
    )
    row_argmax_kernel[(rows,)](
        tile_scores,
        tile_ids,
        tile_nan,
        token_ids,
        status,
        NUM_TILES=num_tiles,
        TILE=next_power_of_two(num_tiles),
        TRUNCATE=truncate,
        num_warps=1,
    )
    return token_ids, status
