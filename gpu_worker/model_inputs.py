"""Builds the tensors of one step from the rows.

Shapes and positions come from the host's counts in a few vectorised operations; everything travels to the device in one
copy from pinned memory into one buffer that is always the same, so that a CUDA graph finds it there. The token ids of
decoding rows are read on the device, where the step before put them, so that a step can be launched before the one
before it is known to the host.

Order of sequences in the packed step: decoding rows (ascending), chunks of one token, padding up to the shape's number
of decodes, longer chunks, padding. Sequences that pad have kv_len 0 and the row past the last one; tokens that pad
have slot -1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pagewire_kernels import AttentionBatch, SamplingBatch, SharedPrefixes

from gpu_worker.batch_plan import Int32s, Int64s, RowIds
from gpu_worker.pinned_memory import PinnedRing
from gpu_worker.request_rows import RequestRows, RowLimits, StepWork
from gpu_worker.shared_groups import NO_SHARED_WORK, max_tiles
from gpu_worker.step_shape import MAX_GRAPH_CHUNKS, StepShape

_ALIGNMENT = 16
_MAX_APPENDS = 8192
"""Page-table entries that travel with a step; if there are more, whole tables do."""
_ON_DEVICE = -1
"""Token id of a decoding row: the row's last sampled token."""

Columns = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """What a step computes with: views of the one buffer, T packed tokens, S sequences, R rows that sample."""

    shape: StepShape
    token_ids: torch.Tensor
    """int32 [T]; negative: the row's last token id, on the device."""
    sequence_rows: torch.Tensor
    """int64 [S]."""
    query_starts: torch.Tensor
    kv_lens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    sampling_tokens: torch.Tensor
    """int64 [R]: positions in the packed tokens."""
    sampling: SamplingBatch
    sampled_rows: torch.Tensor
    """int64 [R]."""
    shared: SharedPrefixes | None

    def attention(self, page_tables: torch.Tensor) -> AttentionBatch:
        """page_tables int32 [S, pages]."""
        return AttentionBatch(
            page_tables=page_tables,
            query_starts=self.query_starts,
            kv_lens=self.kv_lens,
            positions=self.positions,
            slots=self.slots,
            num_decodes=self.shape.num_decodes,
            max_query_len=self.shape.max_query_len,
            max_kv_len=self.shape.max_kv_len,
            shared=self.shared,
            uneven=self.shape.uneven,
        )


class DeviceRows:
    """The part of the rows that lives on the device, and the buffer a step's inputs are copied to."""

    def __init__(self, rows: RequestRows, device: torch.device) -> None:
        limits = rows.limits
        self._rows = rows
        self.device = device
        self.last_token_ids = torch.zeros(limits.max_num_seqs + 1, dtype=torch.int32, device=device)
        """The entry past the last row is the one that padding reads and writes."""
        self.page_tables = torch.from_numpy(rows.page_tables)
        self._shared = device.type == "cpu"
        if not self._shared:
            self.page_tables = torch.from_numpy(rows.page_tables).to(device)
            self._buffer = torch.empty(_most_bytes(limits), dtype=torch.uint8, device=device)
            self._staging = PinnedRing(len(self._buffer))
            self._image = np.empty(len(self._buffer), dtype=np.uint8)
            self._kept: dict[StepShape, StepInputs] = {}
            self._kept_columns: dict[StepShape, Columns] = {}
            """The same shapes' columns of the image."""
            self._last: tuple[StepShape, Columns, int] | None = None

    def restore(self) -> None:
        """Copy the host's page tables again, after a step failed half way."""
        if not self._shared:
            self.page_tables.copy_(torch.from_numpy(self._rows.page_tables))

    def upload(self, work: StepWork, shape: StepShape) -> StepInputs:
        """Inputs of a step that ``RequestRows.advance`` has just accounted for, padded to ``shape``.

        On a GPU they are queued to overwrite those of the step before, once it is done.
        """
        layout = layout_of(shape)
        if self._shared:
            memory = torch.empty(layout.num_bytes, dtype=torch.uint8)
            fill_columns(layout.on_host(memory.numpy()), self._rows, work, shape)
            return _view(memory, layout, shape)
        num_appends = len(work.append_rows) if len(work.append_rows) <= _MAX_APPENDS else 0
        self._fill_image(work, shape, layout)
        on_host = self._staging.begin()
        on_host[: layout.num_bytes] = self._image[: layout.num_bytes]
        index_start, page_start = layout.num_bytes, layout.num_bytes + 8 * num_appends
        end = page_start + 4 * num_appends
        if num_appends:
            flat = work.append_rows.astype(np.int64) * self._rows.limits.max_pages + work.append_columns
            on_host[index_start:page_start] = flat.view(np.uint8)
            on_host[page_start:end] = np.ascontiguousarray(work.append_pages).view(np.uint8)
        self._staging.copy_to(self._buffer[:end])
        if num_appends:
            entries = self._buffer[index_start:page_start].view(torch.int64)
            self.page_tables.view(-1).index_copy_(0, entries, self._buffer[page_start:end].view(torch.int32))
        elif len(work.append_rows):
            self.restore()
        return self._kept.get(shape) or _view(self._buffer, layout, shape)

    def keep(self, inputs: StepInputs) -> None:
        """Make a shape's inputs once and for all: a graph was captured for it."""
        self._kept[inputs.shape] = inputs
        self._kept_columns[inputs.shape] = layout_of(inputs.shape).on_host(self._image)

    def _fill_image(self, work: StepWork, shape: StepShape, layout: "_Layout") -> None:
        """The step's columns in plain memory, where those of the step before are, so that a step that continues it only
        moves on by a token."""
        last = self._last
        if work.continues and last is not None and last[0] == shape and last[2] == work.number - 1:
            columns = last[1]
            move_columns(columns, self._rows, work.decode_rows)
        else:
            columns = self._kept_columns.get(shape) or layout.on_host(self._image)
            fill_columns(columns, self._rows, work, shape)
        self._last = (shape, columns, work.number)

    def gather(self, inputs: StepInputs) -> tuple[torch.Tensor, AttentionBatch]:
        """Token ids int32 [T] and the batch with the sequences' page tables, read from the rows on the device."""
        decodes = inputs.shape.num_decodes
        token_ids, last_ids = inputs.token_ids, self.last_token_ids
        if decodes:
            decoding = last_ids.index_select(0, inputs.sequence_rows[:decodes])
            decoding = torch.where(token_ids[:decodes] < 0, decoding, token_ids[:decodes])
            token_ids = torch.cat((decoding, token_ids[decodes:])) if len(token_ids) > decodes else decoding
        width = -(-inputs.shape.max_kv_len // self._rows.limits.page_size)
        tables = self.page_tables[:, :width].index_select(0, inputs.sequence_rows)
        return token_ids, inputs.attention(tables)


def exact_shape(rows: RequestRows, work: StepWork) -> StepShape:
    """The shape of a step that ``advance`` has accounted for, without padding."""
    one_token = int(np.count_nonzero(work.chunk_tokens == 1))
    kv_lens = rows.num_computed[np.concatenate((work.decode_rows, work.chunk_rows))]
    sampled = work.sampled_rows
    return StepShape(
        num_decodes=len(work.decode_rows) + one_token,
        num_chunks=len(work.chunk_rows) - one_token,
        num_tokens=len(work.decode_rows) + int(work.chunk_tokens.sum()),
        num_sampling=len(sampled),
        max_query_len=int(work.chunk_tokens.max(initial=min(1, len(work.decode_rows)))),
        max_kv_len=int(kv_lens.max(initial=0)),
        all_greedy=not rows.temperature[sampled].any(),
        any_truncation=bool(
            (rows.top_k[sampled] > 0).any() or (rows.top_p[sampled] < 1).any() or (rows.min_p[sampled] > 0).any()
        ),
    )


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where each column lies in the buffer: name -> (first byte, end, dtype)."""

    spans: Mapping[str, tuple[int, int, npt.DTypeLike]]
    num_bytes: int

    def on_host(self, memory: npt.NDArray[np.uint8]) -> Columns:
        return {name: memory[start:end].view(dtype) for name, (start, end, dtype) in self.spans.items()}


def layout_of(shape: StepShape) -> _Layout:
    return _layout(shape.num_tokens, shape.num_sequences, shape.num_sampling, shape.num_shared_tiles)


@lru_cache(maxsize=1024)
def _layout(num_tokens: int, num_sequences: int, num_sampling: int, num_shared_tiles: int) -> _Layout:
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
    return _Layout(spans, start)


def _most_bytes(limits: RowLimits) -> int:
    """Bytes of the largest step, padded as far as any is, with its page-table entries."""
    rows = limits.max_num_seqs + MAX_GRAPH_CHUNKS
    return _layout(limits.max_num_batched_tokens + rows, rows, rows, max_tiles(rows)).num_bytes + 12 * _MAX_APPENDS


_TORCH_DTYPES: Mapping[Any, torch.dtype] = {np.int32: torch.int32, np.int64: torch.int64, np.float32: torch.float32}


def _view(memory: torch.Tensor, layout: _Layout, shape: StepShape) -> StepInputs:
    parts = {name: memory[start:end].view(_TORCH_DTYPES[dtype]) for name, (start, end, dtype) in layout.spans.items()}
    return StepInputs(
        shape=shape,
        token_ids=parts["token_ids"],
        sequence_rows=parts["sequence_rows"],
        query_starts=parts["query_starts"],
        kv_lens=parts["kv_lens"],
        positions=parts["positions"],
        slots=parts["slots"],
        sampling_tokens=parts["sampling_tokens"],
        sampling=SamplingBatch(
            temperature=parts["temperature"],
            top_k=parts["top_k"],
            top_p=parts["top_p"],
            min_p=parts["min_p"],
            seeds=parts["seeds"],
            output_index=parts["output_index"],
            output_positions=parts["output_positions"],
            all_greedy=shape.all_greedy,
            any_truncation=shape.any_truncation,
        ),
        sampled_rows=parts["sampled_rows"],
        shared=SharedPrefixes(
            shared_lens=parts["shared_lens"],
            shared_parts=parts["shared_parts"],
            members=parts["shared_members"],
            tiles=parts["shared_tiles"].view(-1, 5),
        )
        if shape.num_shared_tiles
        else None,
    )


def fill_columns(columns: Columns, rows: RequestRows, work: StepWork, shape: StepShape) -> None:
    """Write the step's columns, padded to ``shape``."""
    order = np.argsort(work.chunk_tokens > 1, kind="stable")
    num_decoding = len(work.decode_rows)
    sequence_rows = np.concatenate((work.decode_rows, work.chunk_rows[order]))
    query_lens = np.ones(len(sequence_rows), dtype=np.int32)
    query_lens[num_decoding:] = work.chunk_tokens[order]
    num_decodes = num_decoding + int(np.count_nonzero(work.chunk_tokens == 1))
    kv_lens = rows.num_computed[sequence_rows]
    positions, slots = _positions_and_slots(rows, sequence_rows, query_lens, kv_lens)
    gap = (num_decodes, shape.num_decodes)
    _spread(columns["sequence_rows"], sequence_rows, gap, rows.limits.max_num_seqs)
    _spread(columns["kv_lens"], kv_lens, gap, 0)
    _spread(columns["positions"], positions, gap, 0)
    _spread(columns["slots"], slots, gap, -1)
    token_ids = columns["token_ids"]
    token_ids[:num_decoding] = _ON_DEVICE
    _spread(token_ids[num_decoding:], _chunk_ids(rows, work, order), (gap[0] - num_decoding, gap[1] - num_decoding), 0)
    query_starts = columns["query_starts"]
    query_starts[: shape.num_decodes + 1] = np.arange(shape.num_decodes + 1)
    ends = np.cumsum(query_lens[num_decodes:]) + shape.num_decodes
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
    _pad(columns["seeds"], rows.seeds[sampled], 0)
    _pad(columns["output_index"], rows.output_index[sampled], 0)
    _pad(columns["output_positions"], rows.num_tokens[sampled] - rows.num_prompt_tokens[sampled] - 1, 0)
    _pad(columns["temperature"], rows.temperature[sampled], 0)
    _pad(columns["top_k"], rows.top_k[sampled], 0)
    _pad(columns["top_p"], rows.top_p[sampled], 1)
    _pad(columns["min_p"], rows.min_p[sampled], 0)


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
    rows: RequestRows, sequence_rows: RowIds, query_lens: Int32s, kv_lens: Int32s
) -> tuple[Int32s, Int64s]:
    num_tokens = int(query_lens.sum())
    if len(query_lens) == num_tokens:  # one query each
        positions, owners = kv_lens - np.int32(1), sequence_rows
    else:
        shift = kv_lens - np.cumsum(query_lens)  # position = packed index + kv_len - query end
        positions = (np.arange(num_tokens) + np.repeat(shift, query_lens)).astype(np.int32)
        owners = np.repeat(sequence_rows, query_lens)
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
