"""Characters that a vocabulary has no bytes for: which they are, and that forms do without them."""

import json
from itertools import pairwise
from typing import Any, cast

import pytest
from llguidance import LLMatcher, LLTokenizer

from scheduler_svc.front.grammar_process import MAKERS, RefusedError, try_grammar, writable
from scheduler_svc.front.unwritable import _begun_by, unwritable


def tokenizer_without(*missing: int) -> LLTokenizer:
    """A vocabulary of bytes, written as byte-level tokenizers write them, but for some."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    shown = {byte: chr(byte) for byte in plain} | {byte: chr(256 + place) for place, byte in enumerate(others)}
    kept = [shown[byte] for byte in range(256) if byte not in missing]
    vocabulary = {token: number for number, token in enumerate(kept)}
    end = {"id": len(kept), "content": "</s>", "special": True, "single_word": False, "lstrip": False, "rstrip": False}
    text = {
        "version": "1.0",
        "added_tokens": [{**end, "normalized": False}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    return LLTokenizer(json.dumps(text), n_vocab=len(kept) + 1, eos_token=[len(kept)])


def test_the_first_bytes_share_all_code_points_among_them() -> None:
    spans = sorted(span for byte in range(256) for span in _begun_by(byte))
    assert all(chr(point).encode()[0] == byte for byte in range(256) for span in _begun_by(byte) for point in span)
    holes = [(last + 1, first - 1) for (_, last), (first, _) in pairwise(spans) if last + 1 < first]
    assert (spans[0][0], holes, spans[-1][1]) == (0, [(0xD800, 0xDFFF)], 0x10FFFF)


def test_what_is_missing_is_told_as_a_class() -> None:
    assert unwritable(tokenizer_without(4, 0xF1, 0xFF)) == "\\x{4}-\\x{4}\\x{40000}-\\x{7ffff}"
    assert unwritable(tokenizer_without()) == ""


@pytest.mark.parametrize(
    ("kind", "content", "first"),
    [
        ("choice", ["ab", "c\4"], b"a"),
        ("regex", "(ab|c\\x04|/\\x{40000})/?", b"a"),
        ("regex", "[^ab\\x01-\\x7f]", b"\0\xc2\xc3"),
        ("choice", ["\4"], None),
        ("choice", ["a\U00040001"], None),
    ],
)
def test_forms_do_without(kind: str, content: Any, first: bytes | None) -> None:
    """``first``: how an output may begin, None: there is none."""
    tokenizer = tokenizer_without(4, 0xF1)
    grammar = writable(kind, MAKERS[kind](content), unwritable(tokenizer))
    if first is None:
        with pytest.raises(RefusedError, match="no text of this form"):
            try_grammar(tokenizer, grammar)
        return
    try_grammar(tokenizer, grammar)
    mask = cast(bytes, LLMatcher(tokenizer, grammar).compute_bitmask())
    begun = [number for number in range(tokenizer.vocab_size) if mask[number // 8] >> number % 8 & 1]
    assert set(first) <= {tokenizer.decode_bytes([number])[0] for number in begun}
    assert b"c"[0] not in {tokenizer.decode_bytes([number])[0] for number in begun}
