"""The one interface both kernel sets (``triton`` and ``cpu``) implement; ``reference.py`` defines what is correct.

Page layout, one tensor a layer (see README.md): ``kv_pages[num_pages, 2, num_kv_heads, page_size, head_dim]``, index
0 of the second axis holding keys, index 1 values. A (page, head) tile is contiguous. A *slot* is ``page_id *
page_size + offset in the page``. Pages have the queries' dtype or float8_e4m3fn, to whose range (MAX_FP8) keys and
values are cut then; what is read of them counts as if it had the queries' dtype.

Tokens of a step are packed: sequence ``s`` owns rows ``query_starts[s]:query_starts[s + 1]`` of the packed tensors. Its
queries are the *last* ``query_len`` tokens of its ``kv_lens[s]`` tokens, so query ``i`` of it sits at position
``kv_lens[s] - query_len + i`` and attends to every key at a position up to its own. Sequences with one query (decodes)
come first.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from pagewire_kernels.quantized import QuantizedWeight

MAX_FP8 = 448.0
"""Largest value of float8_e4m3fn."""
SHARED_TILE_ROWS = 32
"""Sequences of one tile of ``SharedPrefixes``."""
MAX_SHARED_PARTS = 16
"""Parts that the tokens which a sequence shares are cut into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefixes:
    """Which of a step's first D sequences, one query each, begin with the same pages: a hint, results do not change.

    A sequence has more tokens than it shares. Its pages up to ``shared_lens`` are those of its tiles' first member.
    """

    shared_lens: torch.Tensor
    """int32 [D]: leading tokens that the sequence's tiles cover; 0: none."""
    shared_parts: torch.Tensor
    """int32 [D]: parts that these tokens are cut into, a tile for each."""
    members: torch.Tensor
    """int32 [D]: sequences of a tile are neighbours here; entries no tile names are not read."""
    tiles: torch.Tensor
    """int32 [tiles, 5]: first place in members, number of members (0: the tile is padding), first token, end of the
    tokens, number of the part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBatch:
    """Where the packed tokens of one step live; made once a step, used by every layer.

    Shapes: ``S`` sequences, ``T`` packed tokens. Everything from ``page_tables`` past a sequence's
    ``ceil(kv_len / page_size)`` entries may be garbage and is never read.
    """

    page_tables: torch.Tensor
    """int32 [S, max_pages]: page ids, position order."""
    query_starts: torch.Tensor
    """int32 [S + 1]: exclusive prefix sums of the query lengths."""
    kv_lens: torch.Tensor
    """int32 [S]: tokens of the sequence including this step's."""
    positions: torch.Tensor
    """int32 [T]: absolute position of each packed token."""
    slots: torch.Tensor
    """int64 [T]: slot each packed token's keys and values are written to; negative: nothing is written."""
    num_decodes: int
    """The first ``num_decodes`` sequences have exactly one query."""
    max_query_len: int
    """Largest query length (host side, for grids)."""
    max_kv_len: int
    """Largest ``kv_lens`` (host side, for grids and scratch)."""
    shared: SharedPrefixes | None = None
    uneven: bool = False
    """Some decodes are much longer than most (host side; a hint, results do not change)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QkNorm:
    """Root-mean-square norms of each head of queries and keys, before their rotation (arXiv 2302.05442)."""

    query_weight: torch.Tensor
    """[head_dim]."""
    key_weight: torch.Tensor
    """[head_dim]."""
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingBatch:
    """Sampling parameters of the ``R`` rows of a step that sample, as tensors on the logits' device."""

    temperature: torch.Tensor
    """float32 [R]: 0 means greedy (noise and truncation do not matter then)."""
    top_k: torch.Tensor
    """int32 [R]: 0 means off."""
    top_p: torch.Tensor
    """float32 [R] in (0, 1]: 1 means off."""
    min_p: torch.Tensor
    """float32 [R] in [0, 1]: 0 means off, 1 keeps only the maximum and its ties."""
    seeds: torch.Tensor
    """int64 [R]: the bits of the request's unsigned 64-bit seed."""
    output_index: torch.Tensor
    """int32 [R]: which of a request's n outputs."""
    output_positions: torch.Tensor
    """int32 [R]: how many output tokens the row had before this one."""
    all_greedy: bool
    """Every temperature is 0 (host side: lets a set skip noise and truncation)."""
    any_truncation: bool
    """Some row uses top_k, top_p or min_p (host side)."""


class QuantizedProduct(Protocol):
    """A quantised weight in a kernel set's own layout."""

    num_bytes: int
    """Memory it holds."""

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """``x @ w.T + bias``. x [T, in], bias [out], both of the dtype it was prepared for -> [T, out] in that dtype.

        Inputs are in the model's order: what is permuted is the product's to permute. Sums in float32.
        """
        ...


@runtime_checkable
class KeepsFloats(Protocol):
    """A quantised product that many rows would find faster with a copy of the weight in floats."""

    num_float_bytes: int
    """Memory the copy takes, less what it takes the place of."""

    def keep_floats(self) -> None:
        """Make the copy and keep it; ``num_bytes`` counts it then."""
        ...


class KernelSet(Protocol):
    """Operations of the hot path. Accumulation is float32 everywhere; inputs are float32, float16 or bfloat16."""

    name: str

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Root-mean-square norm (arXiv 1910.07467). x [T, H], weight [H] -> [T, H] in x's dtype."""
        ...

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """``residual += x`` in place, then its rms_norm. x, residual [T, H] -> [T, H]."""
        ...

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """``x @ weight.T + bias``. x [T, in], weight [out, in], bias [out] -> [T, out] in x's dtype."""
        ...

    def takes_quantized(self, bits: int, group_size: int, has_offsets: bool, dtype: torch.dtype) -> bool:
        """Whether ``prepare_quantized`` keeps such a weight as it is; where not, it keeps the dequantised weight."""
        ...

    def prepare_quantized(self, weight: QuantizedWeight, dtype: torch.dtype) -> QuantizedProduct:
        """Repack a weight for products with inputs of ``dtype``, once, when it is loaded.

        The result lives on the weight's device and keeps none of its tensors unless it uses them as they are; the
        caller drops the weight, so memory peaks at one of them. Raises ValueError for one that this set cannot take.
        """
        ...

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """``silu(gate) * up`` (arXiv 2002.05202). gate_up [T, 2 * I], gate first -> [T, I]."""
        ...

    def rotary_kv_write(
        self,
        qkv: torch.Tensor,
        cos_sin: torch.Tensor,
        kv_pages: torch.Tensor,
        batch: AttentionBatch,
        num_heads: int,
        num_kv_heads: int,
        norm: QkNorm | None = None,
    ) -> torch.Tensor:
        """Rotate queries and keys (arXiv 2104.09864, half-split pairs) and write keys and values to their slots.

        qkv [T, (num_heads + 2 * num_kv_heads) * head_dim], heads in the order q, k, v; cos_sin float32
        [max_positions, head_dim] (first half cosines, second half sines); kv_pages as above, written in place. With
        ``norm``, queries and keys are normed first and rotated as they come out of the norm, in float32 or rounded.
        Returns the rotated queries [T, num_heads, head_dim]; qkv may be overwritten.
        """
        ...

    def paged_attention(
        self, q: torch.Tensor, kv_pages: torch.Tensor, batch: AttentionBatch, scale: float
    ) -> torch.Tensor:
        """Causal attention of packed queries over paged keys and values (arXiv 2309.06180).

        q [T, num_heads, head_dim] -> [T, num_heads, head_dim], contiguous. Never reads a page outside a sequence's
        table nor a slot at or past its kv_len (that memory may hold NaN). A sequence with kv_len 0 is padding: its
        queries' outputs are zero. Outputs of rows past the last sequence's are unspecified.
        """
        ...

    def sample(self, logits: torch.Tensor, batch: SamplingBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """One token a row: argmax of ``logits / temperature + Gumbel noise`` over the tokens that truncation keeps.

        logits [R, V] (only real vocabulary columns) -> (token ids int32 [R], status uint8 [R]: 0 fine, 1 the row
        holds NaN and its token id is meaningless, though a valid id). Truncation in order: min_p, top_k, top_p, each
        on the distribution after temperature and the steps before it (``truncation.py`` defines them exactly); ties
        at a border are all kept; at least one token is kept. Ties in the argmax go to the lowest id. Noise: word ``id
        % 4`` of Philox4x32-10 (Salmon et al. 2011, SC11) with counter ``(id // 4, output position, output index, 0)``
        and key ``(seed low, seed high)``; ``u = (word // 512 + 0.5) * 2**-23`` (exact in float32 and never 1, which
        would make the noise infinite), Gumbel ``-log(-log(u))`` in float32.
        """
        ...

    def forbid(self, logits: torch.Tensor, places: torch.Tensor, words: torch.Tensor) -> None:
        """Add -inf to logits of the tokens that masks rule out, in place; what is NaN stays so.

        logits float32 [F, V], contiguous; places int64 [G]: the rows that have a mask, each once; words int32
        [G, ceil(V / 32)]: token t may be sampled if bit t % 32 of word t // 32 is set.
        """
        ...

    def settle(
        self,
        logits: torch.Tensor,
        token_ids: torch.Tensor,
        statuses: torch.Tensor,
        faults: torch.Tensor,
        places: torch.Tensor,
        packed: torch.Tensor,
    ) -> None:
        """Write what ``sample`` gave for these logits to the rows' places in ``packed`` int32 [2, R], contiguous: token
        ids, then statuses. Where no token was left (all logits are -inf) the status is the row's fault; where the
        status is not 0 the token id is.

        logits float32 [F, V], contiguous; token_ids int32 [F]; statuses uint8 [F]; faults int32 [F]; places int64 [F].
        """
        ...
