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
    work = applied((7, 3, list(range(2, 36))), (9, 5, [40, 41])).of_step(int32s(range(1, 43)))
    assert work is not None
    assert work.tiles.tolist() == [[0, 32, 0, 12, 0], [32, 2, 0, 12, 0], [34, 2, 0, 20, 0]]
    assert work.members.tolist() == [*range(1, 35), 39, 40]
    assert work.shared_lens.tolist() == [0] + [12] * 34 + [0] * 4 + [20, 20] + [0]
    assert work.shared_parts.tolist() == [0] + [1] * 34 + [0] * 4 + [1, 1] + [0]


@pytest.mark.parametrize(
    ("groups", "parts"),
    [
        pytest.param([(2048, 64)], [256] * 8, id="two tiles of rows in eight parts"),
        pytest.param([(2048, 8)], [128] * 16, id="one in sixteen"),
        pytest.param([(9000, 8)], [576] * 15 + [360], id="the last one is the rest"),
        pytest.param([(300, 40), (4096, 20)], [320] * 12 + [256], id="the longest of two"),
        pytest.param([(200, 2)], [128, 72], id="no part is too short to be worth it"),
    ],
)
def test_shared_tokens_are_cut_into_parts(groups: list[tuple[int, int]], parts: list[int]) -> None:
    told, first_row = [], 0
    for number, (tokens, count) in enumerate(groups):
        told.append((number, tokens, list(range(first_row, first_row + count))))
        first_row += count
    kept, tables = SharedGroups(NUM_ROWS, 1), np.zeros((NUM_ROWS + 1, 9000), dtype=np.int32)
    kept.apply(changes(*told), np.arange(NUM_ROWS) < 79, np.full(NUM_ROWS, 9000, dtype=np.int32), tables)
    work = kept.of_step(int32s(range(NUM_ROWS)))
    assert work is not None
    first_member = int(work.tiles[0, 0])
    of_first = work.tiles[work.tiles[:, 0] == first_member]
    assert (of_first[:, 3] - of_first[:, 2]).tolist() == parts
    assert of_first[:, 4].tolist() == list(range(len(parts)))
    assert work.shared_parts[work.members[first_member]] == len(parts)
    assert len(work.tiles) <= shared_groups.max_tiles(NUM_ROWS)


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
