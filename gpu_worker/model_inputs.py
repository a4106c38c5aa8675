"""Builds the tensors of one step from the rows.

Its columns (step_columns.py) travel to the device in one copy from pinned memory into one buffer that is always the
same, so that a CUDA graph finds them there. The token ids of decoding rows are read on the device, where the step
before put them, so that a step can be launched before the one before it is known to the host.
"""

from dataclasses import dataclass

import numpy as np
import torch
from pagewire_kernels import AttentionBatch, SamplingBatch, SharedPrefixes

from gpu_worker.batch_plan import RowIds
from gpu_worker.pinned_memory import TORCH_DTYPES, PinnedRing
from gpu_worker.request_rows import RequestRows, RowLimits, StepWork
from gpu_worker.shared_groups import max_tiles
from gpu_worker.step_columns import Columns, Layout, fill_columns, layout_of, layout_of_sizes, move_columns
from gpu_worker.step_shape import MAX_GRAPH_CHUNKS, StepShape

_MAX_APPENDS = 8192
"""Page-table entries that travel with a step; if there are more, whole tables do."""


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

    def _fill_image(self, work: StepWork, shape: StepShape, layout: Layout) -> None:
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
        any_truncation=any_truncation(rows, sampled),
    )


def any_truncation(rows: RequestRows, sampled: RowIds) -> bool:
    """Whether some of these rows use top_k, top_p or min_p."""
    return bool((rows.top_k[sampled] > 0).any() or (rows.top_p[sampled] < 1).any() or (rows.min_p[sampled] > 0).any())


def _most_bytes(limits: RowLimits) -> int:
    """Bytes of the largest step, padded as far as any is, with its page-table entries."""
    rows = limits.max_num_seqs + MAX_GRAPH_CHUNKS
    return (
        layout_of_sizes(limits.max_num_batched_tokens + rows, rows, rows, max_tiles(rows)).num_bytes + 12 * _MAX_APPENDS
    )


def _view(memory: torch.Tensor, layout: Layout, shape: StepShape) -> StepInputs:
    parts = {name: memory[start:end].view(TORCH_DTYPES[dtype]) for name, (start, end, dtype) in layout.spans.items()}
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
