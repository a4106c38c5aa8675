"""What each token id means in bytes: the table the incremental detokenizer joins.

Built from a tokenizer.json by reading its `decoder`:

- ByteLevel (GPT-2, Llama 3, Qwen, SmolLM2): each character of a piece stands for one byte.
- Metaspace, or a sequence of Replace / ByteFallback / Fuse / Strip (Llama 2, Mistral, Gemma, T5): a blank is written
  `▁`, a piece `<0xNN>` is one byte.

Any other decoder has no table (`None`): the detokenizer then asks the tokenizers library.

Invariant: joining the entries of some ids and decoding them as UTF-8 gives what the library's decode() gives, but for
runs of byte pieces that are partly invalid: the library then replaces the whole run, a stream keeps its valid part.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """Bytes by token id, and how the beginning and broken characters are treated."""

    shown: list[bytes]
    """Every id; b"" where there is none."""
    hidden: list[bytes]
    """The same with special tokens empty."""
    first: Mapping[int, bytes]
    """Ids that mean something else when they come first of all visible tokens (Metaspace)."""
    strip_left: int
    """Blanks taken from the beginning of the whole text."""
    each_byte: bool
    """A broken character becomes one U+FFFD a byte, not one in all."""


def build_token_bytes(tokenizer: Tokenizer, tokenizer_json: bytes, vocab_size: int) -> TokenBytes | None:
    """The table of a tokenizer, or None if its decoder is of another kind. Cost: O(vocabulary)."""
    rules = _rules(json.loads(tokenizer_json).get("decoder"))
    if rules is None:
        return None
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    added = tokenizer.get_added_tokens_decoder()
    size = max([vocab_size - 1, *vocabulary.values(), *added]) + 1
    pieces: list[str | None] = [None] * size
    for piece, token_id in vocabulary.items():
        pieces[token_id] = piece
    for token_id, token in added.items():
        pieces[token_id] = token.content
    shown = [b"" if piece is None else rules.piece(piece) for piece in pieces]
    hidden = list(shown)
    for token_id, token in added.items():
        if token.special:
            hidden[token_id] = b""
    first = {}
    if rules.first_drops is not None:
        mark = rules.first_drops
        first = {i: rules.piece(piece.replace(mark, "")) for i, piece in enumerate(pieces) if piece and mark in piece}
    return TokenBytes(shown, hidden, first, rules.strip_left, rules.each_byte)


@dataclass(frozen=True, slots=True)
class _Rules:
    """A decoder, read."""

    piece: Callable[[str], bytes]
    each_byte: bool = False
    strip_left: int = 0
    first_drops: str | None = None


def _rules(decoder: Any) -> _Rules | None:
    """The rules of a `decoder` object of a tokenizer.json; None if it is of another kind."""
    if not isinstance(decoder, dict):
        return None
    parts = decoder.get("decoders", []) if decoder.get("type") == "Sequence" else [decoder]
    kinds = [part.get("type") for part in parts]
    if kinds == ["ByteLevel"]:
        return _Rules(_byte_level_piece)
    if kinds == ["Metaspace"]:
        return _metaspace_rules(parts[0])
    return _sequence_rules(parts)


def _metaspace_rules(part: dict[str, Any]) -> _Rules:
    mark = part.get("replacement", "▁")
    scheme = part.get("prepend_scheme") or ("always" if part.get("add_prefix_space", True) else "never")
    return _Rules(
        lambda piece: piece.replace(mark, " ").encode("utf-8", "replace"),
        first_drops=None if scheme == "never" else mark,
    )


def _sequence_rules(parts: list[dict[str, Any]]) -> _Rules | None:
    """Replace, ByteFallback, Fuse and a Strip of leading blanks, in the order Llama's tokenizers have them."""
    order = {"Replace": 0, "ByteFallback": 1, "Fuse": 2, "Strip": 3}
    kinds = [part.get("type") for part in parts]
    places = [order.get(str(kind), -1) for kind in kinds]
    if not parts or -1 in places or places != sorted(places):
        return None
    replaces: list[tuple[str, str]] = []
    strip_left = 0
    for part in parts:
        if part["type"] == "Replace":
            pattern = part.get("pattern", {}).get("String")
            if pattern is None:
                return None
            replaces.append((pattern, part.get("content", "")))
        elif part["type"] == "Strip":
            if part.get("content") != " " or part.get("stop", 0) or "Fuse" not in kinds:
                return None
            strip_left += part.get("start", 0)
    fallback = "ByteFallback" in kinds

    def piece_bytes(piece: str) -> bytes:
        for old, new in replaces:
            piece = piece.replace(old, new)
        hit = _BYTE_PIECE.fullmatch(piece) if fallback else None
        return bytes([int(hit.group(1), 16)]) if hit else piece.encode("utf-8", "replace")

    return _Rules(piece_bytes, each_byte=fallback, strip_left=strip_left)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's table: the character that stands for each byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + position): byte for position, byte in enumerate(others)})
    return alphabet


_ALPHABET = _byte_alphabet()


def _byte_level_piece(piece: str) -> bytes:
    """Bytes of a piece; a piece with any character outside the alphabet (an added token) is itself."""
    try:
        return bytes([_ALPHABET[char] for char in piece])
    except KeyError:
        return piece.encode("utf-8", "replace")
