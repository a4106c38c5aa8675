# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: N803
"""What surrounds the sampling of rows whose tokens are limited: masks before it, what became of each row behind it."""

import torch
import triton
import triton.language as tl

from pagewire_kernels.triton.launch import ceil_div

TILE_WORDS = 32


@triton.jit
def forbid_kernel(logits_ptr, places_ptr, words_ptr, VOCAB: tl.constexpr, NUM_WORDS: tl.constexpr, TILE: tl.constexpr):
    """TILE words of one row's mask, so 32 * TILE logits. Grid (G, ceil(NUM_WORDS / TILE))."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.load(places_ptr + row)
    first_word = tl.program_id(1) * TILE
    word_ids = first_word + tl.arange(0, TILE)
    words = tl.load(words_ptr + row * NUM_WORDS + word_ids, mask=word_ids < NUM_WORDS, other=0)
    bits = tl.arange(0, 32)
    token_ids = word_ids[:, None] * 32 + bits[None, :]
    is_forbidden = ((words[:, None] >> bits[None, :]) & 1) == 0
    targets = logits_ptr + place * VOCAB + token_ids
    logits = tl.load(targets, mask=is_forbidden & (token_ids < VOCAB), other=0.0)
    # Added, not set: what is not a number stays one.
    tl.store(targets, logits + float("-inf"), mask=is_forbidden & (token_ids < VOCAB))


@triton.jit(do_not_specialize=["num_rows"])
def settle_kernel(
    logits_ptr,
    token_ids_ptr,
    statuses_ptr,
    faults_ptr,
    places_ptr,
    packed_ptr,
    num_rows,
    VOCAB: tl.constexpr,
):
    """One row's token and status to its place. Grid (F,)."""
    row = tl.program_id(0).to(tl.int64)
    token_id = tl.load(token_ids_ptr + row)
    status = tl.load(statuses_ptr + row).to(tl.int32)
    is_left = tl.load(logits_ptr + row * VOCAB + token_id) > float("-inf")
    status = tl.where((status == 0) & (is_left == 0), tl.load(faults_ptr + row), status)
    target = packed_ptr + tl.load(places_ptr + row)
    tl.store(target, tl.where(status == 0, token_id, 0))
    tl.store(target + num_rows, status)


def forbid(logits: torch.Tensor, places: torch.Tensor, words: torch.Tensor) -> None:
    """As the interface says. Reads G * V / 32 words, reads and writes the logits that they rule out."""
    vocab, (rows, num_words) = logits.shape[1], words.shape
    _check(logits)
    forbid_kernel[(rows, ceil_div(num_words, TILE_WORDS))](
        logits, places, words, VOCAB=vocab, NUM_WORDS=num_words, TILE=TILE_WORDS, num_warps=4
    )


def settle(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    statuses: torch.Tensor,
    faults: torch.Tensor,
    places: torch.Tensor,
    packed: torch.Tensor,
) -> None:
    """As the interface says. Reads one logit a row."""
    _check(logits)
    settle_kernel[(len(token_ids),)](
        logits, token_ids, statuses, faults, places, packed, packed.shape[1], VOCAB=logits.shape[1], num_warps=1
    )


def _check(logits: torch.Tensor) -> None:
    if not logits.is_contiguous():
        raise ValueError("logits must be contiguous")
