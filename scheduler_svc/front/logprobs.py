"""Log probabilities on their way to the caller: columns that grow position by position and are cut as tokens are taken.

The worker's columns are the caller's: little-endian, `width` entries a position. Nothing is unpacked here.
"""

from typing import Any

from pagewire.v1 import generation_pb2

MAX_LOGPROBS = 20
MAX_POSITIONS = 2048
"""Positions of a message: with 21 entries of 12 bytes each it stays below 1 MiB."""
_BYTES = 4
"""Of an entry in each column."""
_COLUMNS = ("token_ids", "logprobs", "ranks")


class LogprobColumns:
    """Positions that were not taken yet, oldest first."""

    __slots__ = ("_columns", "_width")

    def __init__(self) -> None:
        self._width = 0
        self._columns = [bytearray() for _ in _COLUMNS]

    @property
    def num_bytes(self) -> int:
        return len(_COLUMNS) * len(self._columns[0])

    @property
    def num_positions(self) -> int:
        return len(self._columns[0]) // (_BYTES * self._width) if self._width else 0

    def append(self, found: Any, num_skipped: int = 0) -> None:
        """The positions of a pagewire.internal.v1.RowLogprobs, but for the first few."""
        self._width = found.width
        for column, name in zip(self._columns, _COLUMNS, strict=True):
            column += getattr(found, name)[num_skipped * found.width * _BYTES :]

    def take(self, num_positions: int) -> Any:
        """The oldest positions as Logprobs, as many as there are; None if there are none."""
        end = min(num_positions, self.num_positions) * self._width * _BYTES
        if not end:
            return None
        logprobs = generation_pb2.Logprobs(width=self._width)
        for column, name in zip(self._columns, _COLUMNS, strict=True):
            setattr(logprobs, name, bytes(column[:end]))
            del column[:end]
        return logprobs


class PromptLogprobs:
    """Those of a request's prompt. A part may come again: a preempted output computes the prompt once more."""

    __slots__ = ("_columns", "_is_empty", "_next")

    def __init__(self, *, is_empty: bool = False) -> None:
        """`is_empty`: they are asked for, of a prompt of one token, which has none."""
        self._columns = LogprobColumns()
        self._is_empty = is_empty
        self._next = 1

    def add(self, found: Any) -> None:
        """A part of the prompt, of which only what is new counts."""
        num_known = self._next + self._columns.num_positions - found.first_position
        if 0 <= num_known < found.num_prompt_positions:
            self._columns.append(found, num_known)

    def take(self) -> list[Any]:
        """What is new, as PromptLogprobs messages."""
        if self._is_empty:
            self._is_empty = False
            return [generation_pb2.PromptLogprobs(first_position=self._next, logprobs=generation_pb2.Logprobs())]
        messages = []
        while num_positions := min(self._columns.num_positions, MAX_POSITIONS):
            logprobs = self._columns.take(num_positions)
            messages.append(generation_pb2.PromptLogprobs(first_position=self._next, logprobs=logprobs))
            self._next += num_positions
        return messages


def join_logprobs(whole: Any, part: Any) -> None:
    """Appends the positions of one Logprobs to another."""
    whole.SetInParent()
    whole.width = part.width
    for name in _COLUMNS:
        setattr(whole, name, getattr(whole, name) + getattr(part, name))
