"""Builds the tensors of one step from the rows.

Shapes and positions come from the host's counts in a few vectorised operations; everything travels to the device in one
copy from pinned memory. The token ids of decoding rows are read on the device, where the step before put them, so
that a step can be launched before the one before it is known to the host.

Order of sequences in the packed step: decoding rows (ascending), then chunks of one token, then longer chunks.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pagewire_kernels import AttentionBatch, SamplingBatch

from gpu_worker.batch_plan import Int32s, Int64s
from gpu_worker.request_rows import RequestRows, StepWork

_ALIGNMENT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """What a step computes with; T packed tokens, R rows that sample."""

    token_ids: torch.Tensor
    """int32 [T]."""
    attention: AttentionBatch
    sampling_tokens: torch.Tensor
    """int64 [R]: positions in the packed tokens."""
    sampling: SamplingBatch
    sampled_rows: torch.Tensor
    """int64 [R], on the device."""
    copy_sources: torch.Tensor | None
    copy_destinations: torch.Tensor | None


class DeviceRows:
    """The part of the rows that lives on the device."""

    def __init__(self, rows: RequestRows, device: torch.device) -> None:
        self._rows = rows
        self.device = device
        self.last_token_ids = torch.zeros(rows.limits.max_num_seqs, dtype=torch.int32, device=device)
        self._shared = device.type == "cpu"
        self.page_tables = torch.from_numpy(rows.page_tables)
        if not self._shared:
            self.page_tables = self.page_tables.to(device)

    def restore(self) -> None:
        """Copy the host's page tables again, after a step failed half way."""
        if not self._shared:
            self.page_tables.copy_(torch.from_numpy(self._rows.page_tables))

    def build(self, work: StepWork) -> StepInputs:
        """Inputs of a step that ``RequestRows.advance`` has just accounted for."""
        packing = _pack(self._rows, work)
        parts = _upload(
            {
                **packing.columns,
                "append_rows": work.append_rows.astype(np.int64),
                "append_columns": work.append_columns.astype(np.int64),
                "append_pages": work.append_pages,
                "copy_sources": work.copy_sources.astype(np.int64),
                "copy_destinations": work.copy_destinations.astype(np.int64),
            },
            self.device,
        )
        if not self._shared and len(work.append_rows):
            self.page_tables[parts["append_rows"], parts["append_columns"]] = parts["append_pages"]
        token_ids = parts["chunk_ids"]
        if len(work.decode_rows):
            decoding = self.last_token_ids.index_select(0, parts["sequence_rows"][: len(work.decode_rows)])
            token_ids = torch.cat((decoding, token_ids)) if len(token_ids) else decoding
        table_width = -(-packing.max_kv_len // self._rows.limits.page_size)
        copies = len(work.copy_sources) > 0
        return StepInputs(
            token_ids=token_ids,
            attention=AttentionBatch(
                page_tables=self.page_tables[:, :table_width].index_select(0, parts["sequence_rows"]),
                query_starts=parts["query_starts"],
                kv_lens=parts["kv_lens"],
                positions=parts["positions"],
                slots=parts["slots"],
                num_decodes=packing.num_decodes,
                max_query_len=packing.max_query_len,
                max_kv_len=packing.max_kv_len,
            ),
            sampling_tokens=parts["sampling_tokens"],
            sampling=_sampling(parts, packing),
            sampled_rows=parts["sampled_rows"],
            copy_sources=parts["copy_sources"] if copies else None,
            copy_destinations=parts["copy_destinations"] if copies else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Packing:
    """A step's shape on the host."""

    columns: dict[str, npt.NDArray[Any]]
    num_decodes: int
    max_query_len: int
    max_kv_len: int
    all_greedy: bool
    any_truncation: bool


def _pack(rows: RequestRows, work: StepWork) -> _Packing:
    order = np.argsort(work.chunk_tokens > 1, kind="stable")
    num_decoding = len(work.decode_rows)
    sequence_rows = np.concatenate((work.decode_rows, work.chunk_rows[order]))
    query_lens = np.ones(len(sequence_rows), dtype=np.int32)
    query_lens[num_decoding:] = work.chunk_tokens[order]
    query_starts = np.zeros(len(sequence_rows) + 1, dtype=np.int32)
    np.cumsum(query_lens, out=query_starts[1:])
    kv_lens = rows.num_computed[sequence_rows]
    positions, slots = _positions_and_slots(rows, sequence_rows, query_starts, query_lens, kv_lens)
    sequence_of_chunk = np.empty(len(order), dtype=np.int64)
    sequence_of_chunk[order] = np.arange(num_decoding, len(sequence_rows))
    sampling_sequences = np.concatenate((sequence_of_chunk[work.sampling_chunks], np.arange(num_decoding)))
    sampled_rows = work.sampled_rows
    temperature, top_k = rows.temperature[sampled_rows], rows.top_k[sampled_rows]
    top_p, min_p = rows.top_p[sampled_rows], rows.min_p[sampled_rows]
    return _Packing(
        columns={
            "slots": slots,
            "sampling_tokens": query_starts[sampling_sequences + 1].astype(np.int64) - 1,
            "sequence_rows": sequence_rows.astype(np.int64),
            "sampled_rows": sampled_rows.astype(np.int64),
            "seeds": rows.seeds[sampled_rows],
            "query_starts": query_starts,
            "kv_lens": kv_lens,
            "positions": positions,
            "chunk_ids": _chunk_ids(rows, work, order),
            "output_index": rows.output_index[sampled_rows],
            "output_positions": rows.num_tokens[sampled_rows] - rows.num_prompt_tokens[sampled_rows] - 1,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
        },
        num_decodes=num_decoding + int((work.chunk_tokens == 1).sum()),
        max_query_len=int(query_lens.max(initial=0)),
        max_kv_len=int(kv_lens.max(initial=0)),
        all_greedy=not temperature.any(),
        any_truncation=bool((top_k > 0).any() or (top_p < 1).any() or (min_p > 0).any()),
    )


def _positions_and_slots(
    rows: RequestRows, sequence_rows: Int32s, query_starts: Int32s, query_lens: Int32s, kv_lens: Int32s
) -> tuple[Int32s, Int64s]:
    page_size = rows.limits.page_size
    shift = kv_lens - query_starts[1:]  # position = packed index + kv_len - query end
    if len(query_lens) == int(query_starts[-1]):  # one query each
        positions, owners = kv_lens - 1, sequence_rows
    else:
        positions = np.arange(int(query_starts[-1]), dtype=np.int32) + np.repeat(shift, query_lens)
        owners = np.repeat(sequence_rows, query_lens)
    pages = rows.page_tables[owners, positions // page_size].astype(np.int64)
    return positions.astype(np.int32, copy=False), pages * page_size + positions % page_size


def _chunk_ids(rows: RequestRows, work: StepWork, order: npt.NDArray[np.int64]) -> Int32s:
    pieces = []
    for position in order.tolist():
        row, count = int(work.chunk_rows[position]), int(work.chunk_tokens[position])
        end = int(rows.num_computed[row])
        pieces.append(rows.known_ids[row][end - count : end])
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int32)


def _sampling(parts: dict[str, torch.Tensor], packing: _Packing) -> SamplingBatch:
    return SamplingBatch(
        temperature=parts["temperature"],
        top_k=parts["top_k"],
        top_p=parts["top_p"],
        min_p=parts["min_p"],
        seeds=parts["seeds"],
        output_index=parts["output_index"],
        output_positions=parts["output_positions"],
        all_greedy=packing.all_greedy,
        any_truncation=packing.any_truncation,
    )


def _upload(columns: dict[str, npt.NDArray[Any]], device: torch.device) -> dict[str, torch.Tensor]:
    """Host columns as device tensors through one pinned buffer and one asynchronous copy; on a CPU as they are."""
    if device.type == "cpu":
        return {name: torch.from_numpy(_writable(column)) for name, column in columns.items()}
    starts, total = {}, 0
    for name, column in columns.items():
        starts[name] = total
        total += -(-column.nbytes // _ALIGNMENT) * _ALIGNMENT
    staging = torch.empty(max(total, 1), dtype=torch.uint8, pin_memory=True)
    target = staging.numpy()
    for name, column in columns.items():
        target[starts[name] : starts[name] + column.nbytes] = np.ascontiguousarray(column).view(np.uint8)
    uploaded = staging.to(device, non_blocking=True)
    return {
        name: uploaded[starts[name] : starts[name] + column.nbytes].view(_TORCH_DTYPES[column.dtype.name])
        for name, column in columns.items()
    }


_TORCH_DTYPES = {"int32": torch.int32, "int64": torch.int64, "float32": torch.float32}


def _writable(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """torch warns of read-only memory; columns that still lie in a message are copied."""
    return column if column.flags.writeable else column.copy()
