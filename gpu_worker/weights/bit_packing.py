"""Small integers out of 32-bit words.

Every format packs the same way along some axis: a little-endian stream of bits, 32 codes in as many words as a code has
bits. For 2, 4 and 8 bits a word holds whole codes; codes of 3 bits cross its edges (10 codes, 1 cut, 10, 1 cut, 10).
"""

import torch


def unpack(words: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """int32 [rows, words] -> uint8 [rows, count]: the first ``count`` codes of each row.

    The caller has checked that a row has at least ``num_words(count, bits)`` words.
    """
    if 32 % bits == 0:
        shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=words.device)
        codes: torch.Tensor = (words[:, :, None] >> shifts) & (2**bits - 1)
        return codes.to(torch.uint8).flatten(1)[:, :count].contiguous()
    blocks = -(-words.shape[1] // bits)
    padded = torch.nn.functional.pad(words, (0, blocks * bits - words.shape[1]))
    stream = padded.view(len(words), blocks, bits).long() & 0xFFFFFFFF
    places = [divmod(code * bits, 32) for code in range(32)]
    codes = torch.stack([_code(stream, word, shift, bits) for word, shift in places], dim=-1)
    return codes.to(torch.uint8).flatten(1)[:, :count].contiguous()


def _code(stream: torch.Tensor, word: int, shift: int, bits: int) -> torch.Tensor:
    """One code of each block: stream int64 [rows, blocks, bits]."""
    code: torch.Tensor = stream[..., word] >> shift
    if shift + bits > 32:
        code = code | stream[..., word + 1] << (32 - shift)
    return code.bitwise_and(2**bits - 1)


def num_words(count: int, bits: int) -> int:
    """Words that ``count`` codes take."""
    return -(-count * bits // 32)
