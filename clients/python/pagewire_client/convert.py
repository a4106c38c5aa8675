"""From protobuf messages to the values of ``results``.

Invariant: a message of a newer server never breaks a client: unknown events are left out, an unknown finish reason
reads as FAILED, an unknown page status as UNKNOWN.
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import fields

from pagewire.v1 import admin_pb2, cache_pb2, generation_pb2, model_pb2

from . import results

_FINISH_REASONS = {
    generation_pb2.FINISH_REASON_STOP: results.FinishReason.STOP,
    generation_pb2.FINISH_REASON_LENGTH: results.FinishReason.LENGTH,
    generation_pb2.FINISH_REASON_CANCELLED: results.FinishReason.CANCELLED,
    generation_pb2.FINISH_REASON_DEADLINE: results.FinishReason.DEADLINE,
}
_PAGE_STATUSES = {
    cache_pb2.PAGE_STATUS_HIT: results.PageStatus.HIT,
    cache_pb2.PAGE_STATUS_COLD: results.PageStatus.COLD,
    cache_pb2.PAGE_STATUS_EVICTED: results.PageStatus.EVICTED,
    cache_pb2.PAGE_STATUS_SALTED: results.PageStatus.SALTED,
    cache_pb2.PAGE_STATUS_DIVERGED: results.PageStatus.DIVERGED,
    cache_pb2.PAGE_STATUS_TAIL_NOT_FULL: results.PageStatus.TAIL_NOT_FULL,
}


def event(message: generation_pb2.GenerateResponse) -> results.Event | None:
    """The event of one message; None for one this client does not know."""
    kind = message.WhichOneof("event")
    if kind == "delta":
        return _delta(message.delta)
    if kind == "finished":
        return finished(message.finished)
    if kind == "summary":
        return summary(message.summary)
    if kind == "prompt_logprobs":
        part = message.prompt_logprobs
        return results.PromptLogprobs(first_position=part.first_position, logprobs=logprobs(part.logprobs))
    return _progress(kind, message)


def _progress(kind: str | None, message: generation_pb2.GenerateResponse) -> results.Event | None:
    if kind == "queued":
        return results.Queued(position=message.queued.position, reason=message.queued.reason)
    if kind == "admitted":
        return results.Admitted(cached_tokens=message.admitted.cached_tokens, worker_id=message.admitted.worker_id)
    if kind == "prefill":
        progress = message.prefill
        return results.Prefill(computed_tokens=progress.computed_tokens, total_tokens=progress.total_tokens)
    if kind == "preempted":
        return results.Preempted(reason=message.preempted.reason)
    if kind == "heartbeat":
        return results.Heartbeat()
    return None


def _delta(message: generation_pb2.Delta) -> results.Delta:
    return results.Delta(
        index=message.index,
        text=message.text,
        token_ids=tuple(message.token_ids),
        logprobs=logprobs(message.logprobs) if message.HasField("logprobs") else None,
        num_output_tokens=message.num_output_tokens,
    )


def logprobs(message: generation_pb2.Logprobs) -> tuple[tuple[results.TokenLogprob, ...], ...]:
    """One tuple a token, from columns of ``width`` entries a token. Fillers and a ragged tail are left out."""
    width = message.width
    if width == 0:
        return ()
    token_ids, ranks, values = array("i"), array("i"), array("f")
    for column, data in ((token_ids, message.token_ids), (ranks, message.ranks), (values, message.logprobs)):
        column.frombytes(data[: len(data) // column.itemsize * column.itemsize])
        if sys.byteorder == "big":
            column.byteswap()
    entries = [
        results.TokenLogprob(token_id=token_id, logprob=value, rank=rank)
        for token_id, value, rank in zip(token_ids, values, ranks, strict=False)
    ]
    starts = range(0, len(entries) - width + 1, width)
    return tuple(tuple(entry for entry in entries[i : i + width] if entry.token_id >= 0) for i in starts)


def finished(message: generation_pb2.Finished) -> results.Finished:
    """How an output ended."""
    matched = message.WhichOneof("matched")
    return results.Finished(
        index=message.index,
        finish_reason=_FINISH_REASONS.get(message.finish_reason, results.FinishReason.FAILED),
        stop_reason=getattr(message, matched) if matched else None,
    )


def summary(message: generation_pb2.Summary) -> results.Summary:
    """Usage, timings, seed and worker."""
    usage, timings = message.usage, message.timings
    return results.Summary(
        usage=results.Usage(
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            recomputed_tokens=usage.recomputed_tokens,
        ),
        timings=results.Timings(
            queue_seconds=timings.queue_seconds,
            first_token_seconds=timings.first_token_seconds,
            decode_seconds=timings.decode_seconds,
            total_seconds=timings.total_seconds,
        ),
        seed=message.seed,
        worker_id=message.worker_id,
        prompt_token_ids=tuple(message.prompt_token_ids),
    )


def generation(message: generation_pb2.GenerateOnceResponse) -> results.Generation:
    """All outputs of GenerateOnce."""
    return results.Generation(
        request_id=message.request_id,
        outputs=tuple(_output(output) for output in sorted(message.outputs, key=lambda output: output.index)),
        summary=summary(message.summary),
        prompt_logprobs=((), *logprobs(message.prompt_logprobs)) if message.HasField("prompt_logprobs") else None,
    )


def _output(message: generation_pb2.Output) -> results.Output:
    end = finished(message.finished)
    return results.Output(
        index=message.index,
        text=message.text,
        token_ids=tuple(message.token_ids),
        finish_reason=end.finish_reason,
        stop_reason=end.stop_reason,
        logprobs=logprobs(message.logprobs) if message.HasField("logprobs") else None,
    )


def model(message: model_pb2.Model) -> results.Model:
    """A served model."""
    values = {f.name: getattr(message, f.name) for f in fields(results.Model)}
    return results.Model(**{**values, "capabilities": tuple(message.capabilities)})


def load(message: admin_pb2.GetLoadResponse) -> results.Load:
    """Counts of a server."""
    counts = {field.name: getattr(message, field.name) for field in fields(results.Load)}
    told = {name: _distribution(counts[name]) for name in ("first_token_seconds", "inter_token_seconds")}
    return results.Load(**{**counts, **told})


def _distribution(message: admin_pb2.Distribution) -> results.Distribution:
    return results.Distribution(bounds=tuple(message.bounds), counts=tuple(message.counts), sum=message.sum)


def pages(message: cache_pb2.ExplainPrefixResponse) -> tuple[results.PageExplanation, ...]:
    """Why the pages of a prompt are cached or not."""
    return tuple(
        results.PageExplanation(
            status=_PAGE_STATUSES.get(page.status, results.PageStatus.UNKNOWN),
            diverged_at=page.diverged_at if page.HasField("diverged_at") else None,
        )
        for page in message.pages
    )


def pin(message: cache_pb2.Pin) -> results.Pin:
    """A pin."""
    return results.Pin(pin_id=message.pin_id, num_pages=message.num_pages, ttl_seconds=message.ttl_ms / 1000)


def quote(message: generation_pb2.QuoteResponse) -> results.Quote:
    """What a request would meet."""
    return results.Quote(
        prompt_tokens=message.prompt_tokens,
        cached_tokens=message.cached_tokens,
        queue_seconds=message.queue_seconds if message.HasField("queue_seconds") else None,
        first_token_seconds=message.first_token_seconds if message.HasField("first_token_seconds") else None,
    )


def decisions(message: admin_pb2.ExplainRequestResponse) -> tuple[results.Decision, ...]:
    """What was decided about a request."""
    return tuple(
        results.Decision(at_seconds=each.at_seconds, step_id=each.step_id, text=each.text) for each in message.decisions
    )
