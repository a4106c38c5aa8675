"""Matchers of the rows whose output has a form: which tokens may come next.

A matcher takes each token that its row samples and makes the mask of those that may follow, both when the next step of
the row asks for its mask: on a GPU its forward is queued then, so token n is waited for and taken, and the mask for n+1
made, while forward n+1 runs. A new row's grammar is compiled by a thread of its own, so that rows which run need not
wait for it. A row that goes on after a preemption has its output taken first.

A matcher that fails (its grammar is not usable or passes a limit, or its row sampled what it rules out) allows nothing
any more, so that its row alone fails.

Invariant: one thread at a time uses a matcher: the compiling one until the row is ready, then the one that asks.
"""

import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from gpu_worker.batch_plan import Int32s, RowIds
from gpu_worker.token_masks import Words, num_words

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from gpu_worker.grammar_vocabulary import GrammarVocabulary

ReadTokens = Callable[[], tuple[Int32s, Int32s]]
"""Waits for a step; token ids and statuses of the rows that sampled."""


class _Thread:
    """Runs tasks in order; started by the first. Unlike an executor's it ends with the process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: queue.SimpleQueue[tuple[Future[None], Callable[[], None]]] | None = None

    def submit(self, task: Callable[[], None]) -> "Future[None]":
        """Done when the task has run, whatever became of it."""
        if self._tasks is None:
            self._tasks = queue.SimpleQueue()
            threading.Thread(target=self._run, args=(self._tasks,), name=self._name, daemon=True).start()
        future: Future[None] = Future()
        self._tasks.put((future, task))
        return future

    @staticmethod
    def _run(tasks: "queue.SimpleQueue[tuple[Future[None], Callable[[], None]]]") -> None:
        while True:
            future, task = tasks.get()
            try:
                task()
            except BaseException as error:  # whatever it is, also a panic of the library: its rows allow nothing then
                future.set_exception(error)
            else:
                future.set_result(None)


class _RowMatcher:
    """One row's matcher, from the row's begin to its release."""

    __slots__ = ("mask", "matcher", "ready", "sampled")

    def __init__(self, mask: Words) -> None:
        self.matcher: LLMatcher | None = None
        self.mask = mask
        """What may come next, once ``ready`` is done and nothing is ``sampled``."""
        self.ready: Future[None] = Future()
        self.sampled: tuple[int, ReadTokens] | None = None
        """The token that is not taken yet: its place in its step, and that step's tokens."""


class Matchers:
    """Of all rows that have a grammar."""

    def __init__(self, vocabulary: "GrammarVocabulary | None", vocab_size: int) -> None:
        """Without a vocabulary no grammar is usable."""
        self._vocabulary = vocabulary
        self._nothing = np.zeros(num_words(vocab_size), dtype=np.int32)
        self._rows: dict[int, _RowMatcher] = {}
        self._compiling = _Thread("grammars")

    def __contains__(self, row: int) -> bool:
        return row in self._rows

    def reset(self) -> None:
        """All rows are gone."""
        self._rows.clear()

    def begin(self, row: int, grammar: str, output: Int32s) -> None:
        """A row with a grammar begins, with the output it has so far."""
        entry = self._rows[row] = _RowMatcher(self._nothing)
        entry.ready = self._compiling.submit(partial(self._compile, entry, grammar, output.tolist()))

    def release(self, row: int) -> None:
        """A row ends; one without a grammar may be named too."""
        self._rows.pop(row, None)

    def masks(self, rows: Iterable[int]) -> list[Words]:
        """What rows with a grammar may sample next; waits for their tokens."""
        entries = [self._rows[row] for row in rows]
        self._take(entries)
        compiling = [entry.ready for entry in entries if not entry.ready.done()]
        if compiling:
            wait(compiling)
        return [entry.mask for entry in entries]

    def advance(self, sampled_rows: RowIds, read: ReadTokens) -> None:
        """A step was launched: those of its rows that have a grammar will take their tokens, read once."""
        if not self._rows:
            return
        tokens = cache(read)
        for place, row in enumerate(sampled_rows.tolist()):
            if row in self._rows:
                self._rows[row].sampled = place, tokens

    def _compile(self, entry: _RowMatcher, grammar: str, output: list[int]) -> None:
        if self._vocabulary is None:
            return
        entry.matcher = self._vocabulary.matcher(grammar)
        if output:
            entry.matcher.consume_tokens(output)
        [entry.mask] = self._vocabulary.masks([entry.matcher])

    def _take(self, entries: Sequence[_RowMatcher]) -> None:
        sampled = [(entry, *entry.sampled) for entry in entries if entry.sampled is not None]
        for entry, _, _ in sampled:
            entry.sampled = None
            entry.mask = self._nothing  # also that of a row which got no token, until it is released
        taken: list[tuple[_RowMatcher, LLMatcher]] = []
        try:
            for entry, place, read in sampled:
                token_ids, statuses = read()
                if entry.matcher is not None and not statuses[place]:
                    entry.matcher.consume_token(int(token_ids[place]))
                    taken.append((entry, entry.matcher))
            if taken and self._vocabulary is not None:
                masks = self._vocabulary.masks([matcher for _, matcher in taken])
                for (entry, _), mask in zip(taken, masks, strict=True):
                    entry.mask = mask
        except BaseException:  # whatever it is, also a panic of the library: its rows allow nothing then
            return
