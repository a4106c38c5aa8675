"""What calls return: frozen values, free of protobuf.

A stream yields ``Event`` values: any number of ``Delta`` (and, if asked for, progress events), one ``Finished`` for
each output, one ``Summary``, last. ``Generation`` is the same, joined.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class FinishReason(Enum):
    """Why an output ended; the value is what people write in logs and JSON."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    FAILED = "failed"


class HealthStatus(Enum):
    """grpc.health.v1 serving status, by its wire number."""

    UNKNOWN = 0
    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One message of a conversation; a dict with the same two keys does as well."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """Log probability (natural) and rank (from 1) of one token id at one position."""

    token_id: int
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """The request waits behind ``position`` others."""

    position: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The request was placed on a worker and found ``cached_tokens`` of its prompt there."""

    cached_tokens: int
    worker_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """``computed_tokens`` of ``total_tokens`` prompt tokens are computed."""

    computed_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempted:
    """The request lost its pages and will be recomputed; nothing already sent changes."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The request is alive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """New text and token ids of output ``index``; ``logprobs`` has one tuple a token, if asked for.

    ``num_output_tokens`` counts the output's tokens up to here, those of earlier deltas included.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[tuple[TokenLogprob, ...], ...] | None = None
    num_output_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Output ``index`` ended. ``stop_reason``: the stop string or stop token id that was met, else None."""

    index: int
    finish_reason: FinishReason
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens a request used."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    recomputed_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Durations in seconds, from arrival; ``decode_seconds`` runs from the first token to the last."""

    queue_seconds: float
    first_token_seconds: float
    decode_seconds: float
    total_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The end of a request. ``prompt_token_ids`` is empty unless it was asked for."""

    usage: Usage
    timings: Timings
    seed: int
    worker_id: str
    prompt_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLogprobs:
    """Log probabilities of consecutive prompt positions, one tuple a position; they come before the first delta."""

    first_position: int
    logprobs: tuple[tuple[TokenLogprob, ...], ...]


Event = Queued | Admitted | Prefill | Preempted | Heartbeat | PromptLogprobs | Delta | Finished | Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One whole output. ``token_ids`` is empty unless they were asked for."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    logprobs: tuple[tuple[TokenLogprob, ...], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Everything a request produced; ``outputs`` are in order of their index.

    ``prompt_logprobs`` has one tuple for each token of the prompt, the first one empty, if they were asked for.
    """

    request_id: str
    outputs: tuple[Output, ...]
    summary: Summary
    prompt_logprobs: tuple[tuple[TokenLogprob, ...], ...] | None = None

    @property
    def text(self) -> str:
        """Text of the first output."""
        return self.outputs[0].text

    @property
    def usage(self) -> Usage:
        """Tokens the request used."""
        return self.summary.usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A served model; lengths in tokens."""

    name: str
    architecture: str
    max_model_len: int
    vocab_size: int
    dtype: str
    quantization: str
    page_size: int
    capabilities: tuple[str, ...]
    server_version: str
    schema_revision: str
    digest: str
    max_num_seqs: int
    max_request_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """How often values fell between two bounds: ``counts[i]`` up to ``bounds[i]``, the last count without a bound."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests, pages and tokens of a server, now and since its start.

    Of the prompt pages asked for in the prefix cache those that were neither hit nor evicted, diverged or salted were
    cold; docs/api.md says what each means.
    """

    num_requests_running: int
    num_requests_waiting: int
    num_workers: int
    num_pages: int
    num_free_pages: int
    num_held_pages: int
    num_cached_pages: int
    num_preemptions: int
    num_computed_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_wasted_tokens: int
    num_steps: int
    num_link_faults: int
    page_waste_ratio: float
    num_asked_pages: int
    num_hit_pages: int
    num_evicted_pages: int
    num_diverged_pages: int
    num_salted_pages: int
    num_tail_pages: int
    first_token_seconds: Distribution
    """From requests' arrivals to their first tokens."""
    inter_token_seconds: Distribution
    """From tokens to the next ones of their outputs."""


class PageStatus(Enum):
    """Whether a page of a prompt is cached, and why not."""

    HIT = "hit"
    COLD = "cold"
    EVICTED = "evicted"
    SALTED = "salted"
    DIVERGED = "diverged"
    TAIL_NOT_FULL = "tail not full"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageExplanation:
    """One page of a prompt. ``diverged_at``: the first token that differs, if it diverged."""

    status: PageStatus
    diverged_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A prefix that is kept cached: the pages held now, on the worker that has most of them, and the time left."""

    pin_id: str
    num_pages: int
    ttl_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """What a request would meet now. Times until it begins and until its first token; None: nothing was measured."""

    prompt_tokens: int
    cached_tokens: int
    queue_seconds: float | None
    first_token_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One decision of the scheduler about a request: when, in which step (0: none), what and why."""

    at_seconds: float
    step_id: int
    text: str
