"""Values that cross the core's border: what the shell gives it and what it gives back.

Everything here is frozen (value.py says how). Ids are plain ints and strings under NewTypes. Token ids travel as
``array('i')`` so that a token is four bytes and never an object of its own.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, NewType

from scheduler_svc.core.value import value

RequestKey = NewType("RequestKey", int)
"""The engine's name of one output of one request; never used twice."""
WorkerId = NewType("WorkerId", str)
PageId = NewType("PageId", int)
Row = NewType("Row", int)
StepId = NewType("StepId", int)
PageHash = NewType("PageHash", bytes)
"""16 bytes, see page_hash."""
NO_PAGE: Final = PageId(-1)
"""In columns."""
PinKey = tuple[str, str]
"""Tenant and id."""
MOST_ROWS = 65_536
"""Of a worker: a plan tells rows in two bytes."""


class EndReason(Enum):
    """Why a request ended. Exactly one is reported for each request."""

    __hash__ = object.__hash__  # an Enum's own is a call of Python

    STOP_TOKEN = "stop token"
    STOP_STRING = "stop string"
    LENGTH = "length"
    CANCELLED = "cancelled"
    TIME_LIMIT = "time limit"
    DEADLINE = "deadline"
    WORKER_LOST = "worker lost"
    NAN = "nan"
    GRAMMAR = "grammar"
    """Its grammar leaves no token, or cannot be followed."""
    STEP_FAILED = "step failed"
    NO_PAGES = "no pages"
    SHUTDOWN = "shutdown"


class SchedulingPolicy(Enum):
    """In which order one tenant's waiting requests are served, see policy."""

    FCFS = "fcfs"
    PRIORITY = "priority"
    SJF = "sjf"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreConfig:
    """Limits and policies; counts are tokens unless named otherwise."""

    max_num_batched_tokens: int
    max_num_seqs: int
    """Most requests running on one worker; at most MOST_ROWS."""
    max_model_len: int | None = None
    """None: the worker's."""
    enable_prefix_caching: bool = True
    long_prefill_token_threshold: int = 0
    """Most tokens of one prompt in one step; 0: no limit of its own."""
    target_step_seconds: float | None = None
    """How long a step with decoding rows may take: prompts get what it leaves, by what was measured; 0: no limit;
    None: the worker's."""
    max_steps_in_flight: int = 2
    worker_lost_seconds: float = 5.0
    max_queued_requests: int = 0
    """0: no limit."""
    max_queued_tokens: int = 0
    """Tokens of all requests that wait; 0: no limit."""
    page_watermark: float = 0.01
    """Share of a worker's pages that is left to running rows when a request begins, one page for each at most."""
    scheduling_policy: SchedulingPolicy = SchedulingPolicy.PRIORITY
    aging_seconds: float = 300.0
    """How long a deadline, a length or half a level of priority can hold a request back."""
    tenant_fairness: bool = True
    """Off: all requests are one tenant's."""
    tenant_weights: Mapping[str, float] = field(default_factory=dict)
    """Shares of tenants that differ from 1."""
    pin_share: float = 0.25
    """Share of a worker's pages that pins may name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveLimits:
    """The limits of CoreConfig that may change while the core lives, by the same names."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_queued_requests: int
    max_queued_tokens: int


@value(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Carried to the worker untouched."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    output_index: int = 0
    options: bytes = b""
    """What few requests ask for beside these, as the worker reads it; empty: nothing."""
    grammar: str = ""
    """What form the output must have, as the worker reads it; empty: any."""


@value(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """One output to generate. A request for n outputs is n of these with the same prompt."""

    key: RequestKey
    tenant: str = ""
    """Whom it is charged to."""
    prompt: "array[int]"
    page_hashes: Sequence[PageHash] = ()
    """Chained hashes of the prompt's full pages."""
    root_hash: bytes = b""
    """Root of the chain, to continue it; empty: the prefix cache is neither read nor filled."""
    max_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    hold_endings: bool = False
    """Endings by length or token are provisional until ``stop`` or ``scanned``."""
    priority: int = 0
    deadline: float | None = None
    """Absolute, on the clock of ``now``: a hard end."""
    time_limit: float | None = None
    """Absolute: a soft end."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    fork_of: RequestKey | None = None
    """The first output of the same request, for the others of it: the prompt is computed once for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCard:
    """What the core must know of a worker."""

    worker_id: WorkerId
    num_pages: int
    page_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    target_step_seconds: float = 0.0
    """How long a step may keep its running streams waiting, unless the configuration says it; 0: no limit."""
    first_step_id: StepId = StepId(1)
    inventory: "Sequence[Published]" = ()
    """Pages that it still holds from before, see inventory."""


@value(frozen=True, slots=True, kw_only=True)
class NewRow:
    """A row that begins: all its token ids, and how many of them its first pages already hold."""

    row: Row
    num_prompt_tokens: int
    token_ids: "array[int]"
    num_cached_tokens: int
    sampling: SamplingParams


@value(frozen=True, slots=True, kw_only=True)
class Published:
    """A page and the name its content has."""

    page: PageId
    hash: PageHash
    parent: PageHash
    """Sixteen zero bytes for a first page."""


@value(frozen=True, slots=True, kw_only=True)
class PageGroup:
    """Rows whose tables begin with the same pages, all of them full."""

    group_id: int
    num_pages: int
    """Leading pages they share."""
    rows: Sequence[Row]
    """Ascending; empty: the group is gone."""


@value(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """One step of one worker, as changes to its rows; see protos/pagewire/internal/v1/worker.proto for the meaning."""

    worker_id: WorkerId
    step_id: StepId
    releases: Sequence[Row] = ()
    new_rows: Sequence[NewRow] = ()
    append_rows: "array[int]"
    """Columns of rows are uint16, others int32."""
    append_pages: "array[int]"
    copy_sources: "array[int]"
    copy_destinations: "array[int]"
    chunk_rows: "array[int]"
    chunk_tokens: "array[int]"
    idle_rows: "array[int]"
    published: Sequence[Published] = ()
    parent_pages: Sequence[PageId] = ()
    """Of each published page: the page that has its parent's name after this plan; NO_PAGE: none has."""
    evicted_pages: "array[int]"
    groups: Sequence[PageGroup] = ()
    """Those that changed."""
    num_scheduled_rows: int
    num_scheduled_tokens: int


@value(frozen=True, slots=True, kw_only=True)
class PageNames:
    """Names given to pages and taken from them that no plan has told."""

    worker_id: WorkerId
    published: Sequence[Published]
    parent_pages: Sequence[PageId]
    """As in a plan."""
    evicted_pages: "array[int]"


@value(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a worker says of a step."""

    worker_id: WorkerId
    step_id: StepId
    rows: "array[int]"
    token_ids: "array[int]"
    statuses: bytes = b""
    """One byte a row: 0 fine, 1 NaN; empty: all fine."""
    failed: bool = False
    """The step as a whole failed: no row sampled, no page was reliably written."""
    attachments: "Sequence[tuple[int, bytes]]" = ()
    """What the worker says of rows beside their tokens, handed on untouched."""
    seconds: float = 0.0
    """How long the device took for it; 0: not known."""


# Questions.


class PageStatus(Enum):
    """Whether a page of a prompt is cached, and why not; see prefix_explanation."""

    HIT = "hit"
    COLD = "cold"
    EVICTED = "evicted"
    SALTED = "salted"
    DIVERGED = "diverged"
    TAIL_NOT_FULL = "tail not full"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixQuestion:
    """A prompt whose pages are to be explained to a tenant."""

    tenant: str = ""
    prompt: "array[int]"
    page_hashes: Sequence[PageHash]
    root_hash: bytes
    unsalted_root: bytes
    """Root of the same chain without a salt; the same one if there is none."""


class PageExplanation(NamedTuple):
    """One page."""

    status: PageStatus
    diverged_at: int | None = None
    """The first token that differs, if it diverged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """What a request would meet if it came now; seconds are None where nothing was measured that tells them."""

    num_cached_tokens: int
    queue_seconds: float | None
    """Until it begins."""
    first_token_seconds: float | None
    """Until its first token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPin:
    """A prefix to be kept in the cache, see pins."""

    tenant: str = ""
    pin_id: str
    page_hashes: Sequence[PageHash]
    until: float
    """Absolute, on the clock of ``now``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A pin as its tenant sees it."""

    pin_id: str
    num_pages: int
    """Held now, on the worker that has most of them."""
    until: float


# Events: what the core tells the shell.


@value(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A request has a row now, for the first time or again (``resumed``)."""

    key: RequestKey
    worker_id: WorkerId
    num_cached_tokens: int
    resumed: bool
    """Admitted again after a preemption."""


@value(frozen=True, slots=True, kw_only=True)
class PrefillProgress:
    """So much of a prompt is computed."""

    key: RequestKey
    num_computed_tokens: int
    num_prompt_tokens: int


@value(frozen=True, slots=True, kw_only=True)
class Preempted:
    """A request has lost its row and pages; it waits again."""

    key: RequestKey
    reason: str
    made_room_for: RequestKey | None = None
    """The request that got its pages; None: nobody in particular."""


@value(frozen=True, slots=True, kw_only=True)
class Held:
    """An ending waits for ``stop`` or ``scanned``."""

    key: RequestKey
    num_output_tokens: int


@value(frozen=True, slots=True, kw_only=True)
class Ended:
    """The request is over and nothing of it is held any more; its pages are free once steps in flight are done."""

    key: RequestKey
    reason: EndReason
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_recomputed_tokens: int
    stop_token_id: int | None
    submitted_at: float
    admitted_at: float | None
    first_token_at: float | None
    last_token_at: float | None
    ended_at: float
    worker_id: WorkerId | None
    stage: str
    """Where it was: queue, prefill or decode."""


Event = Admitted | PrefillProgress | Preempted | Held | Ended


@value(frozen=True, slots=True, kw_only=True)
class Committed:
    """What one step result brought. Apply the tokens first, then the events."""

    keys: Sequence[RequestKey] = ()
    """Requests that got a token, each at most once."""
    num_firsts: int = 0
    """So many of them, the first ones, begin with it, or go on after a preemption; the others decode step by step."""
    token_ids: "array[int]" = field(default_factory=lambda: array("i"))
    """Their tokens; same length as ``keys``."""
    attachments: "Sequence[tuple[RequestKey, bytes]]" = ()
    """What the worker says of requests beside their tokens; of a token that is not here neither is that."""
    events: Sequence[Event] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """A snapshot of the core; the first six are now, the others since start."""

    num_running: int
    num_waiting: int
    num_unplaced: int
    """Of those waiting: no worker can hold them."""
    num_parked: int
    """Of those waiting: another request is computing a page they need."""
    num_workers: int
    pages: "dict[WorkerId, PageCounts]"
    num_preemptions: int
    num_computed_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_wasted_tokens: int
    num_cut_tokens: int
    """Of the wasted ones those counted among the output tokens, too: they were behind a stop string."""
    num_page_evictions: int
    num_steps: int
    num_asked_pages: int
    """Full prompt pages looked for in the prefix cache at first admissions. The others than the following are cold,
    see hit_counts."""
    num_hit_pages: int
    num_evicted_pages: int
    """Had been cached and were evicted since."""
    num_diverged_pages: int
    """The page before is cached and goes on in another way."""
    num_salted_pages: int
    """Cached under another salt."""
    num_tail_pages: int
    """Last prompt pages that were not full, so not looked for."""
    page_waste_ratio: float
    """Dead slots by all slots of held pages; 0 if none is held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCounts:
    """free + held + cached = all. Pages that wait for steps in flight count as held."""

    num_pages: int
    num_free: int
    num_held: int
    num_cached: int
    num_pinned: int
    """Of the held ones: kept by pins, in use or not."""
    num_dead_slots: int
    """Slots of held pages without a token of a running request."""
    num_running: int
    num_steps: int
