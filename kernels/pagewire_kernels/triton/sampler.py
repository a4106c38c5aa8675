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
from pagewire_kernels.triton.launch import ceil_div, next_power_of_two, on_hip
from pagewire_kernels.triton.paged_tile import LOG2_E
from pagewire_kernels.triton.threshold import MIN_TEMPERATURE, truncation_thresholds

LOW_WORD = tl.constexpr(0xFFFFFFFF)
PHILOX_A = tl.constexpr(0xD2511F53)
PHILOX_B = tl.constexpr(0xCD9E8D57)
PHILOX_KEY_A = tl.constexpr(0x9E3779B9)
PHILOX_KEY_B = tl.constexpr(0xBB67AE85)
LN_2 = tl.constexpr(0.6931471805599453)
TILE_COUNTERS = 512
"""Philox counters of a tile; each gives the noise of four neighbouring tokens."""


@triton.jit
def random_words(counters, position, index, seed_low, seed_high):
    """The four words of Philox4x32-10 for each counter, as ``philox.py`` defines them; all uint64 that hold words.

    A product is taken whole: one wide multiplication gives both of its halves.
    """
    c0 = counters
    c1 = position + tl.zeros_like(counters)
    c2 = index + tl.zeros_like(counters)
    c3 = tl.zeros_like(counters)
    for _ in tl.static_range(10):
        product_a = c0 * PHILOX_A
        product_b = c2 * PHILOX_B
        c0 = (product_b >> 32) ^ c1 ^ seed_low
        c2 = (product_a >> 32) ^ c3 ^ seed_high
        c1 = product_b & LOW_WORD
        c3 = product_a & LOW_WORD
        seed_low = (seed_low + PHILOX_KEY_A) & LOW_WORD
        seed_high = (seed_high + PHILOX_KEY_B) & LOW_WORD
    return c0, c1, c2, c3


@triton.jit
def base_2_log(x, APPROXIMATE: tl.constexpr):
    """As the hardware computes it: the library's function takes ten times as long, for bits that are not needed."""
    logarithm = x
    if APPROXIMATE:
        instruction: tl.constexpr = "lg2.approx.ftz.f32 $0, $1;"
        logarithm = tl.inline_asm_elementwise(instruction, "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        logarithm = tl.log2(x)
    return logarithm


@triton.jit
def log2_of_waiting(word, APPROXIMATE: tl.constexpr):
    """``log2(-log(u))`` of a word's ``u``: Gumbel noise in base 2, its sign turned.

    The logarithm's error is absolute, so close to 1, where ``-log(u)`` is as small as the noise is large, ``-log(1 -
    v)`` is a polynomial of v. Both u and v are exact.
    """
    mantissa = (word >> 9).to(tl.int32) | 0x3F800000  # of a float in [1, 2)
    u = mantissa.to(tl.float32, bitcast=True) - (1.0 - 0.5 / 8388608.0)
    v = 1.0 - u
    waiting = tl.where(
        v < 0.0625, v * (1.0 + v * (0.5 + v * (1.0 / 3.0 + v * 0.25))), base_2_log(u, APPROXIMATE) * -LN_2
    )
    return base_2_log(waiting, APPROXIMATE)


@triton.jit
def token_scores(
    logits, word, scale, threshold, NOISE: tl.constexpr, TRUNCATE: tl.constexpr, APPROXIMATE: tl.constexpr
):
    """(score, is NaN) of each token: -inf where truncated, NaN or outside the vocabulary."""
    is_nan = logits != logits
    scores = logits
    if NOISE:
        scores = logits * scale - log2_of_waiting(word, APPROXIMATE)
        if TRUNCATE:
            scores = tl.where(logits >= threshold, scores, float("-inf"))
    return tl.where(is_nan, float("-inf"), scores), is_nan.to(tl.int32)


@triton.jit
def better_of(best, best_ids, scores, token_ids):
    """Lane by lane the higher score; the first one on a tie, which has the lower id."""
    wins = scores > best
    return tl.where(wins, scores, best), tl.where(wins, token_ids, best_ids)


@triton.jit
def best_of_tile(
    logits_row_ptr,
    counters,
    words,
    scale,
    threshold,
    VOCAB: tl.constexpr,
    NOISE: tl.constexpr,
    TRUNCATE: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):
    """(score, id, is any NaN) of the best of the four tokens of each counter."""
    token_ids = counters[:, None] * 4 + tl.arange(0, 4)[None, :]
    logits = tl.load(logits_row_ptr + token_ids, mask=token_ids < VOCAB, other=float("-inf")).to(tl.float32)
    logits_02, logits_13 = tl.split(logits.reshape(counters.shape[0], 2, 2))
    logits_0, logits_2 = tl.split(logits_02)
    logits_1, logits_3 = tl.split(logits_13)
    best, any_nan = token_scores(logits_0, words[0], scale, threshold, NOISE, TRUNCATE, APPROXIMATE)
    best_ids = counters * 4
    scores, is_nan = token_scores(logits_1, words[1], scale, threshold, NOISE, TRUNCATE, APPROXIMATE)
    best, best_ids = better_of(best, best_ids, scores, counters * 4 + 1)
    any_nan |= is_nan
    scores, is_nan = token_scores(logits_2, words[2], scale, threshold, NOISE, TRUNCATE, APPROXIMATE)
    best, best_ids = better_of(best, best_ids, scores, counters * 4 + 2)
    any_nan |= is_nan
    scores, is_nan = token_scores(logits_3, words[3], scale, threshold, NOISE, TRUNCATE, APPROXIMATE)
    best, best_ids = better_of(best, best_ids, scores, counters * 4 + 3)
    any_nan |= is_nan
    tile_best = tl.max(best, 0)
    return tile_best, tl.min(tl.where(best == tile_best, best_ids, 2147483647), 0), tl.max(any_nan, 0)


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
    APPROXIMATE: tl.constexpr,
):
    """Best token of 4 * TILE tokens of one row. Grid (R, NUM_TILES)."""
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    counters = tile * TILE + tl.arange(0, TILE)
    logits_row_ptr = logits_ptr + row * LOGITS_STRIDE
    temperature = 0.0
    if not GREEDY:
        temperature = tl.load(temperature_ptr + row)
    if temperature > 0.0:
        threshold = 0.0
        if TRUNCATE:
            threshold = tl.load(threshold_ptr + row)
        seed = tl.load(seeds_ptr + row).to(tl.uint64, bitcast=True)
        position = tl.load(output_positions_ptr + row).to(tl.uint64)
        index = tl.load(output_index_ptr + row).to(tl.uint64)
        words = random_words(counters.to(tl.uint64), position, index, seed & LOW_WORD, seed >> 32)
        scale = tl.div_rn(LOG2_E, tl.maximum(temperature, MIN_TEMPERATURE))
        score, token_id, is_nan = best_of_tile(
            logits_row_ptr, counters, words, scale, threshold, VOCAB, True, TRUNCATE, APPROXIMATE
        )
    else:
        nothing = (counters, counters, counters, counters)
        score, token_id, is_nan = best_of_tile(logits_row_ptr, counters, nothing, 0.0, 0.0, VOCAB, False, False, False)
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
        APPROXIMATE=logits.device.type == "cuda" and not on_hip(),
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
