"""The columns that a step's inputs are, on the host: where each lies, and what of the rows it holds.

Shapes and positions come from the host's counts in a few vectorised operations. Order of sequences in the packed step:
decoding rows (ascending), chunks of one token, padding up to the shape's number of decodes, longer chunks, padding.
Sequences that pad have kv_len 0 and the row past the last one; tokens that pad have slot -1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu_worker.batch_plan import Int32s, Int64s, RowIds
from gpu_worker.request_rows import RequestRows, StepWork
from gpu_worker.shared_groups import NO_SHARED_WORK
from gpu_worker.step_shape import StepShape

_ALIGNMENT = 16
_ON_DEVICE = -1
"""Token id of a decoding row: the row's last sampled token."""

Columns = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each column lies in the buffer: name -> (first byte, end, dtype)."""

    spans: Mapping[str, tuple[int, int, npt.DTypeLike]]
    num_bytes: int

    def on_host(self, memory: npt.NDArray[np.uint8]) -> Columns:
        return {name: memory[start:end].view(dtype) for name, (start, end, dtype) in self.spans.items()}


def layout_of(shape: StepShape) -> Layout:
    """Of a step of this shape."""
    return layout_of_sizes(shape.num_tokens, shape.num_sequences, shape.num_sampling, shape.num_shared_tiles)


@lru_cache(maxsize=1024)
def layout_of_sizes(num_tokens: int, num_sequences: int, num_sampling: int, num_shared_tiles: int) -> Layout:
    """Of a step of these sizes."""
    num_sharing = num_sequences if num_shared_tiles else 0
    columns: tuple[tuple[str, type[np.generic], int], ...] = (
        ("slots", np.int64, num_tokens),
        ("sampling_tokens", np.int64, num_sampling),
        ("sequence_rows", np.int64, num_sequences),
        ("sampled_rows", np.int64, num_sampling),
        ("seeds", np.int64, num_sampling),
        ("query_starts", np.int32, num_sequences + 1),
        ("kv_lens", np.int32, num_sequences),
        ("positions", np.int32, num_tokens),
        ("token_ids", np.int32, num_tokens),
        ("output_index", np.int32, num_sampling),
        ("output_positions", np.int32, num_sampling),
        ("temperature", np.float32, num_sampling),
        ("top_k", np.int32, num_sampling),
        ("top_p", np.float32, num_sampling),
        ("min_p", np.float32, num_sampling),
        ("shared_lens", np.int32, num_sharing),
        ("shared_parts", np.int32, num_sharing),
        ("shared_members", np.int32, num_sharing),
        ("shared_tiles", np.int32, 5 * num_shared_tiles),
    )
    spans, start = {}, 0
    for name, dtype, count in columns:
        end = start + np.dtype(dtype).itemsize * count
        spans[name] = (start, end, dtype)
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
    return Layout(spans, start)


def fill_columns(columns: Columns, rows: RequestRows, work: StepWork, shape: StepShape) -> None:
    """Write the step's columns, padded to ``shape``."""
    order = (work.chunk_tokens > 1).argsort(kind="stable")
    num_decoding = len(work.decode_rows)
    sequence_rows = np.concatenate((work.decode_rows, work.chunk_rows[order]))
    query_lens = np.empty(len(sequence_rows), dtype=np.int32)
    query_lens[:num_decoding] = 1
    query_lens[num_decoding:] = work.chunk_tokens[order]
    query_ends = query_lens.cumsum()
    num_decodes = num_decoding + int(np.count_nonzero(work.chunk_tokens == 1))
    positions, slots = _positions_and_slots(rows, sequence_rows, query_lens, query_ends)
    gap = (num_decodes, shape.num_decodes)
    _spread(columns["sequence_rows"], sequence_rows, gap, rows.limits.max_num_seqs)
    _spread(columns["kv_lens"], rows.num_computed[sequence_rows], gap, 0)
    _spread(columns["positions"], positions, gap, 0)
    _spread(columns["slots"], slots, gap, -1)
    token_ids = columns["token_ids"]
    token_ids[:num_decoding] = _ON_DEVICE
    _spread(token_ids[num_decoding:], _chunk_ids(rows, work, order), (gap[0] - num_decoding, gap[1] - num_decoding), 0)
    query_starts = columns["query_starts"]
    query_starts[: shape.num_decodes + 1] = np.arange(shape.num_decodes + 1)
    ends = query_ends[num_decodes:] + (shape.num_decodes - num_decodes)
    query_starts[shape.num_decodes + 1 : shape.num_decodes + 1 + len(ends)] = ends
    query_starts[shape.num_decodes + 1 + len(ends) :] = ends[-1] if len(ends) else shape.num_decodes
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.arange(num_decoding, len(sequence_rows))
    sampling_sequences = np.concatenate((places[work.sampling_chunks], np.arange(num_decoding)))
    sampling_sequences[sampling_sequences >= num_decodes] += shape.num_decodes - num_decodes
    _pad(columns["sampling_tokens"], query_starts[sampling_sequences + 1] - 1, 0)
    _fill_sampling(columns, rows, work.sampled_rows)
    if shape.num_shared_tiles:
        shared = work.shared or NO_SHARED_WORK
        _pad(columns["shared_lens"], shared.shared_lens, 0)
        _pad(columns["shared_parts"], shared.shared_parts, 0)
        _pad(columns["shared_members"], shared.members, 0)
        _pad(columns["shared_tiles"], shared.tiles.ravel(), 0)


def move_columns(columns: Columns, rows: RequestRows, decode_rows: RowIds) -> None:
    """Turn the columns of a step of these decoding rows into those of the next step, which has the same rows."""
    num_rows = len(decode_rows)
    for name in ("kv_lens", "positions", "output_positions"):
        columns[name][:num_rows] += 1
    columns["slots"][:num_rows] = _slots(rows, decode_rows, columns["positions"][:num_rows])


def _fill_sampling(columns: Columns, rows: RequestRows, sampled: RowIds) -> None:
    _pad(columns["sampled_rows"], sampled, rows.limits.max_num_seqs)
    for name, values in sampling_columns(rows, sampled).items():
        _pad(columns[name], values, 1 if name == "top_p" else 0)


def sampling_columns(rows: RequestRows, sampled: RowIds) -> Columns:
    """What these rows sample with, under the names of SamplingBatch."""
    return {
        "seeds": rows.seeds[sampled],
        "output_index": rows.output_index[sampled],
        "output_positions": rows.num_tokens[sampled] - rows.num_prompt_tokens[sampled] - 1,
        "temperature": rows.temperature[sampled],
        "top_k": rows.top_k[sampled],
        "top_p": rows.top_p[sampled],
        "min_p": rows.min_p[sampled],
    }


def _pad(target: npt.NDArray[Any], values: npt.NDArray[Any], padding: int) -> None:
    target[: len(values)] = values
    target[len(values) :] = padding


def _spread(target: npt.NDArray[Any], values: npt.NDArray[Any], gap: tuple[int, int], padding: int) -> None:
    """``values`` into ``target``, with padding from ``gap[0]`` to ``gap[1]`` and behind the last."""
    first, second = gap
    end = second + len(values) - first
    target[:first] = values[:first]
    target[first:second] = padding
    target[second:end] = values[first:]
    target[end:] = padding


def _positions_and_slots(
    rows: RequestRows, sequence_rows: RowIds, query_lens: Int32s, query_ends: Int64s
) -> tuple[Int32s, Int64s]:
    kv_lens = rows.num_computed[sequence_rows]
    num_tokens = int(query_ends[-1]) if len(query_ends) else 0
    if len(query_lens) == num_tokens:  # one query each
        positions, owners = kv_lens - np.int32(1), sequence_rows
    else:
        shift = kv_lens - query_ends  # position = packed index + kv_len - query end
        positions = (np.arange(num_tokens) + shift.repeat(query_lens)).astype(np.int32)
        owners = sequence_rows.repeat(query_lens)
    return positions, _slots(rows, owners, positions)


def _slots(rows: RequestRows, owners: RowIds, positions: Int32s) -> Int64s:
    """Where each row's token at that position lies."""
    page_size = rows.limits.page_size
    columns = (positions // page_size).astype(np.intp)
    # A page's first slot, and behind it what of the position lies behind the page's first one.
    slots: Int64s = (rows.page_tables[owners, columns] - columns) * page_size + positions
    return slots


def _chunk_ids(rows: RequestRows, work: StepWork, order: npt.NDArray[np.int64]) -> Int32s:
    pieces = []
    for position in order.tolist():
        row, count = int(work.chunk_rows[position]), int(work.chunk_tokens[position])
        end = int(rows.num_computed[row])
        pieces.append(rows.known_ids[row][end - count : end])
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int32)
