"""Shapes that CUDA graphs are captured for: how much they pad, and which steps they take."""

from dataclasses import replace

import pytest

from gpu_worker.batch_plan import empty_column, int32s
from gpu_worker.request_rows import RowLimits, StepWork
from gpu_worker.shared_groups import max_tiles
from gpu_worker.step_shape import MAX_GRAPH_CHUNKS, GraphShapes, decode_sizes, lengths_differ

LIMITS = RowLimits(
    max_num_seqs=100, max_num_batched_tokens=1000, max_model_len=64, page_size=4, num_pages=50, vocab_size=100
)
SMALL_MODEL = 10**8


def work(num_decodes: int, chunk_tokens: tuple[int, ...] = ()) -> StepWork:
    return StepWork(
        decode_rows=int32s(range(num_decodes)),
        chunk_rows=int32s(range(num_decodes, num_decodes + len(chunk_tokens))),
        chunk_tokens=int32s(chunk_tokens),
        sampling_chunks=empty_column(),
        sampled_rows=empty_column(),
        append_rows=empty_column(),
        append_columns=empty_column(),
        append_pages=empty_column(),
        copy_sources=empty_column(),
        copy_destinations=empty_column(),
    )


@pytest.mark.parametrize("most", [1, 2, 7, 9, 64, 100, 256, 300])
def test_a_quarter_of_a_decode_step_is_padding_at_most(most: int) -> None:
    sizes = decode_sizes(most)
    assert sizes[-1] == most
    assert sizes == sorted(set(sizes))
    for rows in range(1, most + 1):
        assert min(size for size in sizes if size >= rows) <= rows * 1.25


def test_every_fitting_shape_is_captured_and_holds_its_step() -> None:
    shapes = GraphShapes(LIMITS, SMALL_MODEL)
    captured = list(shapes.all())
    assert len(set(captured)) == len(captured)
    for num_decodes in (0, 1, 17, 64, 99):
        for chunks in ((), (1,), (2, 1), (60, 3), (500, 200)):
            shape = shapes.fitting(work(num_decodes, chunks))
            if not num_decodes and not chunks:
                assert shape is None
                continue
            assert shape in captured
            assert shape.num_decodes >= num_decodes + chunks.count(1)
            assert shape.num_tokens - shape.num_decodes >= sum(chunks) - chunks.count(1)
            assert shape.num_sampling == shape.num_sequences


def test_steps_too_large_run_without_a_graph() -> None:
    shapes = GraphShapes(LIMITS, SMALL_MODEL)
    assert shapes.fitting(work(0, (2,) * (MAX_GRAPH_CHUNKS + 1))) is None
    assert shapes.fitting(work(0, (900,))) is None
    assert GraphShapes(replace(LIMITS, max_num_batched_tokens=2048), SMALL_MODEL).fitting(work(0, (900,))) is not None


def test_large_steps_have_graphs_while_the_device_is_faster_than_the_host() -> None:
    limits = replace(LIMITS, max_num_batched_tokens=8192)
    full, many_chunks = work(64, (1000,) * 8 + (128,)), work(1, (64,) * 63)
    small, large = GraphShapes(limits, SMALL_MODEL), GraphShapes(limits, 8 * 10**9)
    for step in (full, many_chunks, work(0, (3,) * 40)):
        assert small.fitting(step) in list(small.all())
    assert large.fitting(full) is None
    assert small.fitting(work(0, (2,) * (MAX_GRAPH_CHUNKS + 1))) is None


def test_rows_that_share_pages_share_them_beside_chunks_too() -> None:
    shapes = GraphShapes(LIMITS, SMALL_MODEL)
    for step in (work(20, (60,)), work(16, (30, 20))):
        shape = shapes.fitting(step)
        assert shape in list(shapes.all())
        assert shape is not None
        assert shape.num_shared_tiles == max_tiles(shape.num_decodes)
    alone = shapes.fitting(work(0, (60,)))
    assert alone is not None
    assert not alone.num_shared_tiles


def test_rows_much_longer_than_most_have_shapes_of_their_own() -> None:
    assert lengths_differ(int32s([600] * 20 + [8000]))
    assert not lengths_differ(int32s([100] * 20 + [1000]))  # as short as a split
    assert not lengths_differ(int32s([3000] * 20 + [8000]))  # all take long
    assert not lengths_differ(int32s([600] * 10 + [8000]))  # so few are split anyway
    assert not lengths_differ(empty_column())
    shapes = GraphShapes(replace(LIMITS, max_model_len=8192), SMALL_MODEL)
    captured = list(shapes.all())
    for num_decodes in (16, 17, 100):
        uneven, even = (shapes.fitting(work(num_decodes), uneven=each) for each in (True, False))
        assert uneven in captured
        assert even in captured
        assert uneven == replace(even, uneven=True)
    beside_a_chunk = shapes.fitting(work(20, (60,)))
    assert beside_a_chunk in captured
    assert beside_a_chunk is not None
    assert beside_a_chunk.uneven
    assert not any(shape.uneven for shape in GraphShapes(LIMITS, SMALL_MODEL).all())


def test_padding_that_costs_more_than_a_launch_is_not_taken() -> None:
    assert GraphShapes(LIMITS, 8 * 10**9).fitting(work(0, (520,))) is None
    assert GraphShapes(LIMITS, 8 * 10**9).fitting(work(0, (500,))) is not None
