"""Launch rules shared by the kernels: every choice follows from shapes, dtype and backend alone, never from contents.

A tile in this package is the part of a tensor one program handles at once. Tile sizes are fixed here rather than
autotuned, so that a step never times or compiles anything once every shape has been warmed.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
import triton

from pagewire_kernels.interface import SHARED_TILE_ROWS

PROGRAMS_PER_PROCESSOR = 2
"""Decode programs that a streaming multiprocessor should have; with fewer, sequences are split."""
MAX_SPLITS = 32
MIN_SPLIT_TOKENS = 128
"""A split of a sequence below this costs more to combine than it saves."""
LONG_SPLIT_TOKENS = 1024
LARGE_GROUP, LONG_CHUNK = 4, 4096
_MANY_ROUNDS, LARGE_TILE_HEAD_DIM = 7, 128
_INTERPRETER_PROCESSORS = 132


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTiles:
    """Tile sizes of one attention launch."""

    rows: int
    """Query rows (tokens x heads of a group) of a tile; a power of two of at least 16."""
    tokens: int
    """Key/value tokens of a tile."""
    num_warps: int
    num_stages: int


def next_power_of_two(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()


def ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)


@lru_cache
def num_processors(device: torch.device) -> int:
    """Streaming multiprocessors of a device; a fixed number in the interpreter."""
    if device.type != "cuda":
        return _INTERPRETER_PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def on_hip() -> bool:
    return torch.version.hip is not None


def approximate(device: torch.device) -> bool:
    """Whether kernels may use NVIDIA's instructions for logarithms and powers."""
    return device.type == "cuda" and not on_hip()


@lru_cache
def on_hopper() -> bool:
    """Whether kernels run compiled on an NVIDIA device from Hopper on, which has early launch and packed bfloat16."""
    if torch.version.cuda is None or triton.knobs.runtime.interpret or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability() >= (9, 0)


def num_splits(num_sequences: int, num_kv_heads: int, max_kv_len: int, processors: int) -> int:
    """Parts each sequence's keys are split into so that a decode step fills the device; a power of two."""
    wanted = next_power_of_two(ceil_div(processors * PROGRAMS_PER_PROCESSOR, max(1, num_sequences * num_kv_heads)))
    useful = next_power_of_two(ceil_div(max_kv_len, MIN_SPLIT_TOKENS))
    return max(1, min(wanted, useful, MAX_SPLITS))


def decode_splits(
    num_sequences: int, num_kv_heads: int, max_kv_len: int, processors: int, *, uneven: bool
) -> tuple[int, int]:
    """(most splits of a sequence, least tokens of a split). Among many sequences that differ much in length only the
    long ones are split: unsplit, each would keep a program busy long after those of the others have ended."""
    splits = num_splits(num_sequences, num_kv_heads, max_kv_len, processors)
    of_long = min(ceil_div(max_kv_len, LONG_SPLIT_TOKENS), MAX_SPLITS)
    return (of_long, LONG_SPLIT_TOKENS) if uneven and of_long > splits else (splits, MIN_SPLIT_TOKENS)


def cut_finely(splits: int, min_split: int) -> bool:
    """Whether so few sequences are cut into so many splits that reading their results one after the other would take
    longer than making them: then all are read at once."""
    return splits == MAX_SPLITS and min_split == MIN_SPLIT_TOKENS


def decode_rounds(num_programs: int, head_dim: int, dtype: torch.dtype, processors: int) -> bool:
    """Whether decode attention takes a Hopper processor so many rounds that tiles pay of which one fills it."""
    large = on_hopper() and dtype != torch.float32 and head_dim <= LARGE_TILE_HEAD_DIM
    return large and num_programs >= _MANY_ROUNDS * processors


def decode_tiles(
    group_size: int,
    dtype: torch.dtype,
    hip: bool,
    *,
    shares: bool = False,
    many_rounds: bool = False,
    few: bool = False,
) -> AttentionTiles:
    """Tiles for one query a sequence: the group's heads padded to what a matrix instruction needs. Small ones for what
    sequences that share do not share, so that they find room beside those of shared tokens; large ones for many rounds
    (256 sequences of 100 to 1,400 tokens, 16 heads over 8, on an H200: 196 us, with 64 tokens 209; 160 of them 134 and
    146; but 64 of 1,100 tokens 78.8 and 75.3); a whole split for few sequences (one of 1,024: 8.2 us, 11.7)."""
    rows = max(16, next_power_of_two(group_size))
    if dtype == torch.float32:
        return AttentionTiles(rows=rows, tokens=32, num_warps=4, num_stages=1 if hip else 2)
    if shares:
        return AttentionTiles(rows=rows, tokens=32, num_warps=2, num_stages=1 if hip else 3)
    if few and not hip:
        return AttentionTiles(rows=rows, tokens=128, num_warps=4, num_stages=2)
    if many_rounds:
        return AttentionTiles(rows=rows, tokens=128, num_warps=4, num_stages=3)
    return AttentionTiles(rows=rows, tokens=64, num_warps=4, num_stages=1 if hip else 3)


def shared_tiles(group_rows: int, dtype: torch.dtype, hip: bool) -> AttentionTiles:
    """Tiles for queries of sequences that share tokens; ``rows`` is SHARED_TILE_ROWS times 1, 2 or 4 heads."""
    if dtype == torch.float32:
        return AttentionTiles(rows=SHARED_TILE_ROWS, tokens=32, num_warps=4, num_stages=1 if hip else 2)
    rows = SHARED_TILE_ROWS * min(group_rows, 2)
    return AttentionTiles(rows=rows, tokens=32, num_warps=4, num_stages=1 if hip else 5)


def combine_parts(num_slots: int, group_rows: int) -> int:
    """Partial results of a sequence that are combined at once, as many as its registers hold; a power of two."""
    return min(next_power_of_two(num_slots), max(1, 32 // group_rows))


def chunk_tiles(group_size: int, max_query_len: int, dtype: torch.dtype, hip: bool) -> AttentionTiles:
    """Tiles for chunks: small ones, whose causal tails waste less; more rows where a long chunk of large groups fills
    them (32 heads over 8 on an H200: 8,192 tokens 426 TFLOP/s, 412 with 64 rows; 2,048 tokens 138 us and 122). Of five
    stages two are for page ids, as many as keys and values are ahead."""
    if dtype == torch.float32:
        return AttentionTiles(rows=64, tokens=32, num_warps=8, num_stages=1 if hip else 2)
    if group_size >= LARGE_GROUP and max_query_len >= LONG_CHUNK and not hip:
        return AttentionTiles(rows=128, tokens=32, num_warps=8, num_stages=5)
    return AttentionTiles(rows=64, tokens=32, num_warps=4, num_stages=1 if hip else 5)


def check_attention_shapes(q: torch.Tensor, kv_pages: torch.Tensor) -> tuple[int, int, int, int]:
    """(num_heads, num_kv_heads, head_dim, page_size) of a launch.

    Raises:
        ValueError: shapes or strides that the kernels do not address.
    """
    num_heads, head_dim = q.shape[1], q.shape[2]
    _, two, num_kv_heads, page_size, kv_head_dim = kv_pages.shape
    if two != 2 or kv_head_dim != head_dim or num_heads % num_kv_heads:
        raise ValueError(f"queries {tuple(q.shape)} do not fit pages {tuple(kv_pages.shape)}")
    if head_dim < 16 or head_dim & (head_dim - 1):
        raise ValueError(f"head_dim {head_dim} is not a power of two of at least 16")
    if num_heads // num_kv_heads > 64:
        raise ValueError(
            f"{num_heads} query heads over {num_kv_heads} key/value heads: groups over 64 do not fit a tile"
        )
    if not kv_pages.is_contiguous() or q.stride(2) != 1 or q.stride(1) != head_dim:
        raise ValueError("pages must be contiguous and queries contiguous but for the token stride")
    return num_heads, num_kv_heads, head_dim, page_size
