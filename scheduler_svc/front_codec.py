"""What travels between scheduler and fronts, as bytes: frames to plain values and back.

Reading is strict: bytes that are no frame, or columns that do not fit one another, raise ``FrameError`` and nothing of
the frame is used. Writing trusts its caller. Kinds of events to fronts are made by one function each, and written when
their frame is: until then an event is plain fields.
"""

import re
from array import array
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, cast

from google.protobuf.message import DecodeError
from pagewire.internal.v1 import front_pb2, worker_pb2

from scheduler_svc import columns
from scheduler_svc.columns import ColumnError, read_hashes, read_ints
from scheduler_svc.core.types import (
    Admitted,
    Ended,
    EndReason,
    PageHash,
    Preempted,
    PrefillProgress,
    PrefixQuestion,
    SamplingParams,
)
from scheduler_svc.messages import (
    Code,
    FrameError,
    FrontCancel,
    FrontFigures,
    FrontMessage,
    FrontResume,
    FrontScanned,
    FrontStop,
    InvalidSubmission,
    LimitChanges,
    PinQuestion,
    Query,
    RequestSummary,
    Service,
    Submission,
)
from scheduler_svc.output_key import MAX_FRONT_KEY, MAX_OUTPUTS

FrontEvent = dict[str, Any]
"""Fields of a RequestEvent message."""
FrontLogprobs = Any
"""An OutputLogprobs message."""
_MAX_PIN_ID, _MAX_PIN_MS = 256, 7 * 24 * 3600 * 1000
_REASONS = {reason: front_pb2.EndReason.Value(f"END_REASON_{reason.name}") for reason in EndReason}
_CODES = {int(code): code for code in Code}
_MAX_KINDS = 64
_REASON = re.compile(r"[A-Z_]{1,40}")
_MAX_INT = 2**31 - 1


# From fronts.


def read_front_frame(content: bytes) -> FrontMessage:
    """What a front says; a request of it that cannot be taken does not spoil the others.

    Raises: FrameError.
    """
    try:
        frame = front_pb2.FrontFrame.FromString(content)
    except DecodeError as error:
        raise FrameError(str(error)) from error
    if not frame.front_id:
        raise FrameError("a frame without a front_id")
    hello = frame.hello if frame.HasField("hello") else None
    return FrontMessage(
        session=frame.session,
        front_id=frame.front_id,
        protocol_version=None if hello is None else hello.protocol_version,
        pid=0 if hello is None else hello.pid,
        submissions=[_submission(submit) for submit in frame.submits],
        cancels=[_cancel(each) for each in frame.cancels],
        stops=[
            FrontStop(key=each.key, index=each.index, num_output_tokens=each.num_output_tokens) for each in frame.stops
        ],
        scanned=[FrontScanned(key=each.key, index=each.index) for each in frame.scanned],
        queries=[_query(query) for query in frame.queries],
        resumes=[FrontResume(key=each.key, tenant=each.tenant, request_id=each.request_id) for each in frame.resumes],
        figures=_figures(frame.figures) if frame.HasField("figures") else None,
    )


def _cancel(cancel: Any) -> FrontCancel:
    code = _CODES.get(cancel.code) if cancel.code else None
    return FrontCancel(key=cancel.key, deadline=cancel.deadline, broken=cancel.broken, code=code)


def _figures(figures: Any) -> FrontFigures:
    """Raises: FrameError."""
    if len(figures.refused) > _MAX_KINDS:
        raise FrameError(f"requests refused for {len(figures.refused)} reasons")
    try:
        stall_counts = columns.read_longs(figures.stall_counts, "stall_counts")
    except ColumnError as error:
        raise FrameError(str(error)) from error
    return FrontFigures(
        refused={
            (
                _CODES.get(each.code, Code.UNKNOWN),
                each.reason if _REASON.fullmatch(each.reason) else "OTHER",
            ): each.count
            for each in figures.refused
        },
        stall_counts=stall_counts,
        stall_seconds=figures.stall_seconds,
    )


def _submission(submit: Any) -> Submission | InvalidSubmission:
    n, max_tokens, grace_ms = submit.n, submit.max_tokens, submit.resume_grace_ms
    temperature, top_p, min_p = submit.temperature, submit.top_p, submit.min_p
    try:
        prompt = read_ints(submit.prompt_token_ids, "prompt_token_ids")
        page_hashes = read_hashes(submit.page_hashes, "page_hashes")
        stop_token_ids = read_ints(submit.stop_token_ids, "stop_token_ids")
    except ColumnError as error:
        return _invalid(submit, "prompt", str(error))
    if submit.key > MAX_FRONT_KEY:
        return _invalid(submit, "key", f"must be at most {MAX_FRONT_KEY}")
    if not 1 <= n <= MAX_OUTPUTS:
        return _invalid(submit, "output.n", f"must be in 1..{MAX_OUTPUTS}, is {n}")
    if not max_tokens:
        return _invalid(submit, "stop.max_tokens", "must be at least 1")
    if not (0 <= temperature <= 100 and 0 < top_p <= 1 and 0 <= min_p <= 1):
        return _invalid(submit, "sampling", "temperature, top_p or min_p is out of its range")
    return Submission(
        key=submit.key,
        request_id=submit.request_id,
        tenant=submit.tenant,
        prompt=prompt,
        page_hashes=cast("list[PageHash]", page_hashes),
        root_hash=submit.root_hash,
        n=n,
        max_tokens=min(max_tokens, _MAX_INT),
        stop_token_ids=frozenset(stop_token_ids),
        hold_endings=submit.hold_endings,
        deadline_seconds=submit.deadline_ms / 1e3 if submit.HasField("deadline_ms") else None,
        time_limit_seconds=submit.time_limit_ms / 1e3 if submit.HasField("time_limit_ms") else None,
        priority=submit.priority,
        sampling=SamplingParams(
            temperature=temperature,
            top_p=top_p,
            top_k=min(submit.top_k, _MAX_INT),
            min_p=min_p,
            seed=submit.seed,
            options=submit.options.SerializeToString() if submit.HasField("options") else b"",
            grammar=submit.grammar.text if submit.HasField("grammar") else "",
        ),
        progress_events=submit.progress_events,
        resume_grace_seconds=grace_ms / 1e3,
        content_digest=submit.content_digest,
        max_tenant_requests=submit.max_tenant_requests,
        tenant_requests_per_minute=submit.tenant_requests_per_minute,
        resume_record=_resume_record(submit) if grace_ms else b"",
    )


def _invalid(submit: Any, field: str, message: str) -> InvalidSubmission:
    return InvalidSubmission(
        key=submit.key, code=Code.INVALID_ARGUMENT, reason="INVALID_FIELD", field=field, message=message
    )


def _resume_record(submit: Any) -> bytes:
    """The submission without what only its first run needs."""
    record = front_pb2.Submit()
    record.CopyFrom(submit)
    record.ClearField("page_hashes")
    return bytes(record.SerializeToString())


def _query(query: Any) -> Query:
    kind = query.WhichOneof("question") or ""
    return Query(
        query_id=query.query_id,
        tenant=query.tenant,
        kind=kind,
        request_id=getattr(query, kind) if kind.endswith("_request_id") else "",
        milliseconds=query.drain_ms if kind == "drain_ms" else None,
        worker_id=query.remove_worker_id,
        limits=_limit_changes(query.update_limits) if kind == "update_limits" else None,
        prefix=_prefix(query) if kind == "explain_prefix" else None,
        submission=_submission(query.quote) if kind == "quote" else None,
        pin=_pin(query.pin_prefix) if kind == "pin_prefix" else None,
        unpin_id=query.unpin_id,
    )


def _limit_changes(asked: Any) -> LimitChanges:
    return LimitChanges(**{f.name: _given(asked, f.name) for f in fields(LimitChanges)})


def _given(message: Any, field: str) -> Any:
    return getattr(message, field) if message.HasField(field) else None


def _prefix(query: Any) -> PrefixQuestion | None:
    asked = query.explain_prefix
    try:
        return PrefixQuestion(
            tenant=query.tenant,
            prompt=read_ints(asked.prompt_token_ids, "prompt_token_ids"),
            page_hashes=[PageHash(each) for each in read_hashes(asked.page_hashes, "page_hashes")],
            root_hash=asked.root_hash,
            unsalted_root=asked.unsalted_root,
        )
    except ColumnError:
        return None


def _pin(asked: Any) -> PinQuestion | None:
    try:
        page_hashes = [PageHash(each) for each in read_hashes(asked.page_hashes, "page_hashes")]
    except ColumnError:
        return None
    if not 0 < len(asked.pin_id) <= _MAX_PIN_ID or not 0 < asked.ttl_ms <= _MAX_PIN_MS:
        return None
    return PinQuestion(pin_id=asked.pin_id, seconds=asked.ttl_ms / 1e3, page_hashes=page_hashes)


# To fronts.


def front_frame(
    session: int,
    *,
    service: Service | None = None,
    keys: "array[int] | None" = None,
    token_ids: "array[int] | None" = None,
    logprobs: Sequence[FrontLogprobs] = (),
    events: Sequence[FrontEvent] = (),
    replies: Sequence[Any] = (),
    refusal: str | None = None,
) -> bytes:
    """One frame; ``keys`` name the output of each new token. A frame of nothing at all is a heartbeat."""
    frame = front_pb2.SchedulerToFrontFrame(
        session=session, logprobs=logprobs, events=events, replies=replies, refusal=refusal
    )
    if service is not None:
        frame.service.CopyFrom(_service(service))
    if keys and token_ids:
        tokens = frame.tokens
        tokens.keys, tokens.token_ids = columns.longs(keys), columns.ints(token_ids)
    frame.heartbeat = not (keys or events or replies or refusal is not None or service is not None)
    return frame.SerializeToString()


def output_logprobs(key: int, content: bytes) -> FrontLogprobs:
    """Log probabilities of an output as a worker gave them; ``key`` as tokens have it."""
    return front_pb2.OutputLogprobs(key=key, logprobs=worker_pb2.RowLogprobs.FromString(content))


def _service(service: Service) -> Any:
    message = front_pb2.Service(
        num_workers=service.num_workers,
        page_size=service.page_size,
        hash_key=service.hash_key,
        max_request_tokens=service.max_request_tokens,
        max_num_seqs=service.max_num_seqs,
        leaving=service.leaving,
        draining=service.draining,
        drain_ms=service.drain_ms,
        stalled=service.stalled,
        retry_ms=service.retry_ms,
    )
    if service.model_card:
        message.model_card.ParseFromString(service.model_card)
    return message


def rejected(
    key: int, code: Code, reason: str, message: str, field: str = "", retry_ms: int = 0, num_waiting: int = 0
) -> FrontEvent:
    body = {"code": code, "reason": reason, "message": message, "field": field, "retry_ms": retry_ms}
    return {"key": key, "rejected": {**body, "num_waiting": num_waiting}}


def resumed(key: int, record: bytes) -> FrontEvent:
    """``record`` is the submission's."""
    return {"key": key, "resumed": {"submit": front_pb2.Submit.FromString(record)}}


def queued(key: int, position: int, reason: str) -> FrontEvent:
    return {"key": key, "queued": {"position": position, "reason": reason}}


def progress(key: int, event: Admitted | PrefillProgress | Preempted) -> FrontEvent:
    if isinstance(event, Admitted):
        return {"key": key, "admitted": {"cached_tokens": event.num_cached_tokens, "worker_id": event.worker_id}}
    if isinstance(event, Preempted):
        return {"key": key, "preempted": {"reason": event.reason}}
    computed, total = event.num_computed_tokens, event.num_prompt_tokens
    return {"key": key, "prefill": {"computed_tokens": computed, "total_tokens": total}}


def held(key: int, index: int, num_output_tokens: int) -> FrontEvent:
    return {"key": key, "held": {"index": index, "num_output_tokens": num_output_tokens}}


def output_ended(key: int, index: int, ended: Ended, elsewhere: bool) -> FrontEvent:
    body = {
        "index": index,
        "reason": _reason(ended.reason, elsewhere),
        "num_output_tokens": ended.num_output_tokens,
        "stop_token_id": ended.stop_token_id or 0,
    }
    return {"key": key, "output_ended": body}


def _reason(reason: EndReason, elsewhere: bool) -> int:
    if elsewhere and reason is EndReason.CANCELLED:
        return front_pb2.END_REASON_CANCELLED_ELSEWHERE
    return _REASONS[reason]


def request_ended(key: int, summary: RequestSummary, retry_ms: int) -> FrontEvent:
    body = {
        "prompt_tokens": summary.prompt_tokens,
        "cached_tokens": summary.cached_tokens,
        "output_tokens": summary.output_tokens,
        "recomputed_tokens": summary.recomputed_tokens,
        "queue_seconds": summary.queue_seconds,
        "first_token_seconds": summary.first_token_seconds,
        "decode_seconds": summary.decode_seconds,
        "total_seconds": summary.total_seconds,
        "worker_id": summary.worker_id,
        "retry_ms": retry_ms,
        "stage": summary.stage,
    }
    if summary.reason is not None:
        body["reason"] = _reason(summary.reason, summary.elsewhere)
    return {"key": key, "ended": body}


def request_failed(key: int, summary: RequestSummary) -> FrontEvent:
    """The scheduler itself failed on the request."""
    return request_ended(key, replace(summary, reason=EndReason.STEP_FAILED, elsewhere=False), 0)
