"""What the offline API returns: the field names people know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import PagewireError, ServerError
from .results import Generation, Output, Timings, TokenLogprob
from .sampling_params import SamplingParams

FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprob:
    """Log probability (natural) and rank (from 1) of one token id."""

    logprob: float
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One output. ``finish_reason``: stop, length, cancelled, deadline or failed; ``stop_reason``: the stop string or
    stop token id that ended it, None for an end-of-sequence token."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str
    stop_reason: str | int | None = None
    logprobs: list[dict[int, Logprob]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """What became of one prompt. With an ``error`` its outputs are empty and ``failed``."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int = 0
    metrics: Timings | None = None
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    """One entry a token of the prompt, the first None, if asked for."""
    error: PagewireError | TypeError | None = None
    finished: bool = True


def request_output(
    request_id: str,
    text: str | None,
    prompt: Any,
    params: SamplingParams | None,
    outcome: Generation | ServerError,
    token_ids: list[int] | None = None,
) -> RequestOutput:
    """The value for what a request ended with. ``token_ids`` are its prompt's if the answer does not tell them."""
    if isinstance(outcome, ServerError):
        return failed_output(request_id, text, prompt, outcome)
    stop_ids = () if params is None else params.stop_token_ids or ()
    return RequestOutput(
        request_id=request_id,
        prompt=text,
        prompt_token_ids=list(outcome.summary.prompt_token_ids) or token_ids or [],
        outputs=[_completion(output, stop_ids) for output in outcome.outputs],
        num_cached_tokens=outcome.usage.cached_tokens,
        metrics=outcome.summary.timings,
        prompt_logprobs=_prompt_positions(outcome),
    )


def failed_output(request_id: str, text: str | None, prompt: Any, error: PagewireError | TypeError) -> RequestOutput:
    """The value for a request that failed: one empty output, so that loops over outputs go on."""
    is_ids = isinstance(prompt, Sequence) and not isinstance(prompt, str) and not any(map(_is_message, prompt))
    return RequestOutput(
        request_id=request_id,
        prompt=text,
        prompt_token_ids=list(prompt) if is_ids else [],
        outputs=[CompletionOutput(index=0, text="", token_ids=[], finish_reason=FAILED)],
        error=error,
    )


def _is_message(item: Any) -> bool:
    return isinstance(item, Mapping) or hasattr(item, "role")


def _completion(output: Output, stop_token_ids: Sequence[int]) -> CompletionOutput:
    stop_reason = output.stop_reason
    if isinstance(stop_reason, int) and stop_reason not in stop_token_ids:
        stop_reason = None
    return CompletionOutput(
        index=output.index,
        text=output.text,
        token_ids=list(output.token_ids),
        finish_reason=output.finish_reason.value,
        stop_reason=stop_reason,
        logprobs=None if output.logprobs is None else [_position(entries) for entries in output.logprobs],
    )


def _prompt_positions(outcome: Generation) -> list[dict[int, Logprob] | None] | None:
    if outcome.prompt_logprobs is None:
        return None
    return [_position(entries) if entries else None for entries in outcome.prompt_logprobs]


def _position(entries: Sequence[TokenLogprob]) -> dict[int, Logprob]:
    return {entry.token_id: Logprob(logprob=entry.logprob, rank=entry.rank) for entry in entries}
