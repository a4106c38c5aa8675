"""Which rows answer a plan."""

from array import array

import pytest

from scheduler_svc.core.types import BatchPlan, NewRow, Row, SamplingParams, StepId, WorkerId
from scheduler_svc.expected_rows import ExpectedRows, PlanError


def ints(*values: int) -> "array[int]":
    return array("i", values)


def new(row: int, length: int, cached: int = 0) -> NewRow:
    tokens = ints(*range(length))
    return NewRow(
        row=Row(row), num_prompt_tokens=length, token_ids=tokens, num_cached_tokens=cached, sampling=SamplingParams()
    )


def plan(
    *,
    rows: int,
    tokens: int,
    begins: tuple[NewRow, ...] = (),
    chunks: dict[int, int] | None = None,
    idle: tuple[int, ...] = (),
    releases: tuple[int, ...] = (),
) -> BatchPlan:
    chunks = chunks or {}
    return BatchPlan(
        worker_id=WorkerId("w"),
        step_id=StepId(1),
        releases=[Row(row) for row in releases],
        new_rows=begins,
        append_rows=ints(),
        append_pages=ints(),
        copy_sources=ints(),
        copy_destinations=ints(),
        chunk_rows=ints(*chunks),
        chunk_tokens=ints(*chunks.values()),
        idle_rows=ints(*idle),
        evicted_pages=ints(),
        num_scheduled_rows=rows,
        num_scheduled_tokens=tokens,
    )


def test_chunks_in_plan_order_then_decodes_ascending() -> None:
    rows = ExpectedRows()
    first = plan(rows=2, tokens=10, begins=(new(5, 4), new(2, 8, cached=1)), chunks={5: 4, 2: 6})
    assert rows.apply(first) == ints(5)
    second = plan(rows=3, tokens=4, begins=(new(0, 2),), chunks={2: 1, 0: 2})
    assert rows.apply(second) == ints(2, 0, 5)
    assert rows.apply(plan(rows=3, tokens=3)) == ints(0, 2, 5)
    assert rows.apply(plan(rows=2, tokens=2, idle=(2,))) == ints(0, 5)
    assert rows.apply(plan(rows=3, tokens=3)) == ints(0, 2, 5)


def test_a_released_row_may_begin_again_at_once() -> None:
    rows = ExpectedRows()
    rows.apply(plan(rows=1, tokens=2, begins=(new(1, 2),), chunks={1: 2}))
    assert rows.apply(plan(rows=1, tokens=3, releases=(1,), begins=(new(1, 3),), chunks={1: 3})) == ints(1)


@pytest.mark.parametrize(
    "wrong",
    [
        plan(rows=1, tokens=1, begins=(new(1, 2),)),
        plan(rows=2, tokens=1),
        plan(rows=1, tokens=1, releases=(3,)),
        plan(rows=2, tokens=4, chunks={4: 3}),
        plan(rows=2, tokens=2, chunks={1: 1}),
        plan(rows=0, tokens=0, idle=(4,)),
        plan(rows=2, tokens=1, chunks={4: 0}),
    ],
)
def test_a_plan_that_contradicts_the_earlier_ones_is_a_fault(wrong: BatchPlan) -> None:
    rows = ExpectedRows()
    rows.apply(plan(rows=2, tokens=4, begins=(new(1, 2), new(4, 4)), chunks={1: 2, 4: 2}))
    with pytest.raises(PlanError):
        rows.apply(wrong)
