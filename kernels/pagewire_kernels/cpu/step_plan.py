"""What the layers of one step share: where to write, what to gather, what to mask.

Decodes are sorted by length and cut into groups whose members need about as many pages, so that padding to the
longest stays small and a group's gathered pages stay in the cache between the gather and the attention. A chunk is
gathered alone and attended in tiles of queries, each against the keys its last query sees.

Decodes whose page tables begin with the same pages, as requests with one system prompt have, read that prefix once: a
group gathers it once and multiplies all its queries with it at once (32 decodes with 512 of 560 tokens shared take a
third of the time).

Gather layout: rows of ``page_size * head_dim`` elements in the order (keys or values, sequence, head, page), which
makes keys and values ``[sequences, num_kv_heads, pages * page_size, head_dim]`` without a copy. A sequence with fewer
pages than its group repeats its first page. Slots past a sequence's end may hold NaN: those of a decode group are
zeroed after the gather (``unwritten``) and masked; a chunk's are cut off.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch

from pagewire_kernels.interface import AttentionBatch

GROUP_BYTES = 4 << 20
"""Gathered bytes of a decode group: half of what keeps the attention reading from cache; one sequence may exceed it."""
MIN_FILL = 0.75
"""A sequence joins a decode group only if it fills at least this share of the longest member's pages."""
MIN_BATCHED = 6
"""Decodes from which batched products beat scaled dot product attention, whose cost is one call a sequence."""
BATCHED_DTYPES = (torch.float32, torch.bfloat16)
"""float16 lacks the range for scores that are not scaled yet."""
MIN_SHARED_PAGES = 4
"""Shorter common prefixes do not pay for the products they add."""
CHUNK_TILE = 128
"""Query tokens of a chunk attended at once; keys past the tile are skipped."""


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Decodes attended by one call."""

    tokens: torch.Tensor | slice
    """Their rows of the packed queries: a slice where they lie together."""
    num_sequences: int
    num_pages: int
    """Gathered for each of them: what the shared prefix does not hold."""
    num_shared_pages: int
    """Pages all their tables begin with; more than 0 only if the group is batched."""
    shared_rows: torch.Tensor
    """int64 [2 * num_kv_heads * num_shared_pages]."""
    gather_rows: torch.Tensor
    """int64 [2 * num_sequences * num_kv_heads * num_pages]."""
    unwritten: tuple[tuple[int, int, int], ...]
    """(member, first position, last + 1) of gathered slots past a sequence's end. Few and short: each is zeroed alone,
    which takes a fifth of the time of one index_fill_ over all rows."""
    mask: torch.Tensor | None
    """[num_sequences, 1, 1, num_pages * page_size]: 0 or -inf, float32 if the group is batched, else the pages'
    dtype."""
    is_batched: bool
    """Attend by batched products."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One sequence with several queries."""

    first_token: int
    num_pages: int
    gather_rows: torch.Tensor
    tiles: tuple[tuple[int, int, torch.Tensor], ...]
    """(first query, last query + 1, mask [(queries * group), keys seen by the last of them])."""


class StepPlan:
    """Made at a step's first kernel from the batch's contents; costs a few list copies and small tensor operations."""

    def __init__(self, batch: AttentionBatch, kv_pages: torch.Tensor) -> None:
        self.batch = batch
        self.page_shape = kv_pages.shape[2:]
        self.num_kv_heads, self.page_size, self.head_dim = self.page_shape
        self._dtype = kv_pages.dtype
        self._angles: tuple[torch.Tensor, torch.Tensor] | None = None
        self._kv_lens: list[int] = batch.kv_lens.tolist()
        self._query_starts: list[int] = batch.query_starts.tolist()
        self._head_rows = torch.arange(2 * self.num_kv_heads).view(2, 1, self.num_kv_heads, 1)
        self.written_tokens, self.write_rows = self._writes()
        self._chunks: list[Chunk] | None = None

    @cached_property
    def groups(self) -> list[DecodeGroup]:
        """The sequences with one query."""
        return [
            self._decode_group(members, num_shared)
            for sharers, num_shared in self._sharers()
            for members in self._cut(sharers, num_shared)
        ]

    @cached_property
    def chunk_scratch(self) -> int:
        """Elements of scratch that the chunks need."""
        return self._elements(max((self._pages_of(sequence) for sequence in self._chunk_sequences()), default=0))

    @cached_property
    def scratch(self) -> int:
        """Elements of scratch that groups and chunks need."""
        pages = (group.num_shared_pages + group.num_sequences * group.num_pages for group in self.groups)
        return max(self._elements(max(pages, default=0)), self.chunk_scratch)

    def _elements(self, num_pages: int) -> int:
        return num_pages * 2 * self.num_kv_heads * self.page_size * self.head_dim

    def angles(self, batch: AttentionBatch, cos_sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """float32 cosines and signed sines [T, 1, head_dim], so that ``x * cos + roll(x) * sin`` rotates both
        halves."""
        if self._angles is None:
            cos, sin = cos_sin.index_select(0, batch.positions)[:, None].chunk(2, dim=-1)
            self._angles = torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)
        return self._angles

    def has_padding(self, num_tokens: int) -> bool:
        """Whether some of the packed rows belong to no sequence with keys."""
        live = sum(group.num_sequences for group in self.groups)
        starts = self._query_starts
        return num_tokens > live + sum(starts[chunk + 1] - starts[chunk] for chunk in self._chunk_sequences())

    def chunks(self, group_size: int) -> list[Chunk]:
        """The sequences with several queries; ``group_size`` query heads share a key/value head."""
        if self._chunks is None:
            self._chunks = [self._chunk(sequence, group_size) for sequence in self._chunk_sequences()]
        return self._chunks

    def _writes(self) -> tuple[torch.Tensor | None, torch.Tensor]:
        """(tokens with a slot, None for all; int64 [tokens, 2 * num_kv_heads] rows of head_dim elements)."""
        slots, tokens = self.batch.slots, None
        if slots.numel() and int(slots.min()) < 0:
            tokens = (slots >= 0).nonzero()[:, 0]
            slots = slots[tokens]
        pages, offsets = slots // self.page_size, slots % self.page_size
        heads = torch.arange(2 * self.num_kv_heads)
        return tokens, (pages[:, None] * (2 * self.num_kv_heads) + heads) * self.page_size + offsets[:, None]

    def _pages_of(self, sequence: int) -> int:
        return -(-self._kv_lens[sequence] // self.page_size)

    def _chunk_sequences(self) -> list[int]:
        starts = self._query_starts
        later = range(self.batch.num_decodes, len(self._kv_lens))
        return [sequence for sequence in later if starts[sequence + 1] > starts[sequence]]

    def _sharers(self) -> list[tuple[list[int], int]]:
        """(decodes, number of pages all their tables begin with); 0 pages for all that share too little."""
        by_first_page: dict[int, list[int]] = {}
        tables = self.batch.page_tables[: self.batch.num_decodes]
        for sequence, first_page in enumerate(tables[:, :1].flatten().tolist()):
            if self._kv_lens[sequence] > 0:
                by_first_page.setdefault(first_page, []).append(sequence)
        alone, sharing = [], []
        for members in by_first_page.values():
            num_shared = self._num_shared_pages(members)
            if num_shared >= MIN_SHARED_PAGES:
                sharing.append((members, num_shared))
            else:
                alone.extend(members)
        return [*sharing, (alone, 0)]

    def _num_shared_pages(self, members: list[int]) -> int:
        """Leaves every member at least one token of its own."""
        if len(members) < MIN_BATCHED or self._dtype not in BATCHED_DTYPES:
            return 0
        longest = (min(self._kv_lens[sequence] for sequence in members) - 1) // self.page_size
        tables = self.batch.page_tables[members, :longest]
        return int((tables == tables[0]).all(dim=0).long().cumprod(dim=0).sum())

    def _cut(self, sequences: list[int], num_shared: int) -> list[list[int]]:
        """By falling number of pages, cut where padding or the gathered bytes would grow too large."""
        counts = {sequence: self._pages_of(sequence) - num_shared for sequence in sequences}
        page_bytes = 2 * self.num_kv_heads * self.page_size * self.head_dim * self._dtype.itemsize
        groups: list[list[int]] = []
        for sequence in sorted(sequences, key=lambda sequence: -counts[sequence]):
            if groups:
                most = counts[groups[-1][0]]
                fits = (len(groups[-1]) + 1) * most * page_bytes <= GROUP_BYTES
                if fits and counts[sequence] >= MIN_FILL * most - 1:
                    groups[-1].append(sequence)
                    continue
            groups.append([sequence])
        return [sorted(group) for group in groups]

    def _gather_rows(self, page_ids: torch.Tensor) -> torch.Tensor:
        """int64 page ids [sequences, pages] -> rows in the order (keys or values, sequence, head, page)."""
        pages = page_ids[None, :, None, :] * (2 * self.num_kv_heads)
        return (pages + self._head_rows).reshape(-1)

    def _decode_group(self, members: list[int], num_shared: int) -> DecodeGroup:
        own_lens = [self._kv_lens[sequence] - num_shared * self.page_size for sequence in members]
        num_pages = -(-max(own_lens) // self.page_size)
        index = torch.tensor(members)
        kv_lens = torch.tensor(own_lens)[:, None]
        own_pages = torch.arange(num_pages) * self.page_size < kv_lens
        tables = self.batch.page_tables[index, num_shared : num_shared + num_pages].long()
        page_ids = torch.where(own_pages, tables, tables[:, :1])
        shared_ids = self.batch.page_tables[members[0], :num_shared].long()[None]
        tokens: torch.Tensor | slice = index
        if members[-1] - members[0] + 1 == len(members):
            tokens = slice(members[0], members[-1] + 1)
        past_end = torch.arange(num_pages * self.page_size) >= kv_lens
        is_batched = num_shared > 0 or (len(members) >= MIN_BATCHED and self._dtype in BATCHED_DTYPES)
        mask = None
        if bool(past_end.any()):
            mask_dtype = torch.float32 if is_batched else self._dtype
            mask = torch.zeros(past_end.shape, dtype=mask_dtype).masked_fill_(past_end, float("-inf"))[:, None, None]
        return DecodeGroup(
            tokens=tokens,
            num_sequences=len(members),
            num_pages=num_pages,
            num_shared_pages=num_shared,
            shared_rows=self._gather_rows(shared_ids),
            gather_rows=self._gather_rows(page_ids),
            unwritten=tuple(self._unwritten(own_lens, num_pages)),
            mask=mask,
            is_batched=is_batched,
        )

    def _unwritten(self, own_lens: list[int], num_pages: int) -> Iterator[tuple[int, int, int]]:
        """The rest of each member's last page; a repeated first page is finite unless it is that last one."""
        for member, length in enumerate(own_lens):
            end = -(-length // self.page_size) * self.page_size
            if length < end:
                yield member, length, end
            if length < self.page_size:
                for page in range(1, num_pages):
                    yield member, page * self.page_size + length, (page + 1) * self.page_size

    def _chunk(self, sequence: int, group_size: int) -> Chunk:
        first_token, kv_len = self._query_starts[sequence], self._kv_lens[sequence]
        query_len, num_pages = self._query_starts[sequence + 1] - first_token, self._pages_of(sequence)
        page_ids = self.batch.page_tables[sequence : sequence + 1, :num_pages].long()
        tiles = []
        for first in range(0, query_len, CHUNK_TILE):
            last = min(first + CHUNK_TILE, query_len)
            seen = kv_len - query_len + last
            positions = torch.arange(kv_len - query_len + first, seen).repeat_interleave(group_size)
            hidden = torch.arange(seen) > positions[:, None]
            mask = torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(hidden, float("-inf"))
            tiles.append((first, last, mask))
        return Chunk(first_token, num_pages, self._gather_rows(page_ids), tuple(tiles))
