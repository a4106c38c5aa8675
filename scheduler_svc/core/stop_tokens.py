"""Finds in a step's tokens those that may end a request.

Nearly all requests share one or two stop tokens, and nearly no token is one: looking for a few ids in a whole column
costs far less than asking for each token whether it is among its request's. What is found is only a candidate: the id
may be a stop token of another request.
"""

import sys
from array import array
from collections.abc import Iterable

_FEW = 8
"""With more ids than that one look at each token is cheaper than one search an id."""


class StopTokens:
    """Stop tokens of all requests placed on a worker, each counted as often as a request has it."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, token_ids: Iterable[int]) -> None:
        """A request with these stop tokens comes."""
        counts = self._counts
        for token_id in token_ids:
            counts[token_id] = counts.get(token_id, 0) + 1

    def remove(self, token_ids: Iterable[int]) -> None:
        """A request with these stop tokens goes."""
        counts = self._counts
        for token_id in token_ids:
            if counts[token_id] == 1:
                del counts[token_id]
            else:
                counts[token_id] -= 1

    def find(self, token_ids: "array[int]") -> list[int]:
        """Positions of stop tokens in a column, ascending."""
        counts = self._counts
        if len(counts) > _FEW:
            if counts.keys().isdisjoint(token_ids):
                return []
            return [index for index, token_id in enumerate(token_ids) if token_id in counts]
        content, found = token_ids.tobytes(), []
        for token_id in counts:
            pattern = token_id.to_bytes(4, sys.byteorder, signed=True)
            at = content.find(pattern)
            while at >= 0:
                if at % 4 == 0:  # else the end of one id and the beginning of the next look like it
                    found.append(at // 4)
                at = content.find(pattern, at + 1)
        return sorted(found)
