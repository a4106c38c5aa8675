"""Which rows must answer each plan, in which order: the worker's rows as the plans alone determine them.

What a result may hold is thereby known before it comes. Nothing here depends on results.
"""

from array import array
from bisect import bisect_left, insort
from collections.abc import Sequence

from scheduler_svc.core.types import BatchPlan


class PlanError(Exception):
    """A plan contradicts the plans before it: a fault of the core."""


class ExpectedRows:
    """Rows of one epoch of one worker; feed it each plan once, in order."""

    def __init__(self) -> None:
        self._remaining: dict[int, int] = {}
        """Row -> known tokens not computed yet."""
        self._decoding: set[int] = set()
        self._sorted: array[int] = array("i")
        """The decoding rows in ascending order; what was given out is never changed."""

    def apply(self, plan: BatchPlan) -> "array[int]":
        """Rows that sample in the step, as worker.proto orders them. O(changes) while the decoding rows stay the same.

        Raises: PlanError.
        """
        released = [row for row in plan.releases if self._remaining.pop(row, None) is None]
        self._change(leave=released, enter=())
        for new_row in plan.new_rows:
            if new_row.row in self._remaining or new_row.row in self._decoding:
                raise PlanError(f"row {new_row.row} begins twice")
            self._remaining[new_row.row] = len(new_row.token_ids) - new_row.num_cached_tokens
        decoding = self._decoding_now(plan)
        sampling = array("i")
        for chunk_row, num_tokens in zip(plan.chunk_rows, plan.chunk_tokens, strict=True):
            if self._compute(chunk_row, num_tokens):
                sampling.append(chunk_row)
        num_rows, num_tokens = len(plan.chunk_rows) + len(decoding), sum(plan.chunk_tokens) + len(decoding)
        if (num_rows, num_tokens) != (plan.num_scheduled_rows, plan.num_scheduled_tokens):
            raise PlanError(
                f"step {plan.step_id} says {plan.num_scheduled_rows} rows and {plan.num_scheduled_tokens} tokens, "
                f"makes {num_rows} and {num_tokens}"
            )
        if not sampling:
            return decoding
        self._change(leave=(), enter=sampling)
        return sampling + decoding

    def _change(self, leave: Sequence[int], enter: Sequence[int]) -> None:
        """Other rows decode from now on."""
        if not (leave or enter):
            return
        rows = self._sorted = self._sorted[:]
        for row in leave:
            if row not in self._decoding:
                raise PlanError(f"row {row} is released but not there")
            self._decoding.remove(row)
            del rows[bisect_left(rows, row)]
        for row in enter:
            self._decoding.add(row)
            insort(rows, row)

    def _decoding_now(self, plan: BatchPlan) -> "array[int]":
        if not plan.idle_rows:
            return self._sorted
        idle = set(plan.idle_rows)
        if not idle <= self._decoding:
            raise PlanError(f"idle rows {sorted(idle - self._decoding)} do not decode")
        return array("i", [row for row in self._sorted if row not in idle])

    def _compute(self, row: int, num_tokens: int) -> bool:
        """Whether the chunk reaches the row's last known token."""
        remaining = self._remaining.get(row, 0) - num_tokens
        if num_tokens < 1 or remaining < 0:
            raise PlanError(f"row {row} cannot compute {num_tokens} tokens")
        if remaining:
            self._remaining[row] = remaining
            return False
        del self._remaining[row]
        return True
