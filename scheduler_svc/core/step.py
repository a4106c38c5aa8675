"""A step in flight: what was planned, kept until its result comes, so that a result can be understood whenever it
comes.

A record says for every row of the step whose it was, what it computed and which output position it samples. A token is
taken only if the request still accepts tokens and that position is the next of its output; so a late result can be
wasted but never misplaced.
"""

from scheduler_svc.core.request import Lane, Request, Residence
from scheduler_svc.core.types import PageId, StepId

Chunk = tuple[Residence, int, int]
"""(residence, tokens in this step, tokens computed after it)."""

Fill = tuple[Request, int, PageId]
"""(request, index in its page table, page): a page that is full after the step."""


class StepRecord:
    """What one step does."""

    __slots__ = ("chunks", "fills", "firsts", "landing", "lanes", "step_id")

    def __init__(self, step_id: StepId) -> None:
        self.step_id = step_id
        self.lanes: dict[int, Lane] = {}
        """Decoding rows; a snapshot that nobody changes."""
        self.chunks: list[Chunk] = []
        self.firsts: dict[int, Lane] = {}
        """Rows whose chunk reaches their last known token, so that they sample."""
        self.fills: list[Fill] = []
        self.landing: list[Request] = []
        """Requests that lost their rows and whose last token in flight is sampled in this step."""

    @property
    def num_rows(self) -> int:
        """Rows that compute."""
        return len(self.lanes) + len(self.chunks)

    @property
    def num_tokens(self) -> int:
        """Tokens computed."""
        return len(self.lanes) + sum(chunk[1] for chunk in self.chunks)

    @property
    def num_sampling_rows(self) -> int:
        """Rows that sample a token."""
        return len(self.lanes) + len(self.firsts)

    def sampling(self, row: int) -> Lane | None:
        """The lane of a row that samples in this step."""
        return self.lanes.get(row) or self.firsts.get(row)

    def requests(self) -> list[Request]:
        """All requests with a row in the step."""
        return [chunk[0].request for chunk in self.chunks] + [lane[0] for lane in self.lanes.values()]
