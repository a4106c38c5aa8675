"""One request: its tokens, its ending and, while it runs, its residence on a worker.

    WAITING ──admit──▶ RUNNING ──all its tokens in flight, or preempted with tokens in flight──▶ LANDING
       ▲                  │                                                                        │
       ╰────preempted─────┴──────────────────────last token in flight has come, not at its end─────╯
    RUNNING, LANDING ──length or stop token, and the front must scan──▶ HELD       every state ──▶ ENDED

What can be derived is not stored: a request is preempted if it waits and was admitted before; it is prefilling if its
residence has computed less than the tokens it began with.

Lengths of a running request, in tokens:

    |◀────────── prompt ──────────▶|◀───── output ─────▶|◀── in flight ──▶|
    |◀──────────────── tokens known ───────────────────▶|
    |◀──────────────────────────── computed, counting steps in flight ───▶|

A request that decodes is described by a *lane* (see decoding.py), from which its counts follow without being counted.
"""

from array import array
from collections.abc import Sequence
from enum import Enum
from typing import Final

from scheduler_svc.core.accounts import Account
from scheduler_svc.core.errors import InvariantViolation
from scheduler_svc.core.page_hash import hash_pages
from scheduler_svc.core.types import EndReason, NewRequest, PageHash, PageId, Row, StepId, WorkerId

Order = tuple[float, float, int]
"""Sorts requests, see policy.py. Unique, so requests are never compared themselves."""


class Lane:
    """What a row does as long as it decodes: step s samples output position ``s + offset``. Never changed."""

    __slots__ = ("offset", "request", "row")

    def __init__(self, request: "Request", row: Row, offset: int) -> None:
        self.request = request
        self.row = row
        self.offset = offset


class State(Enum):
    """Where a request is."""

    __hash__ = object.__hash__  # an Enum's own is a call of Python

    WAITING = "waiting"
    """Has no row; nothing of it is in flight that could bring a token."""
    RUNNING = "running"
    """Has a row on a worker."""
    LANDING = "landing"
    """Has no row any more; tokens of it are in flight and will be taken."""
    HELD = "held"
    """At its end, which the front has to confirm."""
    ENDED = "ended"


MOVES: Final[dict[State, tuple[State, ...]]] = {
    State.WAITING: (State.RUNNING, State.ENDED),
    State.RUNNING: (State.WAITING, State.LANDING, State.HELD, State.ENDED),
    State.LANDING: (State.WAITING, State.HELD, State.ENDED),
    State.HELD: (State.ENDED,),
    State.ENDED: (),
}


_WAITING: Final = State.WAITING
_ACCEPTING: Final = (State.RUNNING, State.LANDING)
"""States in which a token that comes is taken."""


class Residence:
    """One admission of a request to one worker: from row to release."""

    __slots__ = (
        "due_step",
        "has_prompt",
        "lane",
        "last_step",
        "most_computed",
        "num_computed",
        "num_known",
        "pages",
        "request",
        "row",
    )

    def __init__(
        self, request: "Request", row: Row, pages: list[PageId], num_computed: int, most_computed: int
    ) -> None:
        self.request = request
        self.row = row
        self.pages = pages
        """The page table; its last page may be partly filled."""
        self.num_computed = num_computed
        """Tokens computed when all planned steps are done; not kept up to date while there is a lane."""
        self.num_known = request.num_tokens
        """Tokens the worker was given with the row."""
        self.most_computed = most_computed
        """Tokens it ever needs to compute here: all but the last."""
        self.last_step = StepId(0)
        """Last step the row takes part in; not kept up to date while there is a lane."""
        self.lane: Lane | None = None
        self.due_step = 0
        """Step at which the lane needs the batcher: for a page, or because it is at its end."""
        self.has_prompt = False
        """Its pages hold the whole prompt for sure: the step that computed the last of it is done."""

    def computed_before(self, step_id: int) -> int:
        """Tokens computed when all steps before ``step_id`` are done (all planned ones, if there is no lane)."""
        if self.lane is None:
            return self.num_computed
        return self.request.num_prompt + step_id - 1 + self.lane.offset

    def lane_from(self, step_id: int) -> Lane:
        """What it does if it decodes in ``step_id``, after the tokens computed so far, and from then on."""
        return Lane(self.request, self.row, self.num_computed + 1 - self.request.num_prompt - step_id)

    @property
    def num_sampled(self) -> int:
        """Output tokens scheduled when all planned steps are done; not to be asked while there is a lane."""
        return max(self.num_known, self.num_computed + (self.num_computed >= self.num_known)) - self.request.num_prompt

    @property
    def is_prefilling(self) -> bool:
        """Whether it has still to compute tokens that are known."""
        return self.num_computed < self.num_known


class Request:
    """One output to generate, from submission to its ending."""

    __slots__ = (
        "accepts_tokens",
        "account",
        "admitted_at",
        "backlog",
        "broken",
        "ending",
        "family",
        "family_name",
        "first_token_at",
        "hashes",
        "is_fork",
        "key",
        "last_token_at",
        "load",
        "missed_name",
        "new",
        "num_cached_tokens",
        "num_closing",
        "num_preemptions",
        "num_prompt",
        "num_recomputed_tokens",
        "num_sampled",
        "num_seen",
        "order",
        "output",
        "pages_needed",
        "priority",
        "prompt",
        "residence",
        "row",
        "state",
        "stop_token_id",
        "stop_token_ids",
        "submitted_at",
        "unplaced_since",
        "worker_id",
    )

    def __init__(
        self, new: NewRequest, order: Order, account: Account, *, priority: int, use_cache: bool, now: float
    ) -> None:
        self.new = new
        self.account = account
        """Whom it is charged to."""
        self.key = new.key
        self.prompt = new.prompt
        self.num_prompt = len(new.prompt)
        self.output: array[int] = array("i")
        """As far as it has been collected from its worker, see Worker.collect; complete while it waits."""
        self.stop_token_ids = new.stop_token_ids
        self.order = order
        self.priority = priority
        """Its priority, if that counts."""
        self.is_fork = new.sampling.output_index > 0
        """Its prompt is another output's too, which is charged for it."""
        self.hashes: list[PageHash] | None = None
        """Names of the leading full pages as far as they were needed; None: not cached, neither read nor published."""
        if use_cache and new.root_hash:
            self.hashes = list(new.page_hashes)
        self.family: list[Request] = []
        """All live outputs of a request of several, itself among them; empty if it is the only one."""
        self.family_name = PageHash((new.key if new.fork_of is None else new.fork_of).to_bytes(8, "little"))
        """Claimed by the member that computes the family's prompt; shorter than any page's name."""
        self.state = State.WAITING
        self.accepts_tokens = False
        self.residence: Residence | None = None
        self.row = Row(0)
        """The row it has, or had last."""
        self.worker_id: WorkerId | None = None
        """Worker it is placed on; kept after the end as the last one."""
        self.load = 0
        """What it counts for in its worker's load: the tokens it was expected to compute, when it was placed."""
        self.backlog = 0
        """The same as long as it has not begun there."""
        self.pages_needed = 0
        """New pages it needed at the last attempt to admit it; 0: none since it waits."""
        self.missed_name: PageHash | None = None
        """Its first page that was not cached at that attempt: with it there, fewer pages are enough."""
        self.num_cached_tokens = 0
        self.num_closing = 0
        """Lanes of it that ended with a step in flight."""
        self.num_recomputed_tokens = 0
        self.num_seen = 0
        """Most tokens it ever had computed; computing one of them again is recomputation."""
        self.num_sampled = 0
        """Output tokens scheduled, those in flight included; not kept up to date while it runs."""
        self.num_preemptions = 0
        self.ending: EndReason | None = None
        """The ending that is held."""
        self.stop_token_id: int | None = None
        self.broken = False
        """What its last steps wrote cannot be trusted."""
        self.submitted_at = now
        self.unplaced_since = now
        self.admitted_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens known: prompt and output."""
        return self.num_prompt + len(self.output)

    @property
    def stage(self) -> str:
        """Where it is, for people."""
        if self.state is State.WAITING:
            return "queue"
        return "decode" if self.output else "prefill"

    def move(self, state: State) -> None:
        """Changes the state.

        Raises:
            InvariantViolation: the table does not allow the move.
        """
        before = self.state
        if state not in MOVES[before]:
            raise InvariantViolation(f"request {self.key} cannot go from {before.value} to {state.value}")
        if state is _WAITING:
            self.account.begin_wait(self.num_tokens)
        elif before is _WAITING:
            self.account.end_wait(self.num_tokens)
        self.state = state
        self.accepts_tokens = state in _ACCEPTING

    def known_tokens(self) -> "array[int]":
        """Prompt and output; to be read only."""
        return self.prompt + self.output if self.output else self.prompt

    def names(self, num_pages: int, page_size: int) -> Sequence[PageHash]:
        """Names of its leading full pages, at least ``num_pages`` of them if its tokens known fill so many."""
        hashes = self.hashes
        if hashes is None:
            return ()
        if len(hashes) < num_pages:
            hashes += self._next_names(len(hashes), num_pages, page_size)
        return hashes

    def name_at(self, index: int, page_size: int) -> PageHash | None:
        """The name of one page; None if it is not full or has none. Keeps nothing."""
        if self.hashes is None:
            return None
        num_known = len(self.hashes)
        if index < num_known:
            return self.hashes[index]
        more = self._next_names(num_known, index + 1, page_size)
        return more[index - num_known] if index - num_known < len(more) else None

    def _next_names(self, start: int, stop: int, page_size: int) -> list[PageHash]:
        """Names of full pages ``start`` to ``stop``, as far as its tokens are known."""
        first, end, num_prompt = start * page_size, stop * page_size, self.num_prompt
        if first >= num_prompt:
            tokens = self.output[first - num_prompt : end - num_prompt]
        else:
            tokens = self.prompt[first:end] + self.output[: max(end - num_prompt, 0)]
        return hash_pages(self.new.root_hash, tokens, page_size, self.hashes[-1] if self.hashes else None)
