"""Masks of tokens that may come next: token t is bit t % 32 of the int32 word t // 32."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.int32]


def num_words(vocab_size: int) -> int:
    """Words of a mask."""
    return -(-vocab_size // 32)


def token_bits(token_ids: Iterable[int], vocab_size: int) -> Words:
    """The mask of these tokens."""
    bits = np.zeros(32 * num_words(vocab_size), dtype=np.uint8)
    bits[np.asarray(token_ids, dtype=np.int64)] = 1
    return np.packbits(bits, bitorder="little").view("<i4")
