"""A step in flight: what was planned, kept until its result comes, so that a result can be understood whenever it
comes.

A record says of every row of the step whose it was and what it computed. Results come in the order of the steps, so
the tokens of a request's rows come in the order of its output; what is not wanted any more, because the request ended
or is at its end, is *dropped*: noted here at that moment, and left out when the result comes. So a late result can be
wasted but never misplaced.
"""

from array import array
from bisect import bisect_left
from typing import Final

from scheduler_svc.core.request import Lane, Request, Residence
from scheduler_svc.core.token_ring import Run
from scheduler_svc.core.types import PageId, StepId

Chunk = tuple[Residence, int, int]
"""(residence, tokens in this step, tokens computed after it)."""

Fill = tuple[Request, int, PageId]
"""(request, index in its page table, page): a page that is full after the step."""


class Decoders:
    """Decoding rows in ascending order, their lanes and their requests' keys: columns that nobody changes."""

    __slots__ = ("keys", "lanes", "rows", "runs")

    def __init__(self, rows: "array[int]", lanes: list[Lane], keys: "array[int]", runs: list[Run]) -> None:
        self.rows = rows
        self.lanes = lanes
        self.keys = keys
        self.runs = runs


NOBODY: Final = Decoders(array("i"), [], array("Q"), [])


class StepRecord:
    """What one step does."""

    __slots__ = ("chunks", "closing", "decoders", "dropped", "fills", "finals", "firsts", "landing", "step_id")

    def __init__(self, step_id: StepId) -> None:
        self.step_id = step_id
        self.decoders = NOBODY
        self.chunks: list[Chunk] = []
        self.firsts: dict[int, Lane] = {}
        """Rows whose chunk reaches their last known token, so that they sample."""
        self.fills: list[Fill] = []
        self.finals: list[Lane] = []
        """Of the rows that sample those whose token is the last they may have."""
        self.closing: list[Lane] = []
        """Lanes that ended with this step, whose tokens are still to be collected."""
        self.landing: list[Request] = []
        """Requests that lost their rows and whose last token in flight is sampled in this step."""
        self.dropped: set[int] = set()
        """Places of rows whose token nobody wants any more."""

    @property
    def num_rows(self) -> int:
        """Rows that compute."""
        return len(self.decoders.rows) + len(self.chunks)

    @property
    def num_tokens(self) -> int:
        """Tokens computed."""
        return len(self.decoders.rows) + sum(chunk[1] for chunk in self.chunks)

    @property
    def sampling_rows(self) -> "array[int]":
        """Rows that sample a token, in the order in which a result gives them."""
        return array("i", self.firsts) + self.decoders.rows if self.firsts else self.decoders.rows

    @property
    def sampling_keys(self) -> "array[int]":
        """Their requests' keys."""
        decoders = self.decoders.keys
        return array("Q", [lane.request.key for lane in self.firsts.values()]) + decoders if self.firsts else decoders

    def place_of(self, row: int) -> int | None:
        """Where a row is among those that sample."""
        if row in self.firsts:
            return list(self.firsts).index(row)
        rows = self.decoders.rows
        index = bisect_left(rows, row)
        return len(self.firsts) + index if index < len(rows) and rows[index] == row else None

    def lane_at(self, place: int) -> Lane:
        """The lane of a row that samples."""
        num_firsts = len(self.firsts)
        return list(self.firsts.values())[place] if place < num_firsts else self.decoders.lanes[place - num_firsts]

    def drop(self, request: Request) -> None:
        """Nobody wants what the step samples for this request, if it does."""
        row, rows = request.row, self.decoders.rows
        index = bisect_left(rows, row)
        if index < len(rows) and rows[index] == row and self.decoders.lanes[index].request is request:
            self.dropped.add(len(self.firsts) + index)
        elif row in self.firsts and self.firsts[row].request is request:
            self.dropped.add(list(self.firsts).index(row))

    def requests(self) -> list[Request]:
        """All requests with a row in the step."""
        return [chunk[0].request for chunk in self.chunks] + [lane.request for lane in self.decoders.lanes]
