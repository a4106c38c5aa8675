"""What rows with options do to their logits before a token is chosen, for all such rows of a step at once.

In this order, in float32 (``pagewire_kernels.reference.adjusted_logits`` defines it): penalties; biases, and -inf for
tokens that are not allowed; -inf for tokens that the row's grammar rules out, that would complete a bad word, and for
stop tokens before ``min_tokens`` (unless a grammar allows nothing else). Temperature and truncation follow as for any
row.

A row with such options has a *slot*: counts of its output tokens, marks of its prompt's tokens, one bias a token, and
its newest output tokens. They are built from the row's ids when it begins, so a resumed or reused row starts right, and
brought up to date on the device by what was sampled: the host need not know a token for the next step to count it.
Grammars alone must know it, see matchers.py.

Invariants: a row has a slot exactly if its options change logits; slots are initialised before a step reads them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from pagewire_kernels import KernelSet
from pagewire_kernels.penalties import penalize

from gpu_worker.batch_plan import BatchPlan, Floats, Int32s, Int64s, RowIds, RowOptions
from gpu_worker.matchers import Matchers
from gpu_worker.pinned_memory import upload_together
from gpu_worker.request_rows import MAX_WORD_TOKENS, RequestRows
from gpu_worker.ruled_rows import RuledRows, ruled_rows
from gpu_worker.token_masks import Words, token_bits

_ANY, _NOTHING = -2, -1
"""In a bad word's beginning: any token; in a row's newest tokens: none yet."""


class LogitRules:
    """Slots of the rows that have options."""

    def __init__(self, rows: RequestRows, kernels: KernelSet, device: torch.device, matchers: Matchers) -> None:
        self._rows = rows
        self._kernels = kernels
        self._device = device
        self.matchers = matchers
        self._slots = np.full(rows.limits.max_num_seqs, -1, dtype=np.int64)
        """By row; -1: none."""
        self._words: dict[int, _LongWords] = {}
        """By row, of those that have any."""
        self._free: list[int] = []
        self._state = _SlotState(0, rows.limits.vocab_size, device)

    def reset(self) -> None:
        """All rows are gone."""
        self._slots[:] = -1
        self._words.clear()
        self.matchers.reset()
        self._free = list(range(self._state.num_slots))

    def follow(self, plan: BatchPlan) -> None:
        """Slots for the rows that a plan, which the rows have applied, releases and begins."""
        for row in plan.releases.tolist():
            if self._slots[row] >= 0:
                self._free.append(int(self._slots[row]))
                self._slots[row] = -1
                self._words.pop(row, None)
                self.matchers.release(row)
        for position, options in plan.new_rows.options.items():
            if options.changes_logits:
                self._begin(int(plan.new_rows.rows[position]), options)

    def places(self, sampled_rows: RowIds) -> Int64s:
        """Which of the rows that sample have a slot."""
        return np.flatnonzero(self._slots[sampled_rows] >= 0)

    def upload_rows(self, places: Int64s, rows: RowIds, faults: Int32s) -> RuledRows:
        """What the device must know of rows with slots: their places among the rows that sample, and the statuses of
        those that no token is left to."""
        return ruled_rows(self._rows, places, rows, self._slots[rows], faults, self._device)

    def apply(self, logits: torch.Tensor, rows: RowIds, slots: torch.Tensor) -> torch.Tensor:
        """The adjusted float32 logits [F, V] of rows with slots, from their logits [F, V], which may be overwritten.
        Waits for nothing but the tokens that rows with a grammar sampled before."""
        state = self._state
        options = [self._rows.options[row] for row in rows.tolist()]
        adjusted = logits.float()
        if any(each.penalises for each in options):
            counts, in_prompt = state.counts.index_select(0, slots), state.in_prompt.index_select(0, slots)
            adjusted = penalize(adjusted, counts, in_prompt, state.penalties.index_select(0, slots))
        if any(each.biases_tokens for each in options):
            adjusted += state.biases.index_select(0, slots)
        masks = self._keep_to_grammars(adjusted, rows)
        self._forbid_stops(adjusted, rows, masks)
        self._forbid_words(adjusted, rows)
        return adjusted

    def count(self, token_ids: torch.Tensor, rows: RowIds, ruled: RuledRows) -> None:
        """Of these tokens, int32 [R], those at the rows' places are theirs. Only rows with penalties are ever asked how
        many there were, and only those with long bad words what came last."""
        penalises = any(self._rows.options[row].penalises for row in rows.tolist())
        has_words = any(row in self._words for row in rows.tolist())
        if not penalises and not has_words:
            return
        token_ids, slots, state = token_ids.index_select(0, ruled.places), ruled.slots, self._state
        if penalises:
            places = slots * state.vocab_size + token_ids
            state.counts.view(-1).scatter_add_(0, places, torch.ones_like(token_ids))
        if has_words:
            newest = torch.cat((state.newest.index_select(0, slots)[:, 1:], token_ids[:, None]), dim=1)
            state.newest.index_copy_(0, slots, newest)

    def _begin(self, row: int, options: RowOptions) -> None:
        if not self._free:
            num_slots = min(max(1, 2 * self._state.num_slots), self._rows.limits.max_num_seqs)
            grown = _SlotState(num_slots, self._rows.limits.vocab_size, self._device)
            grown.take_over(self._state)
            self._free = list(range(self._state.num_slots, num_slots))
            self._state = grown
        slot = self._free[-1]
        known, num_prompt = self._rows.known_ids[row], int(self._rows.num_prompt_tokens[row])
        prompt, output = known[:num_prompt], known[num_prompt:]
        state, size = self._state, self._state.vocab_size
        in_prompt = np.zeros(size, dtype=bool)
        in_prompt[prompt] = True
        state.in_prompt[slot].copy_(self.upload(in_prompt), non_blocking=True)
        state.counts[slot].copy_(self.upload(np.bincount(output, minlength=size)), non_blocking=True)
        state.biases[slot].copy_(self.upload(_biases(options, size)), non_blocking=True)
        penalties = (options.repetition_penalty, options.frequency_penalty, options.presence_penalty)
        state.penalties[slot].copy_(self.upload(np.array(penalties, dtype=np.float32)), non_blocking=True)
        newest = np.full(MAX_WORD_TOKENS - 1, _NOTHING, dtype=np.int32)
        ending = output[-len(newest) :]
        newest[len(newest) - len(ending) :] = ending
        state.newest[slot].copy_(self.upload(newest), non_blocking=True)
        self._slots[row] = self._free.pop()
        words = [word for word in options.bad_words if len(word) > 1]
        if words:
            self._words[row] = _long_words(words)
        if options.grammar:
            self.matchers.begin(row, options.grammar, output)

    def _keep_to_grammars(self, logits: torch.Tensor, rows: RowIds) -> dict[int, Words]:
        """What the grammars of the rows rule out; their masks by place."""
        places = [place for place, row in enumerate(rows.tolist()) if row in self.matchers]
        if not places:
            return {}
        masks = self.matchers.masks(rows[places].tolist())
        columns = np.array(places, dtype=np.int64), np.stack(masks)
        self._kernels.forbid(logits, *upload_together(columns, self._device))
        return dict(zip(places, masks, strict=True))

    def _forbid_stops(self, logits: torch.Tensor, rows: RowIds, masks: Mapping[int, Words]) -> None:
        """Stop tokens of rows that have fewer than ``min_tokens`` output tokens, if their grammar can go on without."""
        places: list[Int64s] = []
        for place, row in enumerate(rows.tolist()):
            options = self._rows.options[row]
            # The rows count the token that is about to be sampled already.
            num_output = int(self._rows.num_tokens[row] - self._rows.num_prompt_tokens[row]) - 1
            if num_output >= options.min_tokens:
                continue
            stops = options.stop_token_ids
            if place not in masks or (masks[place] & ~token_bits(stops, logits.shape[1])).any():
                places.append(stops + np.int64(place * logits.shape[1]))
        if places:
            logits.view(-1).index_fill_(0, self.upload(np.concatenate(places)), float("-inf"))

    def _forbid_words(self, logits: torch.Tensor, rows: RowIds) -> None:
        """The last tokens of bad words whose beginnings the rows' newest tokens are."""
        found = [(place, self._words[row]) for place, row in enumerate(rows.tolist()) if row in self._words]
        if not found:
            return
        places = np.repeat([place for place, _ in found], [len(words.lasts) for _, words in found])
        length = max(words.length for _, words in found)
        wanted = self.upload(np.concatenate([words.beginnings[:, -length:] for _, words in found]))
        newest = self._state.newest.index_select(0, self.upload(self._slots[rows[places]]))[:, -length:]
        is_near = ((newest == wanted) | (wanted == _ANY)).all(dim=1)
        limits = torch.where(is_near, float("-inf"), float("inf"))
        lasts = np.concatenate([words.lasts for _, words in found])
        flat = self.upload(places * np.int64(logits.shape[1]) + lasts)
        logits.view(-1).scatter_reduce_(0, flat, limits, "amin")

    def upload(self, column: npt.NDArray[np.generic]) -> torch.Tensor:
        """On the device, without waiting for it."""
        tensor = torch.from_numpy(column)
        return tensor if self._device.type == "cpu" else tensor.pin_memory().to(self._device, non_blocking=True)


@dataclass(frozen=True, slots=True)
class _LongWords:
    """A row's bad words of several tokens."""

    beginnings: Int32s
    """int32 [words, MAX_WORD_TOKENS - 1]: all but the last token, the last one last."""
    lasts: Int64s
    """int64 [words]."""
    length: int
    """Tokens of the longest beginning."""


def _long_words(words: Sequence[tuple[int, ...]]) -> _LongWords:
    beginnings = np.full((len(words), MAX_WORD_TOKENS - 1), _ANY, dtype=np.int32)
    for beginning, word in zip(beginnings, words, strict=True):
        beginning[len(beginning) - len(word) + 1 :] = word[:-1]
    return _LongWords(
        beginnings, np.array([word[-1] for word in words], dtype=np.int64), max(len(word) for word in words) - 1
    )


class _SlotState:
    """What all slots hold, on the device."""

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        self.num_slots = num_slots
        self.vocab_size = vocab_size
        size = (num_slots, vocab_size)
        self.counts = torch.zeros(size, dtype=torch.int32, device=device)
        self.in_prompt = torch.zeros(size, dtype=torch.bool, device=device)
        self.biases = torch.zeros(size, dtype=torch.float32, device=device)
        self.penalties = torch.zeros(num_slots, 3, dtype=torch.float32, device=device)
        """Repetition, frequency, presence."""
        self.newest = torch.zeros(num_slots, MAX_WORD_TOKENS - 1, dtype=torch.int32, device=device)
        """Newest output tokens, the last one last."""

    def take_over(self, other: "_SlotState") -> None:
        """The slots of a smaller state become the first ones."""
        for name in ("counts", "in_prompt", "biases", "penalties", "newest"):
            getattr(self, name)[: other.num_slots].copy_(getattr(other, name))


def _biases(options: RowOptions, vocab_size: int) -> Floats:
    """One bias a token: those asked for, and -inf for what may never be chosen."""
    biases = np.zeros(vocab_size, dtype=np.float32)
    if len(options.allowed_token_ids):
        biases[:] = -np.inf
        biases[options.allowed_token_ids] = 0.0
    np.add.at(biases, options.bias_token_ids, options.biases)
    biases[[word[0] for word in options.bad_words if len(word) == 1]] = -np.inf
    return biases
