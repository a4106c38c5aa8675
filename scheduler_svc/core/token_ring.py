"""The newest tokens of a worker's decoding rows, kept by row until their requests take them.

A step brings one token to each of hundreds of rows. Appending each to its request's output would cost a few operations
of Python a token; here a step is written as one column, and a request takes all it got since the last time with one
slice, at latest when its page is full:

              step % length
              0   1   2   3
    row 0   [ .   .   7   9 ]     step 2 brought 7 to row 0, step 3 brought 9
    row 1   [ 4   .   5   1 ]     step 4 brought 4 to row 1 already

Knows no requests. A row's token of a step is there until ``length`` steps later.
"""

from array import array

from scheduler_svc.core.types import Row

Run = tuple[int, int, int]
"""(first row, start, stop): rows from ``first row`` on, without a gap, have the entries ``start:stop`` of a column."""


class TokenRing:
    """``length`` tokens for each of ``num_rows`` rows."""

    __slots__ = ("_length", "_tokens")

    def __init__(self, num_rows: int, length: int) -> None:
        self._length = length
        self._tokens = array("i", bytes(4 * num_rows * length))

    def put(self, step_id: int, runs: list[Run], token_ids: "array[int]") -> None:
        """Writes the tokens of a step; ``runs`` say whose each entry is."""
        length, tokens, column = self._length, self._tokens, step_id % self._length
        for row, start, stop in runs:
            first = row * length + column
            tokens[first : first + (stop - start - 1) * length + 1 : length] = token_ids[start:stop]

    def take(self, row: Row, first_step: int, last_step: int) -> "array[int]":
        """A row's tokens of these steps, at most ``length`` of them."""
        begin, start = row * self._length, first_step % self._length
        stop = start + last_step - first_step + 1
        if stop <= self._length:
            return self._tokens[begin + start : begin + stop]
        end = begin + self._length
        return self._tokens[begin + start : end] + self._tokens[begin : begin + stop - self._length]
