"""What travels between scheduler and workers, as bytes: frames to plain values and back.

Reading is strict: bytes that are no frame, or columns that do not fit one another, raise ``FrameError`` and nothing of
the frame is used. Writing trusts its caller.
"""

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import DecodeError
from pagewire.internal.v1 import worker_pb2

from scheduler_svc import columns
from scheduler_svc.columns import ColumnError, read_hashes, read_ints
from scheduler_svc.core.types import NO_PAGE, BatchPlan, NewRow, PageHash, PageId, PageNames, Published
from scheduler_svc.messages import (
    FrameError,
    WorkerBody,
    WorkerGoodbye,
    WorkerHeartbeat,
    WorkerHello,
    WorkerMessage,
    WorkerRefusal,
    WorkerResult,
)

_ROW_COLUMNS = ("releases", "append_rows", "chunk_rows", "idle_rows")
_INT_COLUMNS = ("append_pages", "copy_sources", "copy_destinations", "chunk_tokens", "evicted_pages")
"""Columns of a plan that are written as they are."""


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
        rank=hello.rank,
        pid=hello.pid,
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
