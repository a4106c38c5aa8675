"""Inputs for kernel tests, the same for the interpreter, the CPU set and a GPU.

Everything a kernel must not read is poison: pages of nobody, slots past a sequence's end and outputs hold NaN, the
tails of page tables hold an id far outside the pool.
"""

from dataclasses import dataclass, replace

import pytest
import torch
from pagewire_kernels import SHARED_TILE_ROWS, AttentionBatch, SamplingBatch, SharedPrefixes

POISON_PAGE_ID = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCase:
    """A step: ``sequences`` are (query_len, kv_len) pairs, those with one query first; kv_len 0 is padding."""

    name: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    sequences: tuple[tuple[int, int], ...]

    @property
    def num_decodes(self) -> int:
        count = 0
        for query_len, _ in self.sequences:
            if query_len != 1:
                break
            count += 1
        return count

    @property
    def num_tokens(self) -> int:
        return sum(query_len for query_len, _ in self.sequences)


ATTENTION_CASES = (
    AttentionCase(name="decode-gqa1-d64-p16", num_heads=2, num_kv_heads=2, head_dim=64, page_size=16,
                  sequences=((1, 1), (1, 17), (1, 64))),
    AttentionCase(name="decode-gqa3-d64-p64", num_heads=9, num_kv_heads=3, head_dim=64, page_size=64,
                  sequences=((1, 63), (1, 65), (1, 0))),
    AttentionCase(name="decode-gqa4-d128-p16-splits", num_heads=8, num_kv_heads=2, head_dim=128, page_size=16,
                  sequences=((1, 700), (1, 5), (1, 257))),
    AttentionCase(name="decode-gqa8-d128-p64", num_heads=8, num_kv_heads=1, head_dim=128, page_size=64,
                  sequences=((1, 100), (1, 256))),
    AttentionCase(name="decode-gqa16-d16-p32", num_heads=16, num_kv_heads=1, head_dim=16, page_size=32,
                  sequences=((1, 33), (1, 2), (1, 31))),
    AttentionCase(name="chunk-gqa1-d64-p16", num_heads=2, num_kv_heads=2, head_dim=64, page_size=16,
                  sequences=((7, 7), (70, 70), (2, 19))),
    AttentionCase(name="chunk-gqa3-d64-p64-prefix", num_heads=9, num_kv_heads=3, head_dim=64, page_size=64,
                  sequences=((33, 97), (50, 50))),
    AttentionCase(name="chunk-gqa4-d128-p16-prefix", num_heads=4, num_kv_heads=1, head_dim=128, page_size=16,
                  sequences=((5, 133), (37, 64))),
    AttentionCase(name="chunk-gqa8-d128-p128", num_heads=8, num_kv_heads=1, head_dim=128, page_size=128,
                  sequences=((19, 150),)),
    AttentionCase(name="mixed-gqa3-d64-p32", num_heads=9, num_kv_heads=3, head_dim=64, page_size=32,
                  sequences=((1, 40), (1, 0), (1, 333), (1, 32), (12, 76), (2, 2), (0, 9), (45, 45))),
)  # fmt: skip


FEW_CASE = AttentionCase(name="few", num_heads=6, num_kv_heads=2, head_dim=64, page_size=32,
                         sequences=((1, 700), (1, 0), (1, 33)))  # fmt: skip
SHARED_CASES = (
    AttentionCase(name="shared-gqa2-d64-p16", num_heads=4, num_kv_heads=2, head_dim=64, page_size=16,
                  sequences=((1, 400), (1, 337), (1, 0), (1, 700), (1, 370), (1, 337), (1, 90))),
    AttentionCase(name="shared-gqa3-d64-p32", num_heads=3, num_kv_heads=1, head_dim=64, page_size=32,
                  sequences=tuple((1, 321 + 2 * number) for number in range(34))),
    AttentionCase(name="shared-gqa8-d128-p64", num_heads=8, num_kv_heads=1, head_dim=128, page_size=64,
                  sequences=((1, 321), (1, 500), (1, 0), (1, 322))),
    AttentionCase(name="shared-mha-d64-p128", num_heads=2, num_kv_heads=2, head_dim=64, page_size=128,
                  sequences=((1, 257), (1, 300), (1, 20), (1, 640))),
)  # fmt: skip
SHARED_TOKENS = 336


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    q: torch.Tensor
    kv_pages: torch.Tensor
    batch: AttentionBatch
    scale: float


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def attention_batch(case: AttentionCase, page_tables: torch.Tensor) -> AttentionBatch:
    """The batch of a case; slots are those of each sequence's last ``query_len`` tokens."""
    starts, positions, slots = [0], [], []
    for index, (query_len, kv_len) in enumerate(case.sequences):
        starts.append(starts[-1] + query_len)
        for position in range(kv_len - query_len, kv_len):
            positions.append(max(position, 0))
            if position < 0:
                slots.append(-1)
            else:
                page_id = int(page_tables[index, position // case.page_size])
                slots.append(page_id * case.page_size + position % case.page_size)
    return AttentionBatch(
        page_tables=page_tables,
        query_starts=torch.tensor(starts, dtype=torch.int32),
        kv_lens=torch.tensor([kv_len for _, kv_len in case.sequences], dtype=torch.int32),
        positions=torch.tensor(positions, dtype=torch.int32),
        slots=torch.tensor(slots, dtype=torch.int64),
        num_decodes=case.num_decodes,
        max_query_len=max(query_len for query_len, _ in case.sequences),
        max_kv_len=max(kv_len for _, kv_len in case.sequences),
    )


def page_tables_for(case: AttentionCase, generator: torch.Generator) -> tuple[torch.Tensor, int]:
    """(page tables int32 [S, max_pages] in random page order with poison tails, pages in the pool)."""
    counts = [-(-kv_len // case.page_size) for _, kv_len in case.sequences]
    num_pages = sum(counts) + 3
    free = torch.randperm(num_pages, generator=generator).tolist()
    tables = torch.full((len(counts), max(counts) + 2), POISON_PAGE_ID, dtype=torch.int32)
    for index, count in enumerate(counts):
        for page in range(count):
            tables[index, page] = free.pop()
    return tables, num_pages


def attention_inputs(
    case: AttentionCase,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
    page_dtype: torch.dtype | None = None,
) -> AttentionInputs:
    """Random queries, keys and values of a case; pages have the queries' dtype unless told otherwise."""
    generator = seeded(seed)
    tables, num_pages = page_tables_for(case, generator)
    kv_pages = torch.full((num_pages, 2, case.num_kv_heads, case.page_size, case.head_dim), float("nan"))
    for index, (_, kv_len) in enumerate(case.sequences):
        for first in range(0, kv_len, case.page_size):
            used = min(case.page_size, kv_len - first)
            page = kv_pages[int(tables[index, first // case.page_size])]
            page[:, :, :used] = torch.randn(2, case.num_kv_heads, used, case.head_dim, generator=generator)
    q = torch.randn(case.num_tokens, case.num_heads, case.head_dim, generator=generator)
    return AttentionInputs(
        q.to(device, dtype),
        kv_pages.to(device, page_dtype or dtype),
        batch_to(attention_batch(case, tables), device),
        0.125,
    )


def share_leading_pages(inputs: AttentionInputs, case: AttentionCase, part_tokens: int = 128) -> AttentionInputs:
    """The same inputs with SHARED_TOKENS of every sequence that is longer in the pages of the first one."""
    pages = SHARED_TOKENS // case.page_size
    shared_len = pages * case.page_size
    members = [number for number, (_, kv_len) in enumerate(case.sequences) if kv_len > shared_len]
    tables, lens = inputs.batch.page_tables.clone(), torch.zeros(len(case.sequences), dtype=torch.int32)
    tables[members, :pages] = tables[members[0], :pages]
    lens[members] = shared_len
    tiles = [(first, min(SHARED_TILE_ROWS, len(members) - first), begin, min(begin + part_tokens, shared_len), part)
             for part, begin in enumerate(range(0, shared_len, part_tokens))
             for first in range(0, len(members), SHARED_TILE_ROWS)] + [(0, 0, 0, 0, 0)]  # fmt: skip
    device = inputs.q.device
    shared = SharedPrefixes(
        shared_lens=lens.to(device),
        shared_parts=((lens + part_tokens - 1) // part_tokens).to(device),
        members=torch.tensor([*members, POISON_PAGE_ID], dtype=torch.int32, device=device),
        tiles=torch.tensor(tiles, dtype=torch.int32, device=device),
    )
    return replace(inputs, batch=replace(inputs.batch, page_tables=tables, shared=shared))


def batch_to(batch: AttentionBatch, device: str) -> AttentionBatch:
    return AttentionBatch(
        page_tables=batch.page_tables.to(device),
        query_starts=batch.query_starts.to(device),
        kv_lens=batch.kv_lens.to(device),
        positions=batch.positions.to(device),
        slots=batch.slots.to(device),
        num_decodes=batch.num_decodes,
        max_query_len=batch.max_query_len,
        max_kv_len=batch.max_kv_len,
    )


@dataclass(frozen=True, slots=True)
class RotaryInputs:
    qkv: torch.Tensor
    cos_sin: torch.Tensor
    kv_pages: torch.Tensor
    batch: AttentionBatch


def rotary_inputs(
    case: AttentionCase, dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0
) -> RotaryInputs:
    """Random heads and angles, every page NaN; every fifth token has no slot."""
    generator = seeded(seed)
    tables, num_pages = page_tables_for(case, generator)
    batch = batch_to(attention_batch(case, tables), device)
    batch.slots[::5] = -1
    qkv = torch.randn(case.num_tokens, (case.num_heads + 2 * case.num_kv_heads) * case.head_dim, generator=generator)
    angles = torch.rand(batch.max_kv_len + 1, case.head_dim // 2, generator=generator) * 6.0
    kv_pages = torch.full((num_pages, 2, case.num_kv_heads, case.page_size, case.head_dim), float("nan"))
    return RotaryInputs(
        qkv.to(device, dtype),
        torch.cat([angles.cos(), angles.sin()], dim=1).to(device),
        kv_pages.to(device, dtype),
        batch,
    )


def sampling_batch(
    rows: int,
    device: str = "cpu",
    temperature: float | list[float] = 1.0,
    top_k: int | list[int] = 0,
    top_p: float | list[float] = 1.0,
    min_p: float | list[float] = 0.0,
    seeds: list[int] | None = None,
    output_index: int = 0,
    output_position: int = 0,
) -> SamplingBatch:
    """Parameters of ``rows`` rows; a scalar counts for all of them. Default seeds are 0, 1, 2, ..."""

    def column(value: float | list[float], dtype: torch.dtype) -> torch.Tensor:
        values = value if isinstance(value, list) else [value] * rows
        return torch.tensor(values, dtype=dtype, device=device)

    temperatures = column(temperature, torch.float32)
    columns = {
        "top_k": column(top_k, torch.int32),
        "top_p": column(top_p, torch.float32),
        "min_p": column(min_p, torch.float32),
    }
    truncates = bool((columns["top_k"] > 0).any() | (columns["top_p"] < 1).any() | (columns["min_p"] > 0).any())
    return SamplingBatch(
        temperature=temperatures,
        **columns,
        seeds=torch.tensor(list(range(rows)) if seeds is None else seeds, dtype=torch.int64, device=device),
        output_index=column(output_index, torch.int32),
        output_positions=column(output_position, torch.int32),
        all_greedy=bool((temperatures == 0).all()),
        any_truncation=truncates,
    )


def poison_allocations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes torch.empty return NaN (or a huge integer), so that an output element nobody writes shows."""
    plain_empty = torch.empty

    def poisoned(*size: object, **options: object) -> torch.Tensor:
        tensor: torch.Tensor = plain_empty(*size, **options)  # type: ignore[call-overload]
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor.fill_(111)

    monkeypatch.setattr(torch, "empty", poisoned)


TOLERANCE = {
    torch.float32: {"rtol": 2e-5, "atol": 2e-5},
    torch.float16: {"rtol": 4e-3, "atol": 4e-3},
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
}
"""Against the reference computed on the same rounded inputs."""
