"""A worker without a model: it executes plans on a picture of its pages and finds every wrong page, row or count.

Each slot of a page remembers for which chain of tokens it was written (a running digest of all tokens up to it and of
the cache salt). Whatever a row computes, all slots before it must have been written for exactly its own tokens: a page
reused too early, shared wrongly, or published before it was written shows at once. Tokens come from a function of seed
and all tokens before, so that outputs are known without scheduling.
"""

from array import array
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from scheduler_svc.core.types import BatchPlan, PageGroup, Published, StepResult, WorkerCard

TokenFunction = Callable[[int, int, int], int]
"""(seed, output position, digest of the tokens before) -> token."""

SALT_BITS = 32
"""A seed's bits from here on are the request's cache salt, so that the worker knows whose content a page is."""


class PlanError(AssertionError):
    """A plan that a worker must refuse, or that would compute from the wrong content."""


def spread(seed: int, position: int, digest: int) -> int:
    """Tokens below 97 of any kind."""
    packed = seed.to_bytes(8, "little") + position.to_bytes(8, "little") + digest.to_bytes(8, "little")
    return int.from_bytes(blake2b(packed, digest_size=4).digest(), "little") % 97


def counting(seed: int, position: int, digest: int) -> int:
    """Tokens that tell whose they are and where."""
    return 1000 * (seed + 1) + position


def extend_digests(chain: list[int], token_ids: Sequence[int], salt: int) -> None:
    """Continues a chain of digests over the tokens that it does not cover yet."""
    for token_id in token_ids[len(chain) :]:
        before = chain[-1] if chain else salt
        text = before.to_bytes(8, "little") + token_id.to_bytes(4, "little")
        chain.append(int.from_bytes(blake2b(text, digest_size=8).digest(), "little"))


def solo(prompt: Sequence[int], seed: int, limit: int, stops: frozenset[int], function: TokenFunction) -> list[int]:
    """What a request generates alone."""
    tokens, output, chain = list(prompt), [], []
    while len(output) < limit:
        extend_digests(chain, tokens, seed >> SALT_BITS)
        output.append(function(seed, len(output), chain[-1]))
        tokens.append(output[-1])
        if output[-1] in stops:
            break
    return output


@dataclass
class _Row:
    seed: int
    num_prompt: int
    tokens: list[int]
    computed: int
    pages: list[int]
    chain: list[int]
    decoding: bool = False
    """A step has covered all its tokens; a resumed row with one token left in a chunk does not decode yet."""
    tainted: bool = False
    """Took part in a step that failed: what it holds is worth nothing, and nobody may rely on it."""


class FakeWorker:
    """Executes plans in order; ``execute`` may lag behind ``receive``."""

    def __init__(self, card: WorkerCard, function: TokenFunction = spread) -> None:
        self.card = card
        self.function = function
        self.plans: deque[BatchPlan] = deque()
        self.times_computed: Counter[int] = Counter()
        """How often the token at the end of this chain was computed."""
        self.groups: dict[int, PageGroup] = {}
        self._slots: list[int | None] = [None] * (card.num_pages * card.page_size)
        self._rows: dict[int, _Row] = {}
        self._named: dict[int, bytes] = {}
        self.names: dict[int, Published] = {}
        """What it would bring to another scheduler."""
        self._next_step = int(card.first_step_id)

    def keep_pages_of(self, other: "FakeWorker") -> None:
        """It is the same process in another epoch; the scheduler takes the inventory."""
        self._slots, self._named, self.names = other._slots, other._named, other.names

    def receive(self, plan: BatchPlan) -> None:
        """Takes a plan; it must be the next one."""
        if plan.worker_id != self.card.worker_id or plan.step_id != self._next_step:
            raise PlanError(f"plan {plan.step_id} for {plan.worker_id} where {self._next_step} was due")
        self._next_step += 1
        self.plans.append(plan)

    def execute(self, *, failed: bool = False, nan_rows: Sequence[int] = (), eager: bool = False) -> StepResult:
        """Runs the oldest plan. ``failed``: writes rubbish and says so; ``eager``: reports unfinished chunks too."""
        plan = self.plans.popleft()
        work = self._apply(plan)
        rows, tokens, statuses = array("i"), array("i"), bytearray()
        for row, num_tokens in work:
            state = self._rows[row]
            finished = state.computed + num_tokens == len(state.tokens)
            self._compute(state, num_tokens, rubbish=failed or (finished and row in nan_rows))
            token = self.function(state.seed, len(state.tokens) - state.num_prompt, state.chain[-1])
            if finished:
                state.tokens.append(token)
                state.decoding = True
            if finished or eager:
                rows.append(row)
                tokens.append(token if finished else 99)
                statuses.append(1 if row in nan_rows else 0)
        if failed:
            rows, tokens, statuses = array("i"), array("i"), bytearray()
        return StepResult(
            worker_id=plan.worker_id,
            step_id=plan.step_id,
            rows=rows,
            token_ids=tokens,
            statuses=bytes(statuses) if any(statuses) else b"",
            failed=failed,
        )

    def _apply(self, plan: BatchPlan) -> list[tuple[int, int]]:
        """Brings rows and tables up to date; what is to be computed, as (row, tokens)."""
        for row in plan.releases:
            if self._rows.pop(row, None) is None:
                raise PlanError(f"row {row} is released and not there")
        for new in plan.new_rows:
            tokens = list(new.token_ids)
            if new.row in self._rows or not 0 <= new.row < self.card.max_num_seqs:
                raise PlanError(f"row {new.row} cannot begin")
            if not 0 < new.num_prompt_tokens <= len(tokens) or not 0 <= new.num_cached_tokens < len(tokens):
                raise PlanError(f"row {new.row} has impossible counts")
            seed = new.sampling.seed
            self._rows[new.row] = _Row(seed, new.num_prompt_tokens, tokens, new.num_cached_tokens, [], [])
        for row, page in zip(plan.append_rows, plan.append_pages, strict=True):
            if not 0 <= page < self.card.num_pages:
                raise PlanError(f"page {page} is not there")
            self._rows[row].pages.append(page)
        self._copy(plan)
        self._apply_names(plan)
        self._apply_groups(plan)
        return self._work(plan)

    def _copy(self, plan: BatchPlan) -> None:
        size = self.card.page_size
        if set(plan.copy_sources) & set(plan.copy_destinations):
            raise PlanError("a page is copied and copied over")
        for source, destination in zip(plan.copy_sources, plan.copy_destinations, strict=True):
            content = self._slots[source * size : (source + 1) * size]
            self._slots[destination * size : (destination + 1) * size] = content

    def _apply_groups(self, plan: BatchPlan) -> None:
        for group in plan.groups:
            self.groups.pop(group.group_id, None)
            if group.rows:
                self.groups[group.group_id] = group
        for group in self.groups.values():
            tables = [self._rows[row].pages[: group.num_pages] for row in group.rows]
            if len(tables) < 4 or group.num_pages < 4 or any(table != tables[0] for table in tables):
                raise PlanError(f"{group} is no group of rows that share so many pages")

    def _apply_names(self, plan: BatchPlan) -> None:
        for page in plan.evicted_pages:
            self.names.pop(page, None)
            if self._named.pop(page, None) is None:
                raise PlanError(f"page {page} was not named")
        # After evictions, as workers do: what was let go since the last plan may be named again by this one.
        for published in plan.published:
            if published.page in self._named or published.hash in self._named.values():
                raise PlanError(f"page {published.page} or its name is named already")
            self._named[published.page] = published.hash
            self.names[published.page] = published
        for published, page in zip(plan.published, plan.parent_pages, strict=True):
            if self._named.get(page) != (published.parent if published.parent in self._named.values() else None):
                raise PlanError(f"page {published.page} follows another than page {page}")

    def _work(self, plan: BatchPlan) -> list[tuple[int, int]]:
        chunks = list(zip(plan.chunk_rows, plan.chunk_tokens, strict=True))
        decoding = sorted(row for row, state in self._rows.items() if state.decoding)
        work = chunks + [(row, 1) for row in decoding if row not in plan.idle_rows]
        if not set(plan.idle_rows) <= set(decoding):
            raise PlanError("an idle row does not decode")
        if len({row for row, _ in work}) < len(work) or any(num_tokens < 1 for _, num_tokens in work):
            raise PlanError("a row is computed twice, or not at all")
        if (len(work), sum(count for _, count in work)) != (plan.num_scheduled_rows, plan.num_scheduled_tokens):
            raise PlanError(f"{work} is not what {plan} counts")
        if not 0 < plan.num_scheduled_tokens <= self.card.max_num_batched_tokens:
            raise PlanError("an empty step, or more tokens than the worker takes")
        return work

    def _compute(self, state: _Row, num_tokens: int, rubbish: bool) -> None:
        start, stop = state.computed, state.computed + num_tokens
        if stop > len(state.tokens) or stop > len(state.pages) * self.card.page_size:
            raise PlanError("a row computes tokens that it does not know, or writes past its page table")
        extend_digests(state.chain, state.tokens[:stop], state.seed >> SALT_BITS)
        for position in range(start):
            if self._slots[self._slot(state, position)] != state.chain[position] and not state.tainted:
                raise PlanError(f"position {position} would be read from a slot of other content")
        state.tainted = state.tainted or rubbish
        for position in range(start, stop):
            self.times_computed[state.chain[position]] += 1
            self._slots[self._slot(state, position)] = None if state.tainted else state.chain[position]
        state.computed = stop

    def _slot(self, state: _Row, position: int) -> int:
        size = self.card.page_size
        return state.pages[position // size] * size + position % size
