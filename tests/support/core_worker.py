"""A worker without a model: it executes plans on a picture of its pages and finds every wrong page, row or count.

Each slot of a page remembers for which chain of tokens it was written (a running digest of all tokens up to it, with
the chain's salt). Whatever a row computes, the slots before it must have been written for exactly its own tokens: a
page reused too early, shared wrongly, or published before it was written shows at once. Tokens come from a function of
seed and all tokens before, so that outputs are known without scheduling.
"""

from array import array
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from scheduler_svc.core.types import BatchPlan, StepResult, WorkerCard

EOS = 7
VOCABULARY = 97

TokenFunction = Callable[[int, int, int], int]
"""(seed, output position, digest of the tokens before) -> token."""


def spread(seed: int, position: int, digest: int) -> int:
    """Tokens of any kind, now and then EOS."""
    packed = seed.to_bytes(8, "little", signed=True) + position.to_bytes(8, "little") + digest.to_bytes(8, "little")
    return int.from_bytes(blake2b(packed, digest_size=4).digest(), "little") % VOCABULARY


def counting(seed: int, position: int, digest: int) -> int:
    """Tokens that tell whose they are and where: never EOS."""
    return 1000 * (seed + 1) + position


def digests(token_ids: Sequence[int]) -> list[int]:
    """For each token the digest of all tokens up to and with it."""
    chain, result = b"", []
    for token_id in token_ids:
        chain = blake2b(chain + token_id.to_bytes(4, "little"), digest_size=8).digest()
        result.append(int.from_bytes(chain, "little"))
    return result


def solo(prompt: Sequence[int], seed: int, limit: int, stops: frozenset[int], function: TokenFunction) -> list[int]:
    """What a request alone would generate."""
    tokens, output = list(prompt), []
    while len(output) < limit:
        token = function(seed, len(output), digests(tokens)[-1])
        output.append(token)
        tokens.append(token)
        if token in stops:
            break
    return output


class PlanError(AssertionError):
    """A plan that a worker must refuse, or that would compute from the wrong content."""


@dataclass
class _Row:
    seed: int
    num_prompt: int
    tokens: list[int]
    pages: list[int]
    computed: int
    decoding: bool = False
    """A step has covered all its tokens. Not the same as one token left: a resumed row may get there with a chunk to
    come."""
    tainted: bool = False
    chain: list[int] = field(default_factory=list)


class FakeWorker:
    """Executes plans in order; ``execute`` may lag behind ``receive``."""

    def __init__(self, card: WorkerCard, function: TokenFunction = spread) -> None:
        self.card = card
        self.function = function
        self.pages: list[list[int | None]] = [[None] * card.page_size for _ in range(card.num_pages)]
        self.rows: dict[int, _Row] = {}
        self.named: dict[int, bytes] = {}
        self.computed_positions: Counter[int] = Counter()
        """How often a token of this chain was computed."""
        self.plans: deque[BatchPlan] = deque()
        self.expected_step = int(card.first_step_id)

    def receive(self, plan: BatchPlan) -> None:
        """Takes a plan; it must be the next one."""
        if plan.worker_id != self.card.worker_id or plan.step_id != self.expected_step:
            raise PlanError(f"plan {plan.step_id} for {plan.worker_id} where {self.expected_step} was due")
        self.expected_step += 1
        self.plans.append(plan)

    def execute(self, *, failed: bool = False, nan_rows: Sequence[int] = (), eager: bool = False) -> StepResult:
        """Runs the oldest plan. ``failed``: writes rubbish and says so; ``eager``: reports unfinished chunks too."""
        plan = self.plans.popleft()
        chunks = self._apply(plan)
        decoding = [row for row in sorted(self.rows) if self.rows[row].decoding and row not in plan.idle_rows]
        work = [*chunks.items(), *((row, 1) for row in decoding)]
        self._check_counts(plan, work)
        rows, tokens, statuses = array("i"), array("i"), bytearray()
        for row, num_tokens in work:
            state = self.rows[row]
            self._compute(state, num_tokens, rubbish=failed or row in nan_rows)
            if state.computed == len(state.tokens):
                token = self.function(state.seed, len(state.tokens) - state.num_prompt, state.chain[-1])
                rows.append(row)
                tokens.append(0 if row in nan_rows else token)
                statuses.append(1 if row in nan_rows else 0)
                state.tokens.append(token)
                state.decoding = True
            elif eager:
                rows.append(row)
                tokens.append(99)
                statuses.append(0)
        if failed:
            return StepResult(
                worker_id=plan.worker_id, step_id=plan.step_id, rows=array("i"), token_ids=array("i"), failed=True
            )
        return StepResult(
            worker_id=plan.worker_id,
            step_id=plan.step_id,
            rows=rows,
            token_ids=tokens,
            statuses=bytes(statuses) if any(statuses) else b"",
        )

    def _apply(self, plan: BatchPlan) -> dict[int, int]:
        for row in plan.releases:
            if self.rows.pop(row, None) is None:
                raise PlanError(f"row {row} is released and not there")
        for new in plan.new_rows:
            if new.row in self.rows or not 0 <= new.row < self.card.max_num_seqs:
                raise PlanError(f"row {new.row} cannot begin")
            tokens = list(new.token_ids)
            if not 0 < new.num_prompt_tokens <= len(tokens) or not 0 <= new.num_cached_tokens < len(tokens):
                raise PlanError(f"row {new.row} has impossible counts")
            self.rows[new.row] = _Row(new.sampling.seed, new.num_prompt_tokens, tokens, [], new.num_cached_tokens)
        if len(plan.append_rows) != len(plan.append_pages):
            raise PlanError("append columns differ")
        for row, page in zip(plan.append_rows, plan.append_pages, strict=True):
            if not 0 <= page < self.card.num_pages:
                raise PlanError(f"page {page} is not there")
            self.rows[row].pages.append(page)
        self._apply_names(plan)
        if len(set(plan.chunk_rows)) != len(plan.chunk_rows) or min(plan.chunk_tokens, default=1) < 1:
            raise PlanError("chunk columns")
        return dict(zip(plan.chunk_rows, plan.chunk_tokens, strict=True))

    def _apply_names(self, plan: BatchPlan) -> None:
        for published in plan.published:
            if published.page in self.named or published.hash in self.named.values():
                raise PlanError(f"page {published.page} or its name is named already")
            self.named[published.page] = published.hash
        for page in plan.evicted_pages:
            if self.named.pop(page, None) is None:
                raise PlanError(f"page {page} was not named")

    def _check_counts(self, plan: BatchPlan, work: list[tuple[int, int]]) -> None:
        if any(row not in self.rows or not self.rows[row].decoding for row in plan.idle_rows):
            raise PlanError("an idle row does not decode")
        if len({row for row, _ in work}) < len(work):
            raise PlanError("a decoding row has a chunk")
        if len(work) != plan.num_scheduled_rows or sum(count for _, count in work) != plan.num_scheduled_tokens:
            raise PlanError(f"{work} is not what {plan} counts")
        if plan.num_scheduled_tokens > self.card.max_num_batched_tokens:
            raise PlanError("more tokens than the worker takes")

    def _compute(self, state: _Row, num_tokens: int, rubbish: bool) -> None:
        size = self.card.page_size
        start, stop = state.computed, state.computed + num_tokens
        if stop > len(state.tokens):
            raise PlanError("a row computes tokens it does not know")
        if stop > len(state.pages) * size:
            raise PlanError("a row writes past its page table")
        state.chain = digests(state.tokens[:stop])
        for position in range(start):
            found = self.pages[state.pages[position // size]][position % size]
            if found != state.chain[position] and not state.tainted:
                raise PlanError(f"position {position} of page {state.pages[position // size]} has other content")
        state.tainted = state.tainted or rubbish
        for position in range(start, stop):
            self.computed_positions[state.chain[position]] += 1
            self.pages[state.pages[position // size]][position % size] = (
                None if state.tainted else state.chain[position]
            )
        state.computed = stop
