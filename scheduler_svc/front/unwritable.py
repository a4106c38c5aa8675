"""Characters that no tokens of a model can write, as ranges of a regular expression's class.

Vocabularies learnt from text may lack bytes that text seldom has: control characters, planes of Unicode without
letters. A form that could go on with such a character alone would leave its output without a next token, so forms that
are one regular expression are made without them (grammar_process).
"""

from collections.abc import Iterator

from llguidance import LLTokenizer

_LEADS = ((0xC0, 0xDF, 6, 0x80), (0xE0, 0xEF, 12, 0x800), (0xF0, 0xF4, 18, 0x10000))
"""Bytes that begin characters of 2, 3 and 4; how many bits follow theirs; the first of these characters."""
_LAST, _BEFORE_SURROGATES = 0x10FFFF, 0xD7FF


def unwritable(tokenizer: LLTokenizer) -> str:
    """What belongs between the brackets of a class; empty: everything can be written."""
    present = set(tokenizer.decode_bytes(list(range(tokenizer.vocab_size))))
    return "".join(
        f"\\x{{{first:x}}}-\\x{{{last:x}}}"
        for byte in range(256)
        if byte not in present
        for first, last in _begun_by(byte)
    )


def _begun_by(byte: int) -> Iterator[tuple[int, int]]:
    """The code points whose UTF-8 begins with a byte."""
    if byte < 0x80:
        yield byte, byte
    for least, most, num_bits, floor in _LEADS:
        if least <= byte <= most:
            first = max((byte - least) << num_bits, floor)
            last = min(((byte - least + 1) << num_bits) - 1, _LAST)
            if first <= last:  # not of C0 and C1, which begin none
                yield first, _BEFORE_SURROGATES if byte == 0xED else last
