"""Histograms as plain numbers: how often a value fell between two bounds, and the sum of all values.

An observation costs one binary search over some ten bounds. One that happened many times alike (the tokens of a step)
is one call. Counts only ever grow; a histogram of another process is added by the difference to what it said last.
"""

from bisect import bisect_left
from collections.abc import Sequence

FIRST_TOKEN_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
REQUEST_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
STEP_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
STALL_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
REQUEST_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144)
STEP_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Histogram:
    """``counts[i]`` values lie above ``bounds[i - 1]``, not above ``bounds[i]``; the last count has no upper bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """One value, as often as it was seen; less than nothing (a clock of two processes) is nothing."""
        if value < 0:
            value = 0.0
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def add(self, counts: Sequence[int], total: float) -> None:
        """Values that were observed elsewhere, with the same bounds."""
        for place, count in enumerate(counts):
            self.counts[place] += count
        self.total += total

    @property
    def count(self) -> int:
        """Values so far."""
        return sum(self.counts)
