"""The sizes of one step's tensors, and the sizes that CUDA graphs are captured for.

A graph runs one fixed shape, so a step is rounded up to the next captured one: rows that pad have no tokens in any
page, tokens that pad are written nowhere. Steps of decodes alone are padded by at most a quarter. Steps with chunks
come in coarser sizes; there a graph saves the time the host needs to launch a step (some milliseconds, whatever its
size), so padding is accepted while it costs the device less than that, and large steps have graphs while the device
computes them so fast that it would wait for the host. Steps without a fitting shape run operation by operation.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpu_worker.batch_plan import Int32s
from gpu_worker.request_rows import RowLimits, StepWork
from gpu_worker.shared_groups import max_tiles

_CHUNK_TOKENS = (64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
_MANY_CHUNK_TOKENS = (3072, 4096, 6144, 8192)
_FEW_CHUNKS = 32
MAX_GRAPH_CHUNKS = 64
"""Of a step of many tokens; steps of fewer tokens have _FEW_CHUNKS."""
_MIN_SHARED_DECODES = 8
MIN_UNEVEN_DECODES = 16
MIN_UNEVEN_TOKENS = 2048
_UNEVEN_RATIO = 3
_ROWS_APART = 8
_FAR_APART = 256
_CHUNK_DECODES = (0, 16, 64)
"""Decodes beside chunks, and as many as there can be rows."""
_LAUNCH_SECONDS = 3e-3
_MOST_SECONDS = 30e-3
"""A step that the device computes for longer hides the launch of the next one whatever it takes."""
_FLOPS_PER_SECOND = 6e14
"""Of large bfloat16 products on the fastest devices in use; slower ones accept a little more padding than is best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """What launches are decided by. Sequences with one query come first; T packed tokens in all, R rows sample."""

    num_decodes: int
    num_chunks: int
    num_tokens: int
    num_sampling: int
    max_query_len: int
    max_kv_len: int
    all_greedy: bool = False
    any_truncation: bool = True
    num_shared_tiles: int = 0
    """Tiles of decoding rows that share pages, read once a tile; 0: every row reads its own."""
    uneven: bool = False
    """Some decoding rows are much longer than most."""

    @property
    def num_sequences(self) -> int:
        return self.num_decodes + self.num_chunks


def decode_sizes(max_num_seqs: int) -> list[int]:
    """1 to 8, four sizes an octave up to 64, then every eighth row up to 256, as products of large weights take longer
    with every few rows; eight sizes an octave beyond. The last is max_num_seqs."""
    sizes = [1]
    while sizes[-1] < max_num_seqs:
        last = sizes[-1]
        octave = 1 << (last.bit_length() - 1)
        step = max(1, min(octave // 4, _ROWS_APART)) if octave < _FAR_APART else octave // 8
        sizes.append(min(last + step, max_num_seqs))
    return sizes


class GraphShapes:
    """The shapes that graphs are captured for."""

    def __init__(self, limits: RowLimits, num_parameters: int) -> None:
        self._limits = limits
        self._splits_long_rows = limits.max_model_len >= MIN_UNEVEN_TOKENS
        tokens_per_second = _FLOPS_PER_SECOND / (2 * num_parameters)
        self._max_padding = int(_LAUNCH_SECONDS * tokens_per_second)
        self._decode_sizes = decode_sizes(limits.max_num_seqs)
        self._decodes = [self._shape(size, 0, 0) for size in self._decode_sizes]
        self._sharing = [replace(shape, num_shared_tiles=max_tiles(shape.num_decodes)) for shape in self._decodes]
        self._uneven = [replace(shape, uneven=True) for shape in self._decodes]
        most = limits.max_num_seqs
        self._chunk_decodes = [*(size for size in _CHUNK_DECODES if size < most), most]
        many = [size for size in _MANY_CHUNK_TOKENS if size <= _MOST_SECONDS * tokens_per_second]
        self._chunk_tokens = [size for size in (*_CHUNK_TOKENS, *many) if size <= limits.max_num_batched_tokens]

    def all(self) -> Iterator[StepShape]:
        """Every shape, the largest first: smaller ones then fit into memory that is there already."""
        for num_tokens in reversed(self._chunk_tokens):
            for num_decodes in reversed(self._chunk_decodes):
                yield self._shape(num_decodes, _max_chunks(num_tokens), num_tokens)
        for index in reversed(range(len(self._decodes))):
            plain = self._decodes[index]
            if plain.num_decodes >= _MIN_SHARED_DECODES:
                yield self._sharing[index]
            if self._splits_long_rows and plain.num_decodes >= MIN_UNEVEN_DECODES:
                yield self._uneven[index]
            yield plain

    def fitting(self, work: StepWork, *, uneven: bool = False) -> StepShape | None:
        """The smallest shape that holds the step; None if there is none or it is not worth its padding.

        ``uneven`` as ``lengths_differ`` says of the step.
        """
        if not len(work.chunk_rows):
            return self._decode_shape(len(work.decode_rows), shares=work.shared is not None, uneven=uneven)
        one_token = int(np.count_nonzero(work.chunk_tokens == 1))
        num_decodes = len(work.decode_rows) + one_token
        num_chunks = len(work.chunk_rows) - one_token
        num_chunk_tokens = sum(work.chunk_tokens.tolist()) - one_token
        if not num_chunks:
            return self._decode_shape(num_decodes, shares=False)
        decodes = _at_least(self._chunk_decodes, num_decodes)
        tokens = _at_least(self._chunk_tokens, num_chunk_tokens)
        if num_chunks > _FEW_CHUNKS:
            tokens = _at_least(self._chunk_tokens, max(num_chunk_tokens, _CHUNK_TOKENS[-1] + 1))
        if decodes is None or tokens is None or num_chunks > _max_chunks(tokens):
            return None
        if decodes + tokens - num_decodes - num_chunk_tokens > self._max_padding:
            return None
        return self._shape(decodes, _max_chunks(tokens), tokens)

    def _decode_shape(self, num_decodes: int, *, shares: bool, uneven: bool = False) -> StepShape | None:
        index = bisect_left(self._decode_sizes, num_decodes)
        if not num_decodes or index == len(self._decode_sizes):
            return None
        if shares and num_decodes >= _MIN_SHARED_DECODES:
            return self._sharing[index]
        return self._uneven[index] if uneven else self._decodes[index]

    def _shape(self, num_decodes: int, num_chunks: int, num_chunk_tokens: int) -> StepShape:
        return StepShape(
            num_decodes=num_decodes,
            num_chunks=num_chunks,
            num_tokens=num_decodes + num_chunk_tokens,
            num_sampling=num_decodes + num_chunks,
            max_query_len=max(1, num_chunk_tokens),
            max_kv_len=self._limits.max_model_len,
            # Beside chunks neither a search for rows that share pages or are long would save what it costs, nor graphs
            # of their own: such a step takes milliseconds, and what finds nothing to do in it microseconds.
            num_shared_tiles=max_tiles(num_decodes) if num_chunks and num_decodes >= _MIN_SHARED_DECODES else 0,
            uneven=self._splits_long_rows and num_chunks > 0 and num_decodes >= MIN_UNEVEN_DECODES,
        )


def lengths_differ(kv_lens: Int32s) -> bool:
    """Whether some of the decoding rows of these lengths are so long that attention should split them."""
    if len(kv_lens) < MIN_UNEVEN_DECODES:
        return False  # so few are split anyway
    longest = int(kv_lens.max())
    return longest >= MIN_UNEVEN_TOKENS and longest >= _UNEVEN_RATIO * float(kv_lens.mean())


def _max_chunks(num_tokens: int) -> int:
    return MAX_GRAPH_CHUNKS if num_tokens > _CHUNK_TOKENS[-1] else _FEW_CHUNKS


def _at_least(sizes: Sequence[int], wanted: int) -> int | None:
    """The first of the ascending sizes that is not below ``wanted``."""
    index = bisect_left(sizes, wanted)
    return sizes[index] if index < len(sizes) else None
