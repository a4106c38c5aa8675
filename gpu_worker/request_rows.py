"""The rows a worker keeps: one a running request.

Counts, page tables, sampling parameters and known token ids are on the host, where every step's shape follows from them
without asking the device: a row's counts advance by what a plan schedules, whatever the tokens turn out to be. On the
device are the page tables (a mirror) and each row's last sampled token, which the next step reads there.

``advance`` checks a plan and applies it in one pass. If it raises PlanRefusedError the rows are half changed and must
be dropped with ``reset``, which the protocol asks for anyway.

Invariants: ``num_computed <= num_tokens``; a decoding row has ``num_computed == num_tokens - 1``; a row's first
``num_pages`` table entries are distinct pages in range and hold at least ``num_computed`` tokens; a step writes no page
for two rows.
"""

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu_worker.batch_plan import BatchPlan, Floats, Int32s, NewRows, RowIds, RowOptions, int32s
from gpu_worker.errors import PlanRefusedError
from gpu_worker.shared_groups import SharedGroups, SharedWork

MAX_WORD_TOKENS = 64
"""Of a bad word."""
MAX_LOGPROBS = 20
"""Likeliest tokens a row may ask for at each position."""


_FEW_IDS, _VERY_FEW = 1024, 32
"""So many ids a set tells apart in less time than an array, and so many numbers a loop judges."""
_LEAST, _MOST = float(np.finfo(np.float32).smallest_subnormal), float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLimits:
    """Bounds every plan keeps."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    page_size: int
    num_pages: int
    vocab_size: int

    @property
    def max_pages(self) -> int:
        """Pages of the longest request."""
        return -(-self.max_model_len // self.page_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What one plan makes the worker compute; counts in RequestRows already include it."""

    decode_rows: RowIds
    """Ascending."""
    chunk_rows: RowIds
    chunk_tokens: Int32s
    sampling_chunks: RowIds
    """Positions in ``chunk_rows`` that reach their row's last known token."""
    sampled_rows: RowIds
    """Rows that sample, in the order of the result's columns: those of chunks, then those that decode."""
    append_rows: RowIds
    append_columns: RowIds
    append_pages: Int32s
    copy_sources: Int32s
    copy_destinations: Int32s
    shared: SharedWork | None = None
    """Who of the decoding rows shares leading pages, where that saves enough."""
    number: int = 0
    """Counts the steps."""
    continues: bool = False
    """The step before computed the same decoding rows and nothing else either."""


class RequestRows:
    """Rows on the host."""

    def __init__(self, limits: RowLimits) -> None:
        self.limits = limits
        size = limits.max_num_seqs
        self.active = np.zeros(size, dtype=bool)
        self.decoding = np.zeros(size, dtype=bool)
        self.num_prompt_tokens = np.zeros(size, dtype=np.int32)
        self.num_tokens = np.zeros(size, dtype=np.int32)
        """Token ids the row has, the one being sampled included."""
        self.num_computed = np.zeros(size, dtype=np.int32)
        self.num_pages = np.zeros(size, dtype=np.int32)
        self.page_tables = np.zeros((size + 1, limits.max_pages), dtype=np.int32)
        """The table past the last row's is that of rows that pad a step."""
        self.groups = SharedGroups(size, limits.page_size)
        self._num_steps = 0
        self._last_decodes: StepWork | None = None
        """The step before, if it decoded all rows that decode now and did nothing else."""
        self.known_ids: list[Int32s] = [np.empty(0, dtype=np.int32)] * size
        """Ids a row began with; what it sampled since stays on the device."""
        self.temperature = np.zeros(size, dtype=np.float32)
        self.top_p = np.ones(size, dtype=np.float32)
        self.top_k = np.zeros(size, dtype=np.int32)
        self.min_p = np.zeros(size, dtype=np.float32)
        self.seeds = np.zeros(size, dtype=np.int64)
        self.output_index = np.zeros(size, dtype=np.int32)
        self.options: dict[int, RowOptions] = {}
        """Of the rows that have any."""

    def reset(self) -> None:
        """Drop all rows."""
        self._release(np.arange(self.limits.max_num_seqs))

    def advance(self, plan: BatchPlan) -> StepWork:
        """Check a plan, apply it, and say what it computes. Raises PlanRefusedError; then the rows must be reset."""
        if len(plan.releases):
            _check_ids("releases", plan.releases, self.limits.max_num_seqs)
            if not _all(self.active[plan.releases]):
                raise PlanRefusedError("releases: a row that is not active")
            self._release(plan.releases)
        if len(plan.new_rows.rows):
            self._begin(plan.new_rows)
        columns = self._append(plan)
        if len(plan.new_rows.rows):
            self._check_cached(plan.new_rows.rows)
        self._check_copies(plan)
        self._check_bookkeeping(plan)
        if len(plan.group_ids):
            self._last_decodes = None
            self.groups.apply(plan, self.active, self.num_computed, self.page_tables)
        self._num_steps += 1
        if self._last_decodes is not None and not len(plan.chunk_rows) and not len(plan.idle_rows):
            work = self._continue(plan, columns, self._last_decodes)
        else:
            work = self._schedule(plan, columns)
        only_decodes = len(work.decode_rows) and not len(work.chunk_rows) and not len(plan.idle_rows)
        self._last_decodes = work if only_decodes else None
        return work

    def _release(self, rows: RowIds) -> None:
        self._last_decodes = None
        self.active[rows] = False
        self.decoding[rows] = False
        self.num_pages[rows] = 0
        self.groups.release(rows)
        for row in rows.tolist():
            self.known_ids[row] = np.empty(0, dtype=np.int32)
            self.options.pop(row, None)

    def _begin(self, new: NewRows) -> None:
        _check_new_rows(new, self.limits)
        if _any(self.active[new.rows]):
            raise PlanRefusedError("new_rows: a row that is active")
        rows = new.rows
        self.active[rows] = True
        self.num_prompt_tokens[rows] = new.num_prompt_tokens
        self.num_tokens[rows] = new.num_token_ids
        self.num_computed[rows] = new.num_cached_tokens
        self.temperature[rows] = new.temperatures
        self.top_p[rows] = new.top_ps
        self.top_k[rows] = new.top_ks
        self.min_p[rows] = new.min_ps
        self.seeds[rows] = new.seeds.view(np.int64)
        self.output_index[rows] = new.output_indices
        counts = new.num_token_ids.tolist()
        for row, end, count in zip(rows.tolist(), accumulate(counts), counts, strict=True):
            self.known_ids[row] = new.token_ids[end - count : end]
        for position, options in new.options.items():
            self.options[int(rows[position])] = options

    def _append(self, plan: BatchPlan) -> RowIds:
        """Extend page tables; returns the table column of each appended page."""
        rows, pages = plan.append_rows, plan.append_pages
        if not len(rows):
            return rows
        _check_range("append_rows", rows, self.limits.max_num_seqs)
        _check_range("append_pages", pages, self.limits.num_pages)
        if not _all(self.active[rows]):
            raise PlanRefusedError("append_rows: a row that is not active")
        held = self.num_pages[rows]
        columns = held + _rank_in_group(rows)
        if _any(columns >= self.limits.max_pages):
            raise PlanRefusedError(f"append_rows: more than {self.limits.max_pages} pages in a row")
        pairs = rows.astype(np.int64) * self.limits.num_pages + pages
        if (_any(held) and self._holds_any(rows, pages)) or _names_twice(pairs):
            raise PlanRefusedError("append_pages: a page twice in one row's table")
        self.page_tables[rows, columns] = pages
        self.num_pages[rows] = columns + 1  # of several entries of a row the last one stays
        return columns

    def _holds_any(self, rows: RowIds, pages: Int32s) -> bool:
        """Whether a row's table has the page already. New rows have none, and may get thousands at once."""
        has_some = self.num_pages[rows] > 0
        rows, pages = rows[has_some], pages[has_some]
        num_pages = self.num_pages[rows]
        held = np.arange(int(num_pages.max())) < num_pages[:, None]
        return bool(((self.page_tables[rows, : held.shape[1]] == pages[:, None]) & held).any())

    def _check_cached(self, rows: RowIds) -> None:
        if _any(self.num_pages[rows] * self.limits.page_size < self.num_computed[rows]):
            raise PlanRefusedError("new_rows: more cached tokens than the row's pages hold")

    def _check_copies(self, plan: BatchPlan) -> None:
        if not len(plan.copy_sources):
            return
        _check_range("copy_sources", plan.copy_sources, self.limits.num_pages)
        _check_ids("copy_destinations", plan.copy_destinations, self.limits.num_pages)
        if np.isin(plan.copy_sources, plan.copy_destinations).any():
            raise PlanRefusedError("copy_sources: a page that is also a destination")

    def _check_bookkeeping(self, plan: BatchPlan) -> None:
        if len(plan.published_pages):
            _check_ids("published_pages", plan.published_pages, self.limits.num_pages)
            if not _all_within(plan.published_parents, -1, self.limits.num_pages - 1):
                raise PlanRefusedError("published_parents: an id that is neither -1 nor a page's")
        if len(plan.evicted_pages):
            _check_ids("evicted_pages", plan.evicted_pages, self.limits.num_pages)

    def _schedule(self, plan: BatchPlan, append_columns: RowIds) -> StepWork:
        chunk_rows, chunk_tokens = plan.chunk_rows, plan.chunk_tokens
        runs = self.decoding
        if len(plan.idle_rows):
            _check_ids("idle_rows", plan.idle_rows, self.limits.max_num_seqs)
            if not self.decoding[plan.idle_rows].all():
                raise PlanRefusedError("idle_rows: a row that is not decoding")
            runs = runs.copy()
            runs[plan.idle_rows] = False
        (decode_rows,) = runs.nonzero()
        if len(chunk_rows):
            self._check_chunks(chunk_rows, chunk_tokens)
        num_tokens = len(decode_rows) + sum(chunk_tokens.tolist())
        self._check_totals(plan, len(decode_rows) + len(chunk_rows), num_tokens)
        self._check_pages_and_writes(decode_rows, chunk_rows, chunk_tokens)
        self.num_computed[decode_rows] += 1
        self.num_tokens[decode_rows] += 1
        self.num_computed[chunk_rows] += chunk_tokens
        covered = self.num_computed[chunk_rows] == self.num_tokens[chunk_rows]
        (sampling_chunks,) = covered.nonzero()
        begun_rows = chunk_rows[sampling_chunks]
        self.num_tokens[begun_rows] += 1
        self.decoding[begun_rows] = True
        return StepWork(
            decode_rows=decode_rows,
            chunk_rows=chunk_rows,
            chunk_tokens=chunk_tokens,
            sampling_chunks=sampling_chunks,
            sampled_rows=np.concatenate((begun_rows, decode_rows)),
            append_rows=plan.append_rows,
            append_columns=append_columns,
            append_pages=plan.append_pages,
            copy_sources=plan.copy_sources,
            copy_destinations=plan.copy_destinations,
            shared=self.groups.of_step(decode_rows) if len(decode_rows) else None,
            number=self._num_steps,
        )

    def _continue(self, plan: BatchPlan, append_columns: RowIds, before: StepWork) -> StepWork:
        """As ``_schedule`` where the rows of the step before decode on: what cannot have changed is not looked at."""
        rows, page_size = before.decode_rows, self.limits.page_size
        self._check_totals(plan, len(rows), len(rows))
        starts = self.num_computed[rows]
        if _any(starts >= self.limits.max_model_len):
            raise PlanRefusedError(f"a row would pass {self.limits.max_model_len} tokens")
        if _any(self.num_pages[rows] * page_size <= starts):
            raise PlanRefusedError("a row has too few pages for the tokens it computes")
        if _any(starts % page_size == 0):
            written = self.page_tables[rows, starts // page_size]
            if _names_twice(written):
                raise PlanRefusedError("two rows would write one page")
        self.num_computed[rows] = starts + 1
        self.num_tokens[rows] += 1
        return StepWork(
            decode_rows=rows,
            chunk_rows=before.chunk_rows,
            chunk_tokens=before.chunk_tokens,
            sampling_chunks=before.sampling_chunks,
            sampled_rows=before.sampled_rows,
            append_rows=plan.append_rows,
            append_columns=append_columns,
            append_pages=plan.append_pages,
            copy_sources=plan.copy_sources,
            copy_destinations=plan.copy_destinations,
            shared=before.shared,
            number=self._num_steps,
            continues=True,
        )

    def _check_chunks(self, rows: RowIds, tokens: Int32s) -> None:
        _check_ids("chunk_rows", rows, self.limits.max_num_seqs)
        if not _all(self.active[rows]) or _any(self.decoding[rows]):
            raise PlanRefusedError("chunk_rows: a row that is not active or is decoding")
        if _any(tokens < 1):
            raise PlanRefusedError("chunk_tokens: less than one token")
        if _any(tokens > self.num_tokens[rows] - self.num_computed[rows]):
            raise PlanRefusedError("chunk_tokens: more tokens than the row knows")

    def _check_totals(self, plan: BatchPlan, num_rows: int, num_tokens: int) -> None:
        if num_rows != plan.num_scheduled_rows or num_tokens != plan.num_scheduled_tokens:
            raise PlanRefusedError(
                f"the plan schedules {num_rows} rows and {num_tokens} tokens but says "
                f"{plan.num_scheduled_rows} and {plan.num_scheduled_tokens}"
            )
        if num_tokens > self.limits.max_num_batched_tokens:
            raise PlanRefusedError(
                f"{num_tokens} tokens in a step; at most {self.limits.max_num_batched_tokens} are agreed"
            )

    def _check_pages_and_writes(self, decode_rows: RowIds, chunk_rows: RowIds, chunk_tokens: Int32s) -> None:
        rows = np.concatenate((decode_rows, chunk_rows))
        if not len(rows):
            return
        starts = self.num_computed[rows]
        ends = starts.copy()
        ends[: len(decode_rows)] += 1
        ends[len(decode_rows) :] += chunk_tokens
        if _any(ends > self.limits.max_model_len):
            raise PlanRefusedError(f"a row would pass {self.limits.max_model_len} tokens")
        page_size = self.limits.page_size
        if _any(self.num_pages[rows] * page_size < ends):
            raise PlanRefusedError("a row has too few pages for the tokens it computes")
        if len(rows) == 1:
            return  # the pages of one row are distinct
        firsts = starts // page_size
        counts = (ends - 1) // page_size - firsts + 1
        columns = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts - firsts, counts)
        written = self.page_tables[np.repeat(rows, counts), columns]
        if _names_twice(written):
            raise PlanRefusedError("two rows would write one page")


def _check_new_rows(new: NewRows, limits: RowLimits) -> None:
    _check_ids("new_rows", new.rows, limits.max_num_seqs)
    _check_range("token_ids", new.token_ids, limits.vocab_size)
    if not _all_within(new.num_token_ids, 0, limits.max_model_len):
        raise PlanRefusedError(f"new_rows: more than {limits.max_model_len} tokens")
    if not _all_within(new.num_prompt_tokens, 1, _MOST) or _any(new.num_prompt_tokens > new.num_token_ids):
        raise PlanRefusedError("new_rows: num_prompt_tokens does not fit num_token_ids")
    if not _all_within(new.num_cached_tokens, 0, _MOST) or _any(new.num_cached_tokens >= new.num_token_ids):
        raise PlanRefusedError("new_rows: at least one token must be left to compute")
    if not (_all_within(new.output_indices, 0, _MOST) and _all_within(new.top_ks, 0, _MOST)):
        raise PlanRefusedError("new_rows: a negative output index or top_k")
    if not _all_within(new.temperatures, 0, _MOST):
        raise PlanRefusedError("new_rows: a temperature that is negative or not finite")
    if not (_all_within(new.top_ps, _LEAST, 1) and _all_within(new.min_ps, 0, 1)):
        raise PlanRefusedError("new_rows: top_p or min_p out of range")
    for position, options in new.options.items():
        if position >= len(new.rows):
            raise PlanRefusedError("options: a position that is no row's")
        _check_options(options, limits.vocab_size)


def _check_options(options: RowOptions, vocab_size: int) -> None:
    numbers = (options.frequency_penalty, options.presence_penalty, options.repetition_penalty)
    if not (np.isfinite(numbers).all() and np.isfinite(options.biases).all() and options.repetition_penalty > 0):
        raise PlanRefusedError("options: a penalty or bias that is out of range or not finite")
    if any(len(word) > MAX_WORD_TOKENS for word in options.bad_words):
        raise PlanRefusedError(f"bad_words: a word of more than {MAX_WORD_TOKENS} tokens")
    if max(options.logprobs or 0, options.prompt_logprobs or 0) > MAX_LOGPROBS:
        raise PlanRefusedError(f"options: log probabilities of more than {MAX_LOGPROBS} tokens")
    words = int32s([token_id for word in options.bad_words for token_id in word])
    for ids in (options.bias_token_ids, options.allowed_token_ids, options.stop_token_ids, words):
        if len(ids):
            _check_range("options", ids, vocab_size)


def _check_range(name: str, ids: RowIds, size: int) -> None:
    if not _all_within(ids, 0, size - 1):
        raise PlanRefusedError(f"{name}: an id outside 0..{size - 1}")


def _all_within(values: RowIds | Floats, least: float, most: float) -> bool:
    """Whether each lies in [least, most]; what is no number lies nowhere."""
    if len(values) < _VERY_FEW:
        return all(least <= value <= most for value in values.tolist())
    return _all((values >= least) & (values <= most))


def _any(found: npt.NDArray[Any]) -> bool:
    """As its method, which calls a function in Python that takes several times as long for a few."""
    return int(np.count_nonzero(found)) > 0


def _all(found: npt.NDArray[Any]) -> bool:
    return int(np.count_nonzero(found)) == len(found)


def _check_ids(name: str, ids: RowIds, size: int) -> None:
    _check_range(name, ids, size)
    if _names_twice(ids):
        raise PlanRefusedError(f"{name}: an id twice")


def _names_twice(ids: RowIds) -> bool:
    """Whether an id comes twice; of a few, a set tells it in a tenth of the time that sorting takes.

    Not np.unique: its first call imports numpy.ma, for which a step would wait 50 ms.
    """
    if len(ids) < _FEW_IDS:
        return len(set(ids.tolist())) != len(ids)
    ordered = np.sort(ids)
    return bool((ordered[1:] == ordered[:-1]).any())


def _rank_in_group(rows: RowIds) -> RowIds:
    """For each entry how many earlier entries name the same row."""
    if _all(rows == rows[0]):
        return np.arange(len(rows))
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    first = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    starts = np.flatnonzero(first)
    ranks = np.empty(len(rows), dtype=np.intp)
    ranks[order] = np.arange(len(rows)) - starts[np.cumsum(first) - 1]
    return ranks
