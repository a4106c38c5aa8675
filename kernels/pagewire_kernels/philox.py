"""Philox4x32-10, the counter-based generator behind sampling noise (Salmon et al. 2011, "Parallel random numbers: as
easy as 1, 2, 3", SC11), in int64 torch arithmetic.

Every 32-bit word lives in the low half of an int64. A 32 x 32 bit product needs 64 bits: int64 multiplication wraps,
but its bit pattern is the unsigned product's, so shifting and masking recovers both halves exactly. Also the Gumbel
noise built on it, because every kernel set has to use the same formula.
"""

import torch

MAX_GUMBEL = 16.64
"""No noise is larger: ``-log(-log(1 - 2**-24))`` is 16.635."""

_MASK = 0xFFFFFFFF
_ROUND_A, _ROUND_B = 0xD2511F53, 0xCD9E8D57
_KEY_A, _KEY_B = 0x9E3779B9, 0xBB67AE85

Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def philox4x32(counter: Words, key: tuple[torch.Tensor, torch.Tensor]) -> Words:
    """Ten rounds over int64 tensors that hold 32-bit words and broadcast against each other; four words back."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product_a = c0 * _ROUND_A
        product_b = c2 * _ROUND_B
        # Low halves stay unmasked until they meet the next high half: bits past 32 never reach a product.
        c0 = ((product_b >> 32) ^ c1 ^ k0) & _MASK
        c2 = ((product_a >> 32) ^ c3 ^ k1) & _MASK
        c1, c3 = product_b, product_a
        k0 = (k0 + _KEY_A) & _MASK
        k1 = (k1 + _KEY_B) & _MASK
    return c0, c1 & _MASK, c2, c3 & _MASK


def noise_words(
    token_ids: torch.Tensor, seeds: torch.Tensor, output_positions: torch.Tensor, output_index: torch.Tensor
) -> torch.Tensor:
    """The random word of each token id. All int64 and broadcast to [N]; ``seeds`` hold the bits of uint64 seeds."""
    counter = (token_ids >> 2, output_positions, output_index, torch.zeros_like(token_ids))
    words = philox4x32(counter, (seeds & _MASK, (seeds >> 32) & _MASK))
    lane = token_ids & 3
    return torch.where(lane < 2, torch.where(lane == 0, words[0], words[1]), torch.where(lane == 2, words[2], words[3]))


def gumbel(words: torch.Tensor) -> torch.Tensor:
    """``-log(-log(u))`` in float32 with ``u = (word // 512 + 0.5) * 2**-23``.

    Twenty-three bits, because one bit more would let ``u`` round to 1 and the noise to infinity.
    """
    uniform = ((words >> 9).to(torch.float32) + 0.5) * 2.0**-23
    return -torch.log(-torch.log(uniform))
