"""Values between the wire and the rows: a decoded batch plan, and what a step gave back.

Columns are numpy arrays over the message's own bytes, read-only. The meaning is that of worker.proto.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]
RowIds = npt.NDArray[np.integer[Any]]
"""intp where arrays are indexed with them: of any other type numpy makes an iterator first, which takes ten times as
long as to read a few rows."""
Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


def int32s(values: Sequence[int] = ()) -> Int32s:
    """An int32 column."""
    return np.array(values, dtype=np.int32)


def empty_column() -> Int32s:
    return np.empty(0, dtype=np.int32)


def empty_floats() -> Floats:
    return np.empty(0, dtype=np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOptions:
    """Sampling options that few rows have; neutral unless given."""

    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    bias_token_ids: Int32s = field(default_factory=empty_column)
    biases: Floats = field(default_factory=empty_floats)
    allowed_token_ids: Int32s = field(default_factory=empty_column)
    """Empty: all are."""
    bad_words: Sequence[tuple[int, ...]] = ()
    min_tokens: int = 0
    stop_token_ids: Int32s = field(default_factory=empty_column)
    """Not to be chosen before ``min_tokens``."""
    logprobs: int | None = None
    """Likeliest tokens to report at each output position."""
    prompt_logprobs: int | None = None
    grammar: str = ""
    """What form the output must have; empty: any."""

    @property
    def changes_logits(self) -> bool:
        """Whether any of them may change which token is chosen."""
        stops_late = self.min_tokens and len(self.stop_token_ids)
        return bool(self.penalises or self.biases_tokens or self.bad_words or stops_late or self.grammar)

    @property
    def penalises(self) -> bool:
        """Whether tokens that were there before are less or more likely."""
        return bool(self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1.0)

    @property
    def biases_tokens(self) -> bool:
        """Whether some tokens are always less or more likely."""
        return bool(len(self.bias_token_ids) or len(self.allowed_token_ids) or self.bad_words)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRows:
    """Rows that begin: one entry a row in every column; ``token_ids`` holds all rows' ids one after the other."""

    rows: RowIds = field(default_factory=empty_column)
    num_prompt_tokens: Int32s = field(default_factory=empty_column)
    num_token_ids: Int32s = field(default_factory=empty_column)
    token_ids: Int32s = field(default_factory=empty_column)
    num_cached_tokens: Int32s = field(default_factory=empty_column)
    output_indices: Int32s = field(default_factory=empty_column)
    seeds: npt.NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    temperatures: Floats = field(default_factory=empty_floats)
    top_ps: Floats = field(default_factory=empty_floats)
    top_ks: Int32s = field(default_factory=empty_column)
    min_ps: Floats = field(default_factory=empty_floats)
    options: Mapping[int, RowOptions] = field(default_factory=dict)
    """By position in the columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageNames:
    """Names given and taken away that no plan told; columns as in BatchPlan."""

    epoch: int
    published_pages: Int32s
    published_hashes: bytes
    published_parents: Int32s
    parent_hashes: bytes
    evicted_pages: Int32s


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """One step of work as changes to the rows."""

    step_id: int = 0
    epoch: int = 0
    releases: RowIds = field(default_factory=empty_column)
    new_rows: NewRows = field(default_factory=NewRows)
    append_rows: RowIds = field(default_factory=empty_column)
    append_pages: Int32s = field(default_factory=empty_column)
    copy_sources: Int32s = field(default_factory=empty_column)
    copy_destinations: Int32s = field(default_factory=empty_column)
    chunk_rows: RowIds = field(default_factory=empty_column)
    chunk_tokens: Int32s = field(default_factory=empty_column)
    idle_rows: RowIds = field(default_factory=empty_column)
    published_pages: Int32s = field(default_factory=empty_column)
    published_hashes: bytes = b""
    published_parents: Int32s = field(default_factory=empty_column)
    parent_hashes: bytes = b""
    evicted_pages: Int32s = field(default_factory=empty_column)
    group_ids: Int32s = field(default_factory=empty_column)
    group_pages: Int32s = field(default_factory=empty_column)
    group_sizes: Int32s = field(default_factory=empty_column)
    group_rows: RowIds = field(default_factory=empty_column)
    num_scheduled_rows: int = 0
    num_scheduled_tokens: int = 0
    frame: bytes = b""
    """What it was decoded from, for the other ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLogprobs:
    """Log probabilities of consecutive positions of one row: columns of ``width`` entries a position."""

    row: int
    width: int
    first_position: int
    num_prompt_positions: int
    """0: of one output token."""
    token_ids: Int32s
    logprobs: Floats
    ranks: Int32s


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step gave: columns of one entry a row that sampled."""

    step_id: int
    epoch: int
    rows: RowIds = field(default_factory=empty_column)
    token_ids: Int32s = field(default_factory=empty_column)
    statuses: bytes = b""
    step_us: int = 0
    failure: str | None = None
    refusal: str | None = None
    logprobs: Sequence[RowLogprobs] = ()
