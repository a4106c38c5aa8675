"""Request rows: what a plan does to the counts, and every plan that does not fit them is refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plan_driver import Generation, PlanMaker

from gpu_worker.batch_plan import BatchPlan, NewRows, int32s
from gpu_worker.errors import PlanRefusedError
from gpu_worker.model_inputs import DeviceRows, exact_shape
from gpu_worker.request_rows import RequestRows, RowLimits, StepWork
from gpu_worker.step_columns import fill_columns, layout_of, move_columns
from gpu_worker.step_shape import GraphShapes, StepShape

LIMITS = RowLimits(
    max_num_seqs=8, max_num_batched_tokens=64, max_model_len=40, page_size=4, num_pages=32, vocab_size=100
)


def new_rows(*lengths: tuple[int, int, int], **changes: Any) -> NewRows:
    """Rows from (row, token ids, cached tokens)."""
    rows = [row for row, _, _ in lengths]
    columns: dict[str, Any] = {
        "rows": int32s(rows),
        "num_prompt_tokens": int32s([count for _, count, _ in lengths]),
        "num_token_ids": int32s([count for _, count, _ in lengths]),
        "token_ids": int32s([5] * sum(count for _, count, _ in lengths)),
        "num_cached_tokens": int32s([cached for _, _, cached in lengths]),
        "output_indices": int32s([0] * len(rows)),
        "seeds": np.zeros(len(rows), dtype=np.uint64),
        "temperatures": np.zeros(len(rows), dtype=np.float32),
        "top_ps": np.ones(len(rows), dtype=np.float32),
        "top_ks": int32s([0] * len(rows)),
        "min_ps": np.zeros(len(rows), dtype=np.float32),
    }
    return NewRows(**{**columns, **changes})


def appends(rows: list[int], pages: list[int]) -> dict[str, Any]:
    return {"append_rows": int32s(rows), "append_pages": int32s(pages)}


def copies(sources: list[int], destinations: list[int]) -> dict[str, Any]:
    return {"copy_sources": int32s(sources), "copy_destinations": int32s(destinations)}


def floats(*values: float) -> Any:
    return np.array(values, dtype=np.float32)


def begun() -> tuple[RequestRows, BatchPlan]:
    """Row 2 decodes (6 tokens known of which 5 are computed, 2 pages); row 5 has 3 of 9 tokens computed (1 page).
    Also a plan that decodes row 2 and computes four more tokens of row 5."""
    rows = RequestRows(LIMITS)
    rows.advance(
        BatchPlan(
            new_rows=new_rows((2, 5, 0), (5, 9, 0)),
            append_rows=int32s([2, 5, 2]),
            append_pages=int32s([10, 11, 12]),
            chunk_rows=int32s([5, 2]),
            chunk_tokens=int32s([3, 5]),
            num_scheduled_rows=2,
            num_scheduled_tokens=8,
        )
    )
    plan = BatchPlan(
        append_rows=int32s([5]),
        append_pages=int32s([13]),
        chunk_rows=int32s([5]),
        chunk_tokens=int32s([4]),
        num_scheduled_rows=2,
        num_scheduled_tokens=5,
    )
    return rows, plan


def test_counts_follow_the_plan() -> None:
    rows, plan = begun()
    assert rows.num_computed[[2, 5]].tolist() == [5, 3]
    assert rows.num_tokens[[2, 5]].tolist() == [6, 9]
    assert rows.decoding.nonzero()[0].tolist() == [2]
    assert rows.page_tables[2, :2].tolist() == [10, 12]
    work = rows.advance(plan)
    assert (work.decode_rows.tolist(), work.chunk_rows.tolist(), work.sampled_rows.tolist()) == ([2], [5], [2])
    assert rows.num_computed[[2, 5]].tolist() == [6, 7]
    last = BatchPlan(
        append_rows=int32s([5]),
        append_pages=int32s([14]),
        chunk_rows=int32s([5]),
        chunk_tokens=int32s([2]),
        num_scheduled_rows=2,
        num_scheduled_tokens=3,
    )
    assert rows.advance(last).sampled_rows.tolist() == [5, 2]  # chunks first, then decoding rows
    assert rows.decoding.nonzero()[0].tolist() == [2, 5]


def test_a_released_row_begins_again_in_the_same_plan() -> None:
    rows, _ = begun()
    work = rows.advance(
        BatchPlan(
            releases=int32s([2, 5]),
            new_rows=new_rows((5, 3, 0)),
            append_rows=int32s([5]),
            append_pages=int32s([11]),
            chunk_rows=int32s([5]),
            chunk_tokens=int32s([3]),
            num_scheduled_rows=1,
            num_scheduled_tokens=3,
        )
    )
    assert work.sampled_rows.tolist() == [5]
    assert rows.active.nonzero()[0].tolist() == [5]


def test_cached_tokens_are_not_computed() -> None:
    rows = RequestRows(LIMITS)
    plan = BatchPlan(
        new_rows=new_rows((0, 9, 8)),
        append_rows=int32s([0, 0, 0]),
        append_pages=int32s([1, 2, 3]),
        chunk_rows=int32s([0]),
        chunk_tokens=int32s([1]),
        num_scheduled_rows=1,
        num_scheduled_tokens=1,
    )
    work = rows.advance(plan)
    shape = exact_shape(rows, work)
    inputs = DeviceRows(rows, torch.device("cpu")).upload(work, shape)
    assert inputs.positions.tolist() == [8]
    assert inputs.slots.tolist() == [3 * 4]
    assert inputs.kv_lens.tolist() == [9]
    assert (shape.num_decodes, shape.max_query_len) == (1, 1)


CONTRADICTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("release of a free row", {"releases": int32s([3])}, "releases: a row that is not active"),
    ("release out of range", {"releases": int32s([8])}, "releases: an id outside"),
    ("release twice", {"releases": int32s([2, 2])}, "releases: an id twice"),
    ("release below zero", {"releases": int32s([-1])}, "releases: an id outside"),
    ("begin on an active row", {"new_rows": new_rows((2, 3, 0))}, "new_rows: a row that is active"),
    ("begin twice", {"new_rows": new_rows((3, 3, 0), (3, 3, 0))}, "new_rows: an id twice"),
    ("begin out of range", {"new_rows": new_rows((8, 3, 0))}, "new_rows: an id outside"),
    ("token id too large", {"new_rows": new_rows((3, 1, 0), token_ids=int32s([100]))}, "token_ids: an id outside"),
    ("token id negative", {"new_rows": new_rows((3, 1, 0), token_ids=int32s([-1]))}, "token_ids: an id outside"),
    ("too long", {"new_rows": new_rows((3, 41, 0))}, "more than 40 tokens"),
    ("all cached", {"new_rows": new_rows((3, 4, 4))}, "at least one token must be left"),
    ("negative cached", {"new_rows": new_rows((3, 4, -1))}, "at least one token must be left"),
    ("cached without pages", {"new_rows": new_rows((3, 6, 4))}, "more cached tokens than the row's pages hold"),
    ("no prompt", {"new_rows": new_rows((3, 4, 0), num_prompt_tokens=int32s([0]))}, "num_prompt_tokens"),
    ("prompt too long", {"new_rows": new_rows((3, 4, 0), num_prompt_tokens=int32s([5]))}, "num_prompt_tokens"),
    ("negative output index", {"new_rows": new_rows((3, 4, 0), output_indices=int32s([-1]))}, "negative output index"),
    ("negative top_k", {"new_rows": new_rows((3, 4, 0), top_ks=int32s([-1]))}, "negative output index or top_k"),
    ("negative temperature", {"new_rows": new_rows((3, 4, 0), temperatures=floats(-1))}, "temperature"),
    ("NaN temperature", {"new_rows": new_rows((3, 4, 0), temperatures=floats(np.nan))}, "temperature"),
    ("infinite temperature", {"new_rows": new_rows((3, 4, 0), temperatures=floats(np.inf))}, "temperature"),
    ("top_p of zero", {"new_rows": new_rows((3, 4, 0), top_ps=floats(0))}, "top_p or min_p"),
    ("NaN top_p", {"new_rows": new_rows((3, 4, 0), top_ps=floats(np.nan))}, "top_p or min_p"),
    ("min_p above one", {"new_rows": new_rows((3, 4, 0), min_ps=floats(1.5))}, "top_p or min_p"),
    (
        "page for a free row",
        appends([3], [1]),
        "append_rows: a row that is not",
    ),
    ("page out of range", appends([5], [32]), "append_pages: an id outside"),
    ("page held already", appends([5], [11]), "a page twice in one row"),
    (
        "page appended twice",
        appends([5, 5], [13, 13]),
        "a page twice in one row",
    ),
    (
        "too many pages",
        appends([5] * 11, list(range(13, 24))),
        "more than 10 pages",
    ),
    (
        "copy out of range",
        copies([32], [1]),
        "copy_sources: an id outside",
    ),
    (
        "two copies onto one",
        copies([1, 2], [3, 3]),
        "destinations: an id twice",
    ),
    (
        "copy of a destination",
        copies([1, 2], [2, 3]),
        "also a destination",
    ),
    ("chunk of a free row", {"chunk_rows": int32s([3])}, "chunk_rows: a row that is not active"),
    ("chunk of a decoding row", {"chunk_rows": int32s([2])}, "is decoding"),
    ("chunk of nothing", {"chunk_tokens": int32s([0])}, "less than one token"),
    ("chunk of unknown tokens", {"chunk_tokens": int32s([7])}, "more tokens than the row knows"),
    ("chunk twice", {"chunk_rows": int32s([5, 5]), "chunk_tokens": int32s([1, 1])}, "chunk_rows: an id twice"),
    ("idle row that does not decode", {"idle_rows": int32s([5])}, "idle_rows: a row that is not decoding"),
    ("idle row twice", {"idle_rows": int32s([2, 2])}, "idle_rows: an id twice"),
    ("wrong number of rows", {"num_scheduled_rows": 1}, "the plan schedules 2 rows"),
    ("wrong number of tokens", {"num_scheduled_tokens": 6}, "the plan schedules 2 rows and 5 tokens"),
    ("too few pages", appends([], []), "too few pages"),
    ("a page of another row", {"append_pages": int32s([12])}, "two rows would write one page"),
    ("published out of range", {"published_pages": int32s([40])}, "published_pages: an id outside"),
    ("parent out of range", {"published_pages": int32s([3]), "published_parents": int32s([40])}, "published_parents"),
    ("evicted twice", {"evicted_pages": int32s([4, 4])}, "evicted_pages: an id twice"),
]


@pytest.mark.parametrize(
    ("changes", "reason"), [case[1:] for case in CONTRADICTIONS], ids=[case[0] for case in CONTRADICTIONS]
)
def test_a_plan_that_does_not_fit_is_refused(changes: dict[str, Any], reason: str) -> None:
    rows, plan = begun()
    with pytest.raises(PlanRefusedError, match=reason):
        rows.advance(replace(plan, **changes))
    rows.reset()
    assert not rows.active.any()


def test_more_tokens_than_agreed_are_refused() -> None:
    rows = RequestRows(replace(LIMITS, max_num_batched_tokens=4))
    plan = BatchPlan(
        new_rows=new_rows((0, 5, 0)),
        append_rows=int32s([0, 0]),
        append_pages=int32s([0, 1]),
        chunk_rows=int32s([0]),
        chunk_tokens=int32s([5]),
        num_scheduled_rows=1,
        num_scheduled_tokens=5,
    )
    with pytest.raises(PlanRefusedError, match="5 tokens in a step; at most 4"):
        rows.advance(plan)


def test_a_row_never_passes_the_longest_length() -> None:
    rows = RequestRows(LIMITS)
    rows.advance(
        BatchPlan(
            new_rows=new_rows((0, 40, 0)),
            append_rows=int32s([0] * 10),
            append_pages=int32s(list(range(10))),
            chunk_rows=int32s([0]),
            chunk_tokens=int32s([40]),
            num_scheduled_rows=1,
            num_scheduled_tokens=40,
        )
    )
    with pytest.raises(PlanRefusedError, match="would pass 40 tokens"):
        rows.advance(BatchPlan(num_scheduled_rows=1, num_scheduled_tokens=1))


def expected_inputs(rows: RequestRows, plan: BatchPlan, decode_rows: list[int]) -> Callable[[int], list[int]]:
    """Positions a row computes, from its counts after the plan."""
    counts = dict(zip(plan.chunk_rows.tolist(), plan.chunk_tokens.tolist(), strict=True))
    counts.update(dict.fromkeys(decode_rows, 1))
    return lambda row: list(range(int(rows.num_computed[row]) - counts[row], int(rows.num_computed[row])))


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_inputs_say_what_the_rows_say(data: st.DataObject) -> None:
    """Whatever is scheduled: positions end at a sequence's length, slots lie in its pages, ids are its own."""
    maker = PlanMaker(
        num_rows=8,
        num_pages=96,
        page_size=4,
        chunk=data.draw(st.integers(1, 9)),
        budget=data.draw(st.integers(9, 64)),
        seed=data.draw(st.integers(0, 99)),
    )
    lengths = data.draw(st.lists(st.tuples(st.integers(1, 28), st.integers(1, 12)), min_size=1, max_size=12))
    generations = [
        Generation(prompt=[(number * 31 + position) % 100 for position in range(length)], max_tokens=tokens)
        for number, (length, tokens) in enumerate(lengths)
    ]
    maker.submit(*generations)
    rows = RequestRows(replace(LIMITS, num_pages=96))
    device_rows = DeviceRows(rows, torch.device("cpu"))
    shapes, before = GraphShapes(rows.limits, 10**8), None
    while (plan := maker.next_plan()) is not None:
        maker.in_flight.popleft()
        work = rows.advance(plan)
        inputs = device_rows.upload(work, exact_shape(rows, work))
        _, attention = device_rows.gather(inputs)
        check_inputs(rows, plan, work.decode_rows.tolist(), inputs, attention)
        before = check_moved_columns(rows, work, shapes.fitting(work), before)


Columns = dict[str, np.ndarray]


def check_moved_columns(
    rows: RequestRows, work: StepWork, shape: StepShape | None, before: Columns | None
) -> Columns | None:
    """The columns of the step before, moved on, are those of a step that continues it."""
    if shape is None:
        return None
    columns = layout_of(shape).on_host(np.full(layout_of(shape).num_bytes, 77, dtype=np.uint8))
    fill_columns(columns, rows, work, shape)
    if work.continues and before is not None:
        move_columns(before, rows, work.decode_rows)
        for name, column in columns.items():
            assert before[name].tolist() == column.tolist(), name
    return dict(columns)


def check_inputs(rows: RequestRows, plan: BatchPlan, decode_rows: list[int], inputs: Any, batch: Any) -> None:
    starts, kv_lens = batch.query_starts.tolist(), batch.kv_lens.tolist()
    chunk_order = sorted(
        plan.chunk_rows.tolist(), key=lambda row: int(plan.chunk_tokens[plan.chunk_rows.tolist().index(row)]) > 1
    )
    positions_of = expected_inputs(rows, plan, decode_rows)
    for sequence, row in enumerate([*decode_rows, *chunk_order]):
        part = slice(starts[sequence], starts[sequence + 1])
        positions = batch.positions[part].tolist()
        assert positions == positions_of(row)
        assert kv_lens[sequence] == positions[-1] + 1
        pages = rows.page_tables[row]
        assert batch.slots[part].tolist() == [int(pages[at // 4]) * 4 + at % 4 for at in positions]
        assert (
            batch.page_tables[sequence, : -(-kv_lens[sequence] // 4)].tolist()
            == pages[: -(-kv_lens[sequence] // 4)].tolist()
        )
        if row in chunk_order:
            assert inputs.token_ids[part].tolist() == rows.known_ids[row][positions].tolist()
    assert np.diff(starts)[: batch.num_decodes].tolist() == [1] * batch.num_decodes
    assert (batch.max_query_len, batch.max_kv_len) == (max(np.diff(starts), default=0), max(kv_lens, default=0))
    ends = {row: starts[sequence + 1] - 1 for sequence, row in enumerate([*decode_rows, *chunk_order])}
    sampled = inputs.sampled_rows.tolist()
    assert inputs.sampling_tokens.tolist() == [ends[row] for row in sampled]
    already = [int(rows.num_tokens[row] - rows.num_prompt_tokens[row]) - 1 for row in sampled]
    assert inputs.sampling.output_positions.tolist() == already
