"""Turns the token ids of one output into text, piece by piece.

The joined text is the same however the ids are cut into pieces, and equals decode(prompt + ids) minus decode(prompt):
the prompt decides whether a leading blank belongs to the text. A character comes out when its last byte has arrived;
`flush` turns what is incomplete at the end into one U+FFFD. A character that the prompt began and the output completes
is the output's; one that stays incomplete is the prompt's, as what it stands for is in decode(prompt).

`TableDetokenizer` joins bytes from a table and decodes once a call. `WindowDetokenizer` serves decoders without a table
by decoding a small window with the tokenizers library, token by token. Both can be copied cheaply, so that a caller may
replay a piece token by token to learn which token brought a character.
"""

import codecs
from array import array
from collections.abc import Sequence
from typing import Protocol

from tokenizers import Tokenizer

from scheduler_svc.front.token_bytes import TokenBytes

PRIMING_TOKENS = 8
"""Enough of the prompt's last tokens to hold an incomplete character (4 bytes) and some hidden tokens."""


class Detokenizer(Protocol):
    """What an output needs of either kind."""

    def feed(self, token_ids: Sequence[int]) -> str:
        """Text that the ids complete."""

    def flush(self) -> str:
        """What is left at the end: U+FFFD for an incomplete character, or nothing."""

    def copy(self) -> "Detokenizer":
        """An independent one at the same place."""


def _each_byte(error: UnicodeError) -> tuple[str, int]:
    """Codec error handler: one U+FFFD for every byte that is no part of a character."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error("pagewire-each-byte", _each_byte)
_UTF8 = codecs.getincrementaldecoder("utf-8")


class TableDetokenizer:
    """Joins bytes by id. Cost: well under a microsecond a token, amortised."""

    __slots__ = ("_begun", "_decoder", "_entries", "_errors", "_first", "_strip")

    def __init__(self, table: TokenBytes, prompt: Sequence[int], *, skip_special_tokens: bool) -> None:
        self._entries = table.hidden if skip_special_tokens else table.shown
        self._errors = "pagewire-each-byte" if table.each_byte else "replace"
        self._decoder = _UTF8(self._errors)
        entries, size = self._entries, len(self._entries)
        started = any(0 <= token_id < size and entries[token_id] for token_id in prompt)
        self._first = {} if started else table.first
        self._strip = self._blanks_left(prompt, table.strip_left) if table.strip_left else 0
        if started:
            self._decoder.decode(self._join(prompt[-PRIMING_TOKENS:]))
        pending = self._decoder.getstate()[0]
        self._begun = len(pending) if table.each_byte else min(len(pending), 1)

    def copy(self) -> "TableDetokenizer":
        twin = TableDetokenizer.__new__(TableDetokenizer)
        twin._entries, twin._errors = self._entries, self._errors
        twin._first, twin._strip, twin._begun = self._first, self._strip, self._begun
        twin._decoder = _UTF8(self._errors)
        twin._decoder.setstate(self._decoder.getstate())
        return twin

    def feed(self, token_ids: Sequence[int]) -> str:
        joined = self._join_first(token_ids) if self._first else self._join(token_ids)
        if not joined:
            return ""
        text = self._decoder.decode(joined)
        if self._begun and text:
            text = self._behind_prompt(text)
        return self._stripped(text) if self._strip and text else text

    def flush(self) -> str:
        return "" if self._begun else self._decoder.getstate()[0].decode("utf-8", "replace")

    def _join(self, token_ids: Sequence[int]) -> bytes:
        entries = self._entries
        try:
            return b"".join([entries[token_id] for token_id in token_ids])
        except IndexError:
            # Logits may have more rows than the vocabulary has entries: such ids have no text.
            return b"".join([entries[token_id] for token_id in token_ids if token_id < len(entries)])

    def _join_first(self, token_ids: Sequence[int]) -> bytes:
        """As `_join` while no visible token has come yet."""
        for position, token_id in enumerate(token_ids):
            if self._join([token_id]):
                first = self._first.get(token_id)
                self._first = {}
                rest = self._join(token_ids[position + 1 :])
                return (self._join([token_id]) if first is None else first) + rest
        return b""

    def _behind_prompt(self, text: str) -> str:
        """The first text without what the prompt's last character stands for, if that stayed incomplete."""
        told, self._begun = "\ufffd" * self._begun, 0
        return text.removeprefix(told)

    def _stripped(self, text: str) -> str:
        """Takes the blanks that still have to go from the beginning of the whole text."""
        taken = min(self._strip, len(text) - len(text.lstrip(" ")))
        self._strip = self._strip - taken if taken == len(text) else 0
        return text[taken:]

    def _blanks_left(self, prompt: Sequence[int], strip_left: int) -> int:
        """Blanks still to strip behind a prompt: none unless its text is nothing but a few blanks."""
        for token_id in prompt:
            joined = self._join([token_id])
            if strip_left <= len(joined) or joined.strip(b" "):
                return 0 if joined else strip_left
            strip_left -= len(joined)
        return strip_left


class WindowDetokenizer:
    """Decodes a window of the last ids with the tokenizers library. Cost: some microseconds a token."""

    __slots__ = ("_ids", "_read", "_shown", "_skip", "_start", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._ids = array("i", prompt[-PRIMING_TOKENS:])
        self._start = 0
        self._read = len(self._ids)
        self._shown = self._decode(0, self._read)

    def copy(self) -> "WindowDetokenizer":
        twin = WindowDetokenizer.__new__(WindowDetokenizer)
        twin._tokenizer, twin._skip, twin._shown = self._tokenizer, self._skip, self._shown
        twin._ids, twin._start, twin._read = array("i", self._ids), self._start, self._read
        return twin

    def feed(self, token_ids: Sequence[int]) -> str:
        return "".join([self._feed_one(token_id) for token_id in token_ids])

    def _feed_one(self, token_id: int) -> str:
        self._ids.append(token_id)
        text = self._decode(self._start, len(self._ids))
        # Shown text that changes ended inside a character, which is complete now.
        shown = self._shown if text.startswith(self._shown) else self._shown.rstrip("\ufffd")
        if text.endswith("\ufffd") or len(text) <= len(shown):
            return ""
        new = text[len(shown) :]
        self._start, self._read = self._read, len(self._ids)
        self._shown = self._decode(self._start, self._read)
        if self._start > 64:
            del self._ids[: self._start]
            self._read -= self._start
            self._start = 0
        return new

    def flush(self) -> str:
        if self._read == len(self._ids):
            return ""
        text = self._decode(self._start, len(self._ids))
        self._read = len(self._ids)
        left = text[len(self._shown) :]
        return left.rstrip("\ufffd") + "\ufffd" if left.endswith("\ufffd") else left

    def _decode(self, start: int, end: int) -> str:
        return str(self._tokenizer.decode(list(self._ids[start:end]), skip_special_tokens=self._skip))
