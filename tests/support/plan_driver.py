"""A small scheduler for tests of the worker: makes valid batch plans and checks what comes back.

It knows nothing of messages: plans are the worker's own values, so it drives a ModelRunner directly (``drive``) or,
through ``worker_wire``, a worker process over the real protocol. Pages and rows are handed out at random, so that
nothing works by their order. Every output's length is known beforehand, so plans can run ahead of results as far as a
test likes.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from gpu_worker.batch_plan import BatchPlan, NewRows, RowLogprobs, RowOptions, StepResult, int32s
from gpu_worker.model_runner import ModelRunner


@dataclass(slots=True, kw_only=True, eq=False)
class Generation:
    """One request and what became of it."""

    prompt: list[int]
    max_tokens: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    output_index: int = 0
    options: RowOptions | None = None
    share_with: "Generation | None" = None
    """Take the full pages of the common prefix from this one, as far as they are computed."""
    resume_after: int = 0
    """Preempt once, when so many tokens were sampled: release the row and begin again with all ids."""
    output: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_known: int = 0
    num_cached: int = 0
    pages: list[int] = field(default_factory=list)
    row: int | None = None
    preempted: bool = False
    output_started: bool = False
    """A step that covers all its ids was planned: it is decoding."""

    @property
    def target(self) -> int:
        """Ids it has when its last token is known; that one is never computed."""
        return len(self.prompt) + self.max_tokens

    @property
    def is_done(self) -> bool:
        return len(self.output) == self.max_tokens


@dataclass(slots=True)
class _InFlight:
    plan: BatchPlan
    sampled: list[Generation]
    rows: list[int]


class PlanMaker:
    """Plans for a worker of ``num_rows`` rows and ``num_pages`` pages."""

    def __init__(
        self,
        *,
        num_rows: int,
        num_pages: int,
        page_size: int,
        chunk: int = 10**9,
        budget: int = 10**9,
        seed: int = 0,
        first_step_id: int = 1,
    ) -> None:
        self.page_size = page_size
        self.chunk = chunk
        self.budget = budget
        self.num_pages = num_pages
        self._random = random.Random(seed)
        self._free_rows = list(range(num_rows))
        self._free_pages = list(range(num_pages))
        self._random.shuffle(self._free_rows)
        self._random.shuffle(self._free_pages)
        self._references: dict[int, int] = {}
        self._waiting: deque[Generation] = deque()
        self._running: list[Generation] = []
        self._ending: list[Generation] = []
        self.in_flight: deque[_InFlight] = deque()
        self.next_step_id = first_step_id
        self.max_pages_used = 0
        self.logprobs: list[RowLogprobs] = []
        """Of all steps, in order."""

    def submit(self, *generations: Generation) -> None:
        self._waiting.extend(generations)

    @property
    def is_idle(self) -> bool:
        return not (self._waiting or self._running or self._ending or self.in_flight)

    def next_plan(self) -> BatchPlan | None:
        """None if there is nothing to compute now."""
        releases = self._release_finished()
        preempted = [g for g in self._running if g.resume_after and not g.preempted and len(g.output) >= g.resume_after]
        if preempted and not self.in_flight:
            releases += [self._preempt(generation) for generation in preempted]
        new: list[Generation] = []
        appends: list[tuple[int, int]] = []
        chunks: list[tuple[int, int]] = []
        sampled_chunks: list[Generation] = []
        decoding = [g for g in self._running if g.output_started]
        budget = self.budget - len(decoding)
        for generation in [g for g in self._running if not g.output_started]:
            budget -= self._plan_chunk(generation, budget, appends, chunks, sampled_chunks)
        while self._waiting and self._free_rows and budget > 0:
            generation = self._waiting.popleft()
            new.append(self._admit(generation, appends))
            budget -= self._plan_chunk(generation, budget, appends, chunks, sampled_chunks)
        for generation in decoding:
            self._grow(generation, generation.num_computed + 1, appends)
            generation.num_computed += 1
            generation.num_known += 1
        if not (releases or new or chunks or decoding):
            return None
        return self._make_plan(releases, new, appends, chunks, sampled_chunks, decoding)

    def commit(self, result: StepResult) -> None:
        """Take a result, which must be the oldest step's and name the rows in the protocol's order."""
        entry = self.in_flight.popleft()
        assert result.refusal is None, result.refusal
        assert result.failure is None, result.failure
        assert result.step_id == entry.plan.step_id
        assert result.rows.tolist() == entry.rows
        self.logprobs += result.logprobs
        statuses = list(result.statuses) or [0] * len(entry.rows)
        for generation, token_id, status in zip(entry.sampled, result.token_ids.tolist(), statuses, strict=True):
            generation.output.append(token_id)
            generation.statuses.append(status)

    def _make_plan(
        self,
        releases: list[int],
        new: list[Generation],
        appends: list[tuple[int, int]],
        chunks: list[tuple[int, int]],
        sampled_chunks: list[Generation],
        decoding: list[Generation],
    ) -> BatchPlan:
        decoding = sorted(decoding, key=lambda generation: generation.row or 0)
        plan = BatchPlan(
            step_id=self.next_step_id,
            releases=int32s(releases),
            new_rows=_new_rows(new),
            append_rows=int32s([row for row, _ in appends]),
            append_pages=int32s([page for _, page in appends]),
            chunk_rows=int32s([row for row, _ in chunks]),
            chunk_tokens=int32s([count for _, count in chunks]),
            num_scheduled_rows=len(chunks) + len(decoding),
            num_scheduled_tokens=sum(count for _, count in chunks) + len(decoding),
        )
        sampled = [*sampled_chunks, *decoding]
        rows = [generation.row for generation in sampled if generation.row is not None]
        self.in_flight.append(_InFlight(plan, sampled, rows))
        self.next_step_id += 1
        for generation in sampled:
            if generation.num_known == generation.target:
                self._running.remove(generation)
                self._ending.append(generation)
        return plan

    def _admit(self, generation: Generation, appends: list[tuple[int, int]]) -> Generation:
        generation.row = self._free_rows.pop(self._random.randrange(len(self._free_rows)))
        generation.num_known = len(generation.prompt) + len(generation.output)
        generation.num_computed = generation.num_cached = self._share(generation, appends)
        generation.output_started = False
        self._running.append(generation)
        return generation

    def _share(self, generation: Generation, appends: list[tuple[int, int]]) -> int:
        other = generation.share_with
        if other is None:
            return 0
        common = 0
        for ours, theirs in zip(generation.prompt[:-1], other.prompt, strict=False):
            if ours != theirs:
                break
            common += 1
        pages = other.pages[: min(common, other.num_computed) // self.page_size]
        for page in pages:
            self._references[page] += 1
            generation.pages.append(page)
            appends.append((generation.row or 0, page))
        return len(pages) * self.page_size

    def _plan_chunk(
        self,
        generation: Generation,
        budget: int,
        appends: list[tuple[int, int]],
        chunks: list[tuple[int, int]],
        sampled: list[Generation],
    ) -> int:
        count = min(self.chunk, budget, generation.num_known - generation.num_computed)
        if count < 1:
            return 0
        self._grow(generation, generation.num_computed + count, appends)
        generation.num_computed += count
        chunks.append((generation.row or 0, count))
        if generation.num_computed == generation.num_known:
            generation.num_known += 1
            generation.output_started = True
            sampled.append(generation)
        return count

    def _grow(self, generation: Generation, num_tokens: int, appends: list[tuple[int, int]]) -> None:
        while len(generation.pages) * self.page_size < num_tokens:
            page = self._free_pages.pop(self._random.randrange(len(self._free_pages)))
            self._references[page] = 1
            generation.pages.append(page)
            appends.append((generation.row or 0, page))
        self.max_pages_used = max(self.max_pages_used, self.num_pages - len(self._free_pages))

    def _release_finished(self) -> list[int]:
        rows = [self._release(generation) for generation in self._ending]
        self._ending.clear()
        return rows

    def _preempt(self, generation: Generation) -> int:
        generation.preempted = True
        self._running.remove(generation)
        self._waiting.appendleft(generation)
        return self._release(generation)

    def _release(self, generation: Generation) -> int:
        row = generation.row
        assert row is not None
        generation.row = None
        self._free_rows.append(row)
        for page in generation.pages:
            self._references[page] -= 1
            if not self._references[page]:
                self._free_pages.append(page)
        generation.pages = []
        return row


def _new_rows(generations: Sequence[Generation]) -> NewRows:
    ids = [[*generation.prompt, *generation.output] for generation in generations]
    return NewRows(
        rows=int32s([generation.row or 0 for generation in generations]),
        num_prompt_tokens=int32s([len(generation.prompt) for generation in generations]),
        num_token_ids=int32s([len(each) for each in ids]),
        token_ids=int32s([token_id for each in ids for token_id in each]),
        num_cached_tokens=int32s([generation.num_cached for generation in generations]),
        output_indices=int32s([generation.output_index for generation in generations]),
        seeds=np.array([generation.seed for generation in generations], dtype=np.uint64),
        temperatures=np.array([generation.temperature for generation in generations], dtype=np.float32),
        top_ps=np.array([generation.top_p for generation in generations], dtype=np.float32),
        top_ks=int32s([generation.top_k for generation in generations]),
        min_ps=np.array([generation.min_p for generation in generations], dtype=np.float32),
        options={place: each.options for place, each in enumerate(generations) if each.options is not None},
    )


def drive(
    runner: ModelRunner,
    maker: PlanMaker,
    *,
    max_in_flight: int = 2,
    on_plan: Callable[[BatchPlan], None] | None = None,
) -> None:
    """Run everything submitted, with up to ``max_in_flight`` steps launched before the first is awaited."""
    launched: deque = deque()
    while not maker.is_idle or launched:
        plan = maker.next_plan() if len(launched) < max_in_flight else None
        if plan is not None:
            if on_plan is not None:
                on_plan(plan)
            launched.append(runner.launch(plan))
        elif launched:
            maker.commit(launched.popleft().wait())


def generate(
    runner: ModelRunner, generations: Sequence[Generation], *, max_in_flight: int = 2, **options: int
) -> list[list[int]]:
    """Outputs of all generations, run together on fresh rows."""
    runner.reset()
    limits = runner.limits
    maker = PlanMaker(
        num_rows=limits.max_num_seqs,
        num_pages=limits.num_pages,
        page_size=limits.page_size,
        budget=limits.max_num_batched_tokens,
        **options,
    )
    maker.submit(*generations)
    drive(runner, maker, max_in_flight=max_in_flight)
    return [generation.output for generation in generations]


def last_logits(runner: ModelRunner, prompt: list[int]) -> torch.Tensor:
    """Logits after a prompt, as the sampler sees them."""
    seen: list[torch.Tensor] = []
    kernels = runner._kernels
    original = kernels.sample

    def record(logits: torch.Tensor, batch: Any) -> Any:
        seen.append(logits.float().clone())
        return original(logits, batch)

    kernels.sample = record  # type: ignore[method-assign]
    try:
        generate(runner, [Generation(prompt=prompt, max_tokens=1)])
    finally:
        del kernels.sample
    return seen[-1][0]
