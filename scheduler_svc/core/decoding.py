"""Rows that decode on one worker: each computes its last token every step and samples the next.

Such a row needs no decision in most steps, so nothing is done for it in most steps. It has a *lane*, which says by a
sum what it does in each step, and an appointment: the next step in which the batcher must look at it (``due``), because
its page is full or it has sampled all it may with the step before. Planning costs what is due, not what runs.

A row that has to sit out (no page, no budget) loses its lane and is *ready*: it gets a new lane when it goes on.

Invariant: every row the worker regards as decoding is in ``lanes`` or in ``ready``, never in both.
"""

from array import array
from bisect import bisect_left, insort

from scheduler_svc.core.accounts import Account
from scheduler_svc.core.request import Lane, Residence
from scheduler_svc.core.step import NOBODY, Decoders
from scheduler_svc.core.token_ring import Run
from scheduler_svc.core.types import Row, StepId


class Decoding:
    """Lanes, ready rows and appointments of one worker."""

    __slots__ = (
        "_due",
        "_end",
        "_gaps",
        "_keys",
        "_lanes",
        "_rows",
        "_snapshot",
        "lanes",
        "num_lanes",
        "ready",
    )

    def __init__(self) -> None:
        self.lanes: dict[int, Lane] = {}
        """By row; those that began first come first."""
        self.num_lanes: dict[Account, int] = {}
        """Lanes by tenant; no zeros."""
        self.ready: dict[Row, Residence] = {}
        self._rows: array[int] = array("i")  # the rows of ``lanes``, ascending
        self._lanes: list[Lane] = []  # their lanes
        self._keys: array[int] = array("Q")  # their requests' keys
        self._gaps: list[int] = []  # rows below ``_end`` that have no lane, ascending
        self._end = 0  # one more than the last row that has a lane
        self._snapshot: Decoders | None = NOBODY
        self._due: dict[int, list[Residence]] = {}

    def snapshot(self) -> Decoders:
        """The lanes as they are now, never changed afterwards; copied only if they changed since the last call."""
        if self._snapshot is None:
            self._snapshot = Decoders(self._rows[:], self._lanes[:], self._keys[:], self._runs())
        return self._snapshot

    def enter(self, residence: Residence, step_id: StepId) -> None:
        """A ready row decodes in ``step_id`` and from then on."""
        row = residence.row
        lane = residence.lane = residence.lane_from(step_id)
        del self.ready[row]
        self.lanes[row] = lane
        index = bisect_left(self._rows, row)
        self._rows.insert(index, row)
        self._lanes.insert(index, lane)
        self._keys.insert(index, lane.request.key)
        if row >= self._end:
            self._gaps.extend(range(self._end, row))
            self._end = row + 1
        else:
            del self._gaps[bisect_left(self._gaps, row)]
        account = lane.request.account
        self.num_lanes[account] = self.num_lanes.get(account, 0) + 1
        self._snapshot = None

    def sit_out(self, residence: Residence, last_step: StepId) -> None:
        """A row that decoded up to ``last_step`` pauses."""
        self.leave(residence, last_step)
        self.ready[residence.row] = residence

    def leave(self, residence: Residence, last_step: StepId) -> None:
        """A row decodes no more after ``last_step``: what followed from its lane is written down."""
        row = residence.row
        if residence.lane is None:
            self.ready.pop(row, None)
            return
        residence.num_computed = residence.computed_before(last_step + 1)
        residence.last_step = last_step
        residence.lane = None
        residence.due_step = 0
        del self.lanes[row]
        index = bisect_left(self._rows, row)
        del self._rows[index], self._lanes[index], self._keys[index]
        insort(self._gaps, row)
        while self._gaps and self._gaps[-1] == self._end - 1:
            self._end = self._gaps.pop()
        account = residence.request.account
        self.num_lanes[account] -= 1
        if not self.num_lanes[account]:
            del self.num_lanes[account]
        self._snapshot = None

    def appoint(self, residence: Residence, step_id: int) -> None:
        """Looks at a lane again in this step."""
        residence.due_step = step_id
        due = self._due.get(step_id)
        if due is None:
            self._due[step_id] = [residence]
        else:
            due.append(residence)

    def due(self, step_id: int) -> list[Residence]:
        """The lanes to be looked at in a step; those that fill their page or sample their last token in the step
        before it."""
        return [residence for residence in self._due.get(step_id, ()) if residence.due_step == step_id]

    def forget_due(self, step_id: int) -> None:
        """The lanes that were due in a step have been looked at."""
        self._due.pop(step_id, None)

    def _runs(self) -> list[Run]:
        runs: list[Run] = []
        row = start = 0
        for gap in (*self._gaps, self._end):
            if gap > row:
                runs.append((row, start, start + gap - row))
                start += gap - row
            row = gap + 1
        return runs
