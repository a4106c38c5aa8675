"""Groups of rows that share leading pages, as a worker keeps them and cuts a step's rows into tiles."""

import numpy as np
import pytest

from gpu_worker import shared_groups
from gpu_worker.batch_plan import BatchPlan, int32s
from gpu_worker.errors import PlanRefusedError
from gpu_worker.shared_groups import MAX_GROUPS, SharedGroups

PAGE_SIZE = 4
NUM_ROWS = 80


@pytest.fixture(autouse=True)
def _any_saving_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_groups, "MIN_SAVED_TOKENS", 1)


def changes(*groups: tuple[int, int, list[int]]) -> BatchPlan:
    """(group, pages, rows) each."""
    return BatchPlan(
        group_ids=int32s([group for group, _, _ in groups]),
        group_pages=int32s([pages for _, pages, _ in groups]),
        group_sizes=int32s([len(rows) for _, _, rows in groups]),
        group_rows=int32s([row for _, _, rows in groups for row in rows]),
    )


def applied(*groups: tuple[int, int, list[int]], kept: SharedGroups | None = None) -> SharedGroups:
    kept = kept or SharedGroups(NUM_ROWS, PAGE_SIZE)
    tables = np.tile(np.arange(30, dtype=np.int32), (NUM_ROWS + 1, 1))
    kept.apply(changes(*groups), np.arange(NUM_ROWS) < 79, np.full(NUM_ROWS, 100, dtype=np.int32), tables)
    return kept


def test_rows_are_cut_into_tiles() -> None:
    work = applied((7, 3, list(range(2, 22))), (9, 5, [40, 41])).of_step(int32s(range(1, 43)))
    assert work is not None
    assert work.tiles.tolist() == [[0, 16, 12], [16, 4, 12], [20, 2, 20]]
    assert work.members.tolist() == [*range(1, 21), 39, 40]
    assert work.shared_lens.tolist() == [0] + [12] * 20 + [0] * 18 + [20, 20] + [0]


def test_a_group_of_one_running_row_saves_nothing() -> None:
    kept = applied((7, 3, [2, 3]))
    assert kept.of_step(int32s([2, 5, 6])) is None
    assert kept.of_step(int32s([5, 6])) is None


def test_released_rows_leave_and_groups_end() -> None:
    kept = applied((7, 3, [2, 3, 4]), (8, 2, [5, 6]))
    kept.release(int32s([3]))
    work = kept.of_step(int32s([2, 3, 4]))
    assert work is not None
    assert work.members.tolist() == [0, 2]
    applied((7, 3, []), kept=kept)
    work = kept.of_step(int32s(range(10)))
    assert work is not None
    assert work.members.tolist() == [5, 6]


def test_the_groups_that_save_most_are_taken() -> None:
    groups = [(number, 1 + number, [2 * number, 2 * number + 1]) for number in range(MAX_GROUPS + 3)]
    work = applied(*groups).of_step(int32s(range(NUM_ROWS)))
    assert work is not None
    assert len(work.tiles) == MAX_GROUPS
    assert work.shared_lens[:6].tolist() == [0] * 6
    assert len(work.tiles) <= shared_groups.max_tiles(NUM_ROWS)


@pytest.mark.parametrize(
    "group", [(1, 3, [79, 0]), (1, 3, [-1, 0]), (1, 3, [80, 0]), (1, 0, [1, 2]), (1, 26, [1, 2]), (-1, 3, [1, 2])]
)
def test_groups_that_cannot_be_are_refused(group: tuple[int, int, list[int]]) -> None:
    with pytest.raises(PlanRefusedError, match="group"):
        applied(group)


def test_rows_with_other_pages_are_refused() -> None:
    tables = np.arange(NUM_ROWS * 30, dtype=np.int32).reshape(NUM_ROWS, 30)
    with pytest.raises(PlanRefusedError, match="do not share"):
        SharedGroups(NUM_ROWS, PAGE_SIZE).apply(
            changes((1, 2, [1, 2])), np.ones(NUM_ROWS, dtype=bool), np.full(NUM_ROWS, 100, dtype=np.int32), tables
        )
