"""Rows that decode on one worker: each computes its last token every step and samples the next.

Such a row needs no decision in most steps, so nothing is done for it in most steps. It has a *lane*, which says by a
sum what it does in each step, and an appointment (``due``): the next step in which the batcher must look at it,
because it needs a page, fills one, or has sampled all it may. Planning costs what is due, not what runs.

A row that has to sit out (no page, no budget) loses its lane and is *ready*: it gets a new lane when it goes on.

Invariant: every row the worker regards as decoding is in ``lanes`` or in ``ready``, never in both.
"""

from scheduler_svc.core.request import Lane, Residence
from scheduler_svc.core.step import Fill
from scheduler_svc.core.types import Row, StepId


class Decoding:
    """Lanes, ready rows and appointments of one worker."""

    __slots__ = ("_due", "_fills", "_snapshot", "lanes", "ready")

    def __init__(self) -> None:
        self.lanes: dict[int, Lane] = {}
        self.ready: dict[Row, Residence] = {}
        self._due: dict[int, list[Residence]] = {}
        self._fills: dict[int, list[Residence]] = {}
        self._snapshot: dict[int, Lane] | None = None

    def snapshot(self) -> dict[int, Lane]:
        """The lanes as they are now, never changed afterwards; copied only if they changed since the last call."""
        if self._snapshot is None:
            self._snapshot = dict(self.lanes)
        return self._snapshot

    def enter(self, residence: Residence, step_id: StepId) -> None:
        """A ready row decodes in ``step_id`` and from then on."""
        residence.lane = residence.lane_from(step_id)
        del self.ready[residence.row]
        self.lanes[residence.row] = residence.lane
        self._snapshot = None

    def sit_out(self, residence: Residence, last_step: StepId) -> None:
        """A row that decoded up to ``last_step`` pauses."""
        self.leave(residence, last_step)
        self.ready[residence.row] = residence

    def leave(self, residence: Residence, last_step: StepId) -> None:
        """A row decodes no more after ``last_step``: what followed from its lane is written down."""
        if residence.lane is None:
            self.ready.pop(residence.row, None)
            return
        residence.num_computed = residence.computed_before(last_step + 1)
        residence.last_step = last_step
        residence.lane = None
        residence.due_step = residence.fill_step = 0
        del self.lanes[residence.row]
        self._snapshot = None

    def appoint(self, residence: Residence, step_id: int) -> None:
        """Looks at a lane again in this step."""
        residence.due_step = step_id
        self._due.setdefault(step_id, []).append(residence)

    def pop_due(self, step_id: StepId) -> list[Residence]:
        """The lanes to be looked at now."""
        return [residence for residence in self._due.pop(step_id, ()) if residence.due_step == step_id]

    def appoint_fill(self, residence: Residence, step_id: int) -> None:
        """A lane's last page is full after this step."""
        residence.fill_step = step_id
        self._fills.setdefault(step_id, []).append(residence)

    def pop_fills(self, step_id: StepId) -> list[Fill]:
        """The pages that lanes fill in this step."""
        return [
            (residence.request, len(residence.pages) - 1, residence.pages[-1])
            for residence in self._fills.pop(step_id, ())
            if residence.fill_step == step_id
        ]
