"""Groups of rows that share their leading pages, as the plans tell them, and the work of a decode step they save.

The keys and values of shared pages are read once for a tile of rows instead of once a row. What shares is decided by
the scheduler; here is only kept who belongs together. A row is in one group at most; releasing it takes it out.
"""

from dataclasses import dataclass

import numpy as np
from pagewire_kernels import MAX_SHARED_PARTS, SHARED_TILE_ROWS

from gpu_worker.batch_plan import BatchPlan, Int32s, RowIds, empty_column
from gpu_worker.errors import PlanRefusedError

MAX_GROUPS = 16
"""Of one step; the rows of others read their pages themselves."""
MIN_SAVED_TOKENS = 8192
"""Tokens not read by a step from which the additional kernel pays."""


TARGET_TILES = 16
"""Of a step: with 8 key/value heads as many programs as an H200 has processors."""
PART_TOKENS = 64
"""Parts of shared tokens are multiples of this."""
MIN_PART_TOKENS = 128


def max_tiles(num_decodes: int) -> int:
    """Tiles that any groups of so many rows need."""
    return num_decodes // SHARED_TILE_ROWS + MAX_GROUPS + TARGET_TILES


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedWork:
    """The groups of one step; sequences are places among the step's decoding rows."""

    shared_lens: Int32s
    """Of each decoding row: leading tokens that its tile reads for it; 0: none."""
    shared_parts: Int32s
    """Of each decoding row: parts that these are cut into."""
    members: Int32s
    """Sequences, group after group."""
    tiles: Int32s
    """[tiles, 5]: first place in ``members``, number of members, first token, end of the tokens, number of the part."""


class SharedGroups:
    """Who shares how many pages."""

    def __init__(self, max_num_seqs: int, page_size: int) -> None:
        self._page_size = page_size
        self._group_of = np.full(max_num_seqs, -1, dtype=np.int32)
        self._num_pages = np.zeros(max_num_seqs, dtype=np.int32)

    def release(self, rows: RowIds) -> None:
        self._group_of[rows] = -1

    def apply(self, plan: BatchPlan, active: np.ndarray, num_computed: Int32s, page_tables: Int32s) -> None:
        """Take a plan's changes. Raises PlanRefusedError for rows that do not share what the group says."""
        ends = np.cumsum(plan.group_sizes)
        columns = (plan.group_ids.tolist(), plan.group_pages.tolist(), plan.group_sizes.tolist(), ends.tolist())
        for group_id, num_pages, size, end in zip(*columns, strict=True):
            self._group_of[self._group_of == group_id] = -1
            if not size:
                continue
            rows = plan.group_rows[end - size : end]
            if group_id < 0 or int(rows.min()) < 0 or int(rows.max()) >= len(active) or not active[rows].all():
                raise PlanRefusedError("group_rows: a row that is not active")
            if num_pages < 1 or (num_computed[rows] < num_pages * self._page_size).any():
                raise PlanRefusedError("group_pages: more pages than a row has filled")
            tables = page_tables[rows, :num_pages]
            if (tables != tables[0]).any():
                raise PlanRefusedError("group_rows: rows that do not share the group's pages")
            self._group_of[rows] = group_id
            self._num_pages[rows] = num_pages

    def of_step(self, decode_rows: RowIds) -> SharedWork | None:
        """The sharing of these rows; None if it saves too little."""
        groups = self._group_of[decode_rows]
        sequences = np.flatnonzero(groups >= 0).astype(np.int32)
        if len(sequences) < 2:
            return None
        sequences = sequences[np.argsort(groups[sequences], kind="stable")]
        _, starts, counts = np.unique(groups[sequences], return_index=True, return_counts=True)
        lens = self._num_pages[decode_rows[sequences[starts]]] * np.int32(self._page_size)
        saved = (counts - 1) * lens
        if int(saved.sum()) < MIN_SAVED_TOKENS:
            return None
        taken = [group for group in np.argsort(-saved, kind="stable")[:MAX_GROUPS].tolist() if counts[group] > 1]
        part_tokens = _part_tokens(lens[taken].tolist(), counts[taken].tolist())
        shared_lens = np.zeros(len(decode_rows), dtype=np.int32)
        shared_parts = np.zeros(len(decode_rows), dtype=np.int32)
        tiles: list[tuple[int, int, int, int, int]] = []
        for group, length in zip(taken, part_tokens, strict=True):
            start, end, shared = int(starts[group]), int(starts[group] + counts[group]), int(lens[group])
            shared_lens[sequences[start:end]] = shared
            shared_parts[sequences[start:end]] = -(-shared // length)
            tiles.extend(
                (first, min(SHARED_TILE_ROWS, end - first), begin, min(begin + length, shared), part)
                for first in range(start, end, SHARED_TILE_ROWS)
                for part, begin in enumerate(range(0, shared, length))
            )
        return SharedWork(
            shared_lens=shared_lens,
            shared_parts=shared_parts,
            members=sequences,
            tiles=np.array(tiles, dtype=np.int32).reshape(-1, 5),
        )


def _part_tokens(lens: list[int], counts: list[int]) -> list[int]:
    """Tokens of one part of each group: about TARGET_TILES tiles in all, or one for each SHARED_TILE_ROWS members."""
    tokens = sum(-(-count // SHARED_TILE_ROWS) * shared for shared, count in zip(lens, counts, strict=True))
    least = max(MIN_PART_TOKENS, -(-tokens // TARGET_TILES))
    parts = [min(-(-shared // least), MAX_SHARED_PARTS) for shared in lens]
    return [-(-shared // (number * PART_TOKENS)) * PART_TOKENS for shared, number in zip(lens, parts, strict=True)]


NO_SHARED_WORK = SharedWork(
    shared_lens=empty_column(),
    shared_parts=empty_column(),
    members=empty_column(),
    tiles=empty_column().reshape(-1, 5),
)
