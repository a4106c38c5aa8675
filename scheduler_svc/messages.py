"""What workers and fronts say and are told, as plain values between the codecs and the links.

Nothing here knows how a frame looks; the codecs alone do. Columns have been checked when such a value exists.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from scheduler_svc.core.types import EndReason, PageHash, PrefixQuestion, Published, SamplingParams
from scheduler_svc.core.value import value

PROTOCOL_VERSION = 1
"""Of both links; who speaks another one is refused."""


class Code(IntEnum):
    """google.rpc.Code."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


STATUS_OF_END = {
    EndReason.CANCELLED: Code.CANCELLED,
    EndReason.DEADLINE: Code.DEADLINE_EXCEEDED,
    EndReason.WORKER_LOST: Code.UNAVAILABLE,
    EndReason.SHUTDOWN: Code.UNAVAILABLE,
    EndReason.NAN: Code.INTERNAL,
    EndReason.GRAMMAR: Code.INVALID_ARGUMENT,
    EndReason.STEP_FAILED: Code.INTERNAL,
}
"""The status of a request that ends as a whole for this reason; OK for any other."""


class FrameError(ValueError):
    """The bytes are no frame, or its columns do not fit one another."""


def only_part(parts: Sequence[bytes]) -> bytes:
    """The one part that a message of a peer of ours has.

    Raises: FrameError.
    """
    if len(parts) != 1:
        raise FrameError(f"a message of {len(parts)} parts")
    return parts[0]


# From workers.


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHello:
    """A worker introduces itself."""

    protocol_version: int
    device: str
    page_size: int
    num_pages: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    rank: int
    pid: int
    model_name: str
    digest: str
    vocab_size: int
    model_card: bytes
    """As it came; handed on to the fronts."""
    cache_fingerprint: bytes = b""
    inventory: Sequence[Published] = ()
    inventory_identity: bytes = b""
    """Under which identity the inventory's names were learnt."""


@value(frozen=True, slots=True, kw_only=True)
class WorkerRefusal:
    """The worker refused a plan whole and is going to say hello again."""

    reason: str


@value(frozen=True, slots=True, kw_only=True)
class WorkerResult:
    """A step is done, or failed as a whole."""

    rows: "array[int]"
    token_ids: "array[int]"
    statuses: bytes
    failure: str | None
    """Why the step failed as a whole; None if it did not."""
    step_seconds: float
    logprobs: "Sequence[tuple[int, bytes]]" = ()
    """Log probabilities by row, as they came."""


@value(frozen=True, slots=True, kw_only=True)
class WorkerHeartbeat:
    """A worker is alive."""

    last_received_step_id: int


@value(frozen=True, slots=True, kw_only=True)
class WorkerGoodbye:
    """A worker leaves."""

    reason: str


WorkerBody = WorkerHello | WorkerRefusal | WorkerResult | WorkerHeartbeat | WorkerGoodbye


@value(frozen=True, slots=True, kw_only=True)
class WorkerMessage:
    """One frame of a worker."""

    session: int
    epoch: int
    step_id: int
    body: WorkerBody


# From fronts.


@value(frozen=True, slots=True, kw_only=True)
class Submission:
    """A new request of ``n`` outputs; times are seconds from now."""

    key: int
    request_id: str
    tenant: str
    prompt: "array[int]"
    page_hashes: Sequence[PageHash]
    root_hash: bytes
    n: int
    max_tokens: int
    stop_token_ids: frozenset[int]
    hold_endings: bool
    deadline_seconds: float | None
    time_limit_seconds: float | None
    priority: int
    sampling: SamplingParams
    progress_events: bool
    resume_grace_seconds: float = 0.0
    content_digest: bytes = b""
    resume_record: bytes = b""
    """With a grace: what a front must know to continue the request."""
    max_tenant_requests: int = 0
    """Most requests of its tenant at once; 0: no limit."""
    tenant_requests_per_minute: int = 0
    """Most that its tenant may begin in a minute; 0: no limit."""


@value(frozen=True, slots=True, kw_only=True)
class InvalidSubmission:
    """A new request that cannot be taken as it is."""

    key: int
    code: Code
    reason: str
    field: str
    message: str


@value(frozen=True, slots=True, kw_only=True)
class FrontCancel:
    """A request shall end."""

    key: int
    deadline: bool
    broken: bool = False
    code: Code | None = None
    """What the caller is told, if not what follows from the ending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontFigures:
    """What a front counted since its start."""

    refused: Mapping[tuple[Code, str], int] = field(default_factory=dict)
    """Requests that the scheduler never heard of, by code and reason."""
    stall_counts: Sequence[int] = ()
    """Of a histogram with the bounds histogram.STALL_SECONDS."""
    stall_seconds: float = 0.0


@value(frozen=True, slots=True, kw_only=True)
class FrontResume:
    """A front asks for a request that outlived its stream."""

    key: int
    tenant: str
    request_id: str


@value(frozen=True, slots=True, kw_only=True)
class FrontStop:
    """A stop string was completed by this output token."""

    key: int
    index: int
    num_output_tokens: int


@value(frozen=True, slots=True, kw_only=True)
class FrontScanned:
    """A held ending stands: no stop string comes before it."""

    key: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitChanges:
    """Limits to change, by the names of LiveLimits; None: as it is."""

    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    max_queued_requests: int | None
    max_queued_tokens: int | None
    scheduling_policy: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PinQuestion:
    """A prefix to be kept so long."""

    pin_id: str
    seconds: float
    page_hashes: Sequence[PageHash]


@value(frozen=True, slots=True, kw_only=True)
class Query:
    """``kind`` is the name of the question in front.proto, or empty for one not known."""

    query_id: int
    tenant: str
    kind: str
    request_id: str = ""
    milliseconds: int | None = None
    worker_id: str = ""
    limits: "LimitChanges | None" = None
    prefix: PrefixQuestion | None = None
    """Of explain_prefix; None if it cannot be read."""
    submission: "Submission | InvalidSubmission | None" = None
    """Of quote."""
    pin: "PinQuestion | None" = None
    """Of pin_prefix; None if it cannot be read."""
    unpin_id: str = ""


@value(frozen=True, slots=True, kw_only=True)
class FrontMessage:
    """One frame of a front."""

    session: int
    front_id: int
    protocol_version: int | None
    """None: the frame holds no hello."""
    pid: int
    submissions: Sequence[Submission | InvalidSubmission] = ()
    cancels: Sequence[FrontCancel] = ()
    stops: Sequence[FrontStop] = ()
    scanned: Sequence[FrontScanned] = ()
    queries: Sequence[Query] = ()
    resumes: Sequence[FrontResume] = ()
    figures: FrontFigures | None = None


# To fronts.


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What is served now."""

    model_card: bytes
    """Empty until a first worker has joined."""
    num_workers: int
    page_size: int
    hash_key: bytes = field(repr=False)
    max_request_tokens: int
    max_num_seqs: int
    leaving: bool = False
    """Requests are still taken, but balancers shall send no more."""
    draining: bool
    drain_ms: int = 0
    """What running requests have left of it."""
    stalled: bool = False
    retry_ms: int


@value(frozen=True, slots=True, kw_only=True)
class RequestSummary:
    """A request so far, all outputs together; times are seconds since it was submitted."""

    reason: EndReason | None = None
    """The one cause that ended it, None while it runs and if each output ended by itself."""
    elsewhere: bool = False
    """Its cancellation was asked for by another call."""
    prompt_tokens: int
    cached_tokens: int = 0
    output_tokens: int = 0
    recomputed_tokens: int = 0
    queue_seconds: float = 0.0
    first_token_seconds: float = 0.0
    decode_seconds: float = 0.0
    total_seconds: float = 0.0
    worker_id: str = ""
    stage: str = ""
