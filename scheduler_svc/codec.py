"""The only place that knows how frames look: bytes to plain values and back, for the links to workers and fronts.

Reading is strict: bytes that are no frame, or columns that do not fit one another, raise ``FrameError`` and nothing of
the frame is used. Writing trusts its caller. Kinds of events to fronts are made by one function each, and written when
their frame is: until then an event is plain fields.
"""

import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, cast

from google.protobuf.message import DecodeError
from pagewire.internal.v1 import front_pb2, worker_pb2
from pagewire.v1 import admin_pb2, cache_pb2, generation_pb2

from scheduler_svc import columns
from scheduler_svc.columns import ColumnError, read_hashes, read_ints
from scheduler_svc.core.types import (
    NO_PAGE,
    Admitted,
    BatchPlan,
    Counts,
    Ended,
    EndReason,
    LiveLimits,
    NewRow,
    PageExplanation,
    PageHash,
    PageId,
    PageNames,
    Pin,
    Preempted,
    PrefillProgress,
    PrefixQuestion,
    Published,
    Quote,
    SamplingParams,
    SchedulingPolicy,
    WorkerId,
)
from scheduler_svc.histogram import Histogram
from scheduler_svc.messages import (
    STATUS_OF_END,
    Code,
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
    WorkerBody,
    WorkerGoodbye,
    WorkerHeartbeat,
    WorkerHello,
    WorkerMessage,
    WorkerRefusal,
    WorkerResult,
)
from scheduler_svc.output_key import MAX_FRONT_KEY, MAX_OUTPUTS

FrontEvent = dict[str, Any]
"""Fields of a RequestEvent message."""
FrontLogprobs = Any
"""An OutputLogprobs message."""
_MAX_PIN_ID, _MAX_PIN_MS = 256, 7 * 24 * 3600 * 1000

_REASONS = {reason: front_pb2.EndReason.Value(f"END_REASON_{reason.name}") for reason in EndReason}

_FINISH_REASONS = {
    EndReason.STOP_TOKEN: generation_pb2.FINISH_REASON_STOP,
    EndReason.STOP_STRING: generation_pb2.FINISH_REASON_STOP,
    EndReason.LENGTH: generation_pb2.FINISH_REASON_LENGTH,
    EndReason.NO_PAGES: generation_pb2.FINISH_REASON_LENGTH,
    EndReason.CANCELLED: generation_pb2.FINISH_REASON_CANCELLED,
    EndReason.TIME_LIMIT: generation_pb2.FINISH_REASON_DEADLINE,
    EndReason.DEADLINE: generation_pb2.FINISH_REASON_DEADLINE,
}

_CODES = {int(code): code for code in Code}
_MAX_KINDS = 64
_REASON = re.compile(r"[A-Z_]{1,40}")


_ROW_COLUMNS = ("releases", "append_rows", "chunk_rows", "idle_rows")
_INT_COLUMNS = ("append_pages", "copy_sources", "copy_destinations", "chunk_tokens", "evicted_pages")
"""Columns of a plan that are written as they are."""
_MAX_INT = 2**31 - 1


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


def read_worker_frame(content: bytes) -> WorkerMessage:
    """What a worker says.

    Raises: FrameError.
    """
    try:
        frame = worker_pb2.WorkerFrame.FromString(content)
        body = _worker_body(frame)
    except (DecodeError, ColumnError) as error:
        raise FrameError(str(error)) from error
    return WorkerMessage(session=frame.session, epoch=frame.epoch, step_id=frame.step_id, body=body)


def _worker_body(frame: Any) -> WorkerBody:
    kind = frame.WhichOneof("body")
    if kind == "result":
        return _result(frame.result)
    if kind == "heartbeat":
        return WorkerHeartbeat(last_received_step_id=frame.heartbeat.last_received_step_id)
    if kind == "hello":
        return _hello(frame.hello)
    if kind == "goodbye":
        return WorkerGoodbye(reason=frame.goodbye.reason)
    raise FrameError("a frame without a body")


def _hello(hello: Any) -> WorkerHello:
    card = hello.model_card
    return WorkerHello(
        protocol_version=hello.protocol_version,
        device=hello.device,
        page_size=hello.page_size,
        num_pages=hello.num_pages,
        max_num_seqs=hello.max_num_seqs,
        max_num_batched_tokens=hello.max_num_batched_tokens,
        max_model_len=hello.max_model_len,
        num_ranks=hello.num_ranks,
        rank=hello.rank,
        pid=hello.pid,
        version=hello.version,
        model_name=card.name,
        digest=card.digest,
        vocab_size=card.vocab_size,
        model_card=card.SerializeToString(),
        cache_fingerprint=hello.cache_fingerprint,
        inventory=_inventory(hello.inventory),
        inventory_identity=hello.inventory.identity,
    )


def _inventory(inventory: Any) -> list[Published]:
    pages = read_ints(inventory.pages, "pages")
    hashes, parents = read_hashes(inventory.hashes, "hashes"), read_hashes(inventory.parents, "parents")
    columns.equal_lengths(pages=pages, hashes=hashes, parents=parents)
    return [
        Published(page=PageId(page), hash=PageHash(name), parent=PageHash(parent))
        for page, name, parent in zip(pages, hashes, parents, strict=True)
    ]


def _result(result: Any) -> WorkerResult | WorkerRefusal:
    if result.HasField("refusal"):
        return WorkerRefusal(reason=result.refusal)
    rows, token_ids, statuses = (
        read_ints(result.rows, "rows"),
        read_ints(result.token_ids, "token_ids"),
        result.statuses,
    )
    if not len(rows) == len(token_ids) == len(statuses or rows):
        raise ColumnError(f"{len(rows)} rows, {len(token_ids)} token ids, {len(statuses)} statuses")
    return WorkerResult(
        rows=rows,
        token_ids=token_ids,
        statuses=statuses,
        failure=result.failure if result.HasField("failure") else None,
        step_seconds=result.step_us / 1e6,
        logprobs=tuple((each.row, each.SerializeToString()) for each in result.logprobs),
    )


# To workers.


def welcome(
    session: int,
    epoch: int,
    worker_id: str,
    first_step_id: int,
    heartbeat_ms: int,
    inventory_accepted: bool = False,
    cache_identity: bytes = b"",
) -> bytes:
    body = worker_pb2.Welcome(
        worker_id=worker_id,
        first_step_id=first_step_id,
        heartbeat_ms=heartbeat_ms,
        inventory_accepted=inventory_accepted,
        cache_identity=cache_identity,
    )
    return _worker_frame(session, epoch, welcome=body)


def refusal(session: int, epoch: int, reason: str, retryable: bool) -> bytes:
    return _worker_frame(session, epoch, refusal=worker_pb2.Refusal(reason=reason, retryable=retryable))


def resync(session: int, epoch: int, reason: str) -> bytes:
    return _worker_frame(session, epoch, resync=worker_pb2.Resync(reason=reason))


def goodbye(session: int, epoch: int, reason: str, *, for_good: bool = False) -> bytes:
    return _worker_frame(session, epoch, goodbye=worker_pb2.Goodbye(reason=reason, for_good=for_good))


def heartbeat(session: int, epoch: int) -> bytes:
    return _worker_frame(session, epoch, heartbeat=worker_pb2.Heartbeat())


def names(session: int, epoch: int, told: PageNames) -> bytes:
    message = worker_pb2.PageNames(evicted_pages=columns.ints(told.evicted_pages))
    _write_published(message, told.published, told.parent_pages)
    return _worker_frame(session, epoch, names=message)


def plan(session: int, epoch: int, batch: BatchPlan) -> bytes:
    """The frame of a plan; columns that are empty stay unset."""
    frame = worker_pb2.SchedulerFrame(session=session, epoch=epoch, step_id=batch.step_id)
    message = frame.plan
    message.num_scheduled_rows = batch.num_scheduled_rows
    message.num_scheduled_tokens = batch.num_scheduled_tokens
    for name in _ROW_COLUMNS:
        column = getattr(batch, name)
        if column:
            setattr(message, name, columns.rows(column))
    for name in _INT_COLUMNS:
        column = getattr(batch, name)
        if column:
            setattr(message, name, columns.ints(column))
    if batch.new_rows:
        _write_new_rows(message.new_rows, batch.new_rows)
        grammars = [row.sampling.grammar for row in batch.new_rows]
        if any(grammars):
            _add_grammars(message, grammars)
    if batch.groups:
        message.group_ids = columns.ints([group.group_id for group in batch.groups])
        message.group_pages = columns.ints([group.num_pages for group in batch.groups])
        message.group_sizes = columns.ints([len(group.rows) for group in batch.groups])
        message.group_rows = columns.rows([row for group in batch.groups for row in group.rows])
    if batch.published:
        _write_published(message, batch.published, batch.parent_pages)
    return frame.SerializeToString()


def _write_published(message: Any, published: Sequence[Published], parent_pages: Sequence[PageId]) -> None:
    message.published_pages = columns.ints([each.page for each in published])
    message.published_hashes = b"".join([each.hash for each in published])
    message.published_parents = columns.ints(parent_pages)
    if NO_PAGE in parent_pages:
        pairs = zip(published, parent_pages, strict=True)
        message.parent_hashes = b"".join([each.parent for each, page in pairs if page == NO_PAGE])


def _worker_frame(session: int, epoch: int, **body: Any) -> bytes:
    return worker_pb2.SchedulerFrame(session=session, epoch=epoch, **body).SerializeToString()


def _write_new_rows(message: Any, rows: Sequence[NewRow]) -> None:
    sampling = [row.sampling for row in rows]
    message.rows = columns.rows([row.row for row in rows])
    message.num_prompt_tokens = columns.ints([row.num_prompt_tokens for row in rows])
    message.num_token_ids = columns.ints([len(row.token_ids) for row in rows])
    message.token_ids = columns.joined_ints([row.token_ids for row in rows])
    message.num_cached_tokens = columns.ints([row.num_cached_tokens for row in rows])
    message.output_indices = columns.ints([each.output_index for each in sampling])
    message.seeds = columns.longs([each.seed for each in sampling])
    message.temperatures = columns.floats([each.temperature for each in sampling])
    message.top_ps = columns.floats([each.top_p for each in sampling])
    message.top_ks = columns.ints([each.top_k for each in sampling])
    message.min_ps = columns.floats([each.min_p for each in sampling])
    for place, each in enumerate(sampling):
        if each.options:
            message.options.append(_row_options(place, each.options))


def _add_grammars(message: Any, texts: Sequence[str]) -> None:
    """The grammars of new rows, each once; outputs of one request have the same."""
    ids = {text: grammar_id for grammar_id, text in enumerate(dict.fromkeys(text for text in texts if text))}
    message.grammars.extend(worker_pb2.Grammar(grammar_id=ids[text], text=text) for text in ids)
    message.new_rows.grammar_ids = columns.ints([ids.get(text, -1) for text in texts])


def _row_options(position: int, content: bytes) -> Any:
    options = worker_pb2.RowOptions.FromString(content)
    options.position = position
    return options


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


# Answers to queries.


def reply(
    query_id: int,
    response: bytes = b"",
    code: Code = Code.OK,
    message: str = "",
    field: str = "",
    reason: str = "",
) -> Any:
    return front_pb2.Reply(query_id=query_id, response=response, code=code, message=message, field=field, reason=reason)


def load_response(counts: Counts, num_link_faults: int, first_token: Histogram, inter_token: Histogram) -> bytes:
    pages = counts.pages.values()
    response = admin_pb2.GetLoadResponse(
        num_requests_running=counts.num_running,
        num_requests_waiting=counts.num_waiting,
        num_workers=counts.num_workers,
        num_pages=sum(each.num_pages for each in pages),
        num_free_pages=sum(each.num_free for each in pages),
        num_held_pages=sum(each.num_held for each in pages),
        num_cached_pages=sum(each.num_cached for each in pages),
        num_preemptions=counts.num_preemptions,
        num_computed_tokens=counts.num_computed_tokens,
        num_output_tokens=counts.num_output_tokens,
        num_cached_tokens=counts.num_cached_tokens,
        num_wasted_tokens=counts.num_wasted_tokens,
        num_steps=counts.num_steps,
        num_link_faults=num_link_faults,
        num_asked_pages=counts.num_asked_pages,
        num_hit_pages=counts.num_hit_pages,
        num_evicted_pages=counts.num_evicted_pages,
        num_diverged_pages=counts.num_diverged_pages,
        num_salted_pages=counts.num_salted_pages,
        num_tail_pages=counts.num_tail_pages,
        page_waste_ratio=counts.page_waste_ratio,
        first_token_seconds=_distribution(first_token),
        inter_token_seconds=_distribution(inter_token),
    )
    return bytes(response.SerializeToString())


def _distribution(histogram: Histogram) -> Any:
    return admin_pb2.Distribution(bounds=histogram.bounds, counts=histogram.counts, sum=histogram.total)


def workers_response(counts: Counts, hellos: Mapping[WorkerId, WorkerHello]) -> bytes:
    workers = [
        admin_pb2.Worker(
            worker_id=worker_id,
            device=hellos[worker_id].device if worker_id in hellos else "",
            pid=hellos[worker_id].pid if worker_id in hellos else 0,
            num_pages=pages.num_pages,
            num_free_pages=pages.num_free,
            num_held_pages=pages.num_held,
            num_cached_pages=pages.num_cached,
            num_requests_running=pages.num_running,
            num_steps=pages.num_steps,
        )
        for worker_id, pages in counts.pages.items()
    ]
    return bytes(admin_pb2.ListWorkersResponse(workers=workers).SerializeToString())


def request_response(
    request_id: str, state: str, summary: RequestSummary, endings: Iterable[tuple[int, Ended]]
) -> bytes:
    """A GetRequestResponse; ``state`` is waiting, running or ended, ``endings`` are those of ended outputs by index."""
    response = generation_pb2.GetRequestResponse(
        request_id=request_id,
        state=f"REQUEST_STATE_{state.upper()}",
        usage=generation_pb2.Usage(
            prompt_tokens=summary.prompt_tokens,
            cached_tokens=summary.cached_tokens,
            output_tokens=summary.output_tokens,
            recomputed_tokens=summary.recomputed_tokens,
        ),
        finished=[_finished(index, ended) for index, ended in endings],
    )
    if summary.reason in STATUS_OF_END and not summary.elsewhere:
        response.status.code = STATUS_OF_END[summary.reason]
        response.status.message = f"the request ended: {summary.reason.value}"
    return bytes(response.SerializeToString())


def _finished(index: int, ended: Ended) -> Any:
    reason = _FINISH_REASONS.get(ended.reason, generation_pb2.FINISH_REASON_FAILED)
    finished = generation_pb2.Finished(index=index, finish_reason=reason)
    if ended.reason is EndReason.STOP_TOKEN and ended.stop_token_id is not None:
        finished.stop_token_id = ended.stop_token_id
    return finished


def cancel_response() -> bytes:
    return bytes(generation_pb2.CancelRequestResponse().SerializeToString())


def explain_response(decisions: Iterable[tuple[float, int, str]]) -> bytes:
    """An ExplainRequestResponse of (seconds since arrival, step, sentence)."""
    response = admin_pb2.ExplainRequestResponse(
        decisions=[admin_pb2.Decision(at_seconds=at, step_id=step_id, text=text) for at, step_id, text in decisions]
    )
    return bytes(response.SerializeToString())


def prefix_response(pages: Iterable[PageExplanation]) -> bytes:
    """An ExplainPrefixResponse."""
    response = cache_pb2.ExplainPrefixResponse(
        pages=[
            cache_pb2.PageExplanation(status=f"PAGE_STATUS_{page.status.name}", diverged_at=page.diverged_at)
            for page in pages
        ]
    )
    return bytes(response.SerializeToString())


def quote_response(num_prompt_tokens: int, quote: Quote) -> bytes:
    response = generation_pb2.QuoteResponse(
        prompt_tokens=num_prompt_tokens,
        cached_tokens=quote.num_cached_tokens,
        queue_seconds=quote.queue_seconds,
        first_token_seconds=quote.first_token_seconds,
    )
    return bytes(response.SerializeToString())


def pin_response(pin: Pin, now: float) -> bytes:
    return bytes(cache_pb2.PinPrefixResponse(pin=_pin_message(pin, now)).SerializeToString())


def pins_response(pins: Iterable[Pin], now: float) -> bytes:
    return bytes(cache_pb2.ListPinsResponse(pins=[_pin_message(pin, now) for pin in pins]).SerializeToString())


def unpin_response() -> bytes:
    return bytes(cache_pb2.UnpinPrefixResponse().SerializeToString())


def _pin_message(pin: Pin, now: float) -> Any:
    ttl_ms = max(0, int((pin.until - now) * 1000))
    return cache_pb2.Pin(pin_id=pin.pin_id, num_pages=pin.num_pages, ttl_ms=ttl_ms)


def limits_response(limits: LiveLimits, policy: SchedulingPolicy) -> bytes:
    response = admin_pb2.UpdateLimitsResponse(**asdict(limits), scheduling_policy=policy.value)
    return bytes(response.SerializeToString())


def reset_response(num_pages: int) -> bytes:
    return bytes(cache_pb2.ResetPrefixCacheResponse(num_pages=num_pages).SerializeToString())


def remove_worker_response() -> bytes:
    return bytes(admin_pb2.RemoveWorkerResponse().SerializeToString())


def drain_response() -> bytes:
    return bytes(admin_pb2.DrainResponse().SerializeToString())
