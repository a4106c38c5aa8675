"""Between protobuf frames and the worker's own values. The only module of the worker that knows the generated messages.

Decoding checks what a message alone can tell: element sizes, equal column lengths, values that no state could make
valid. What depends on the rows is checked by RequestRows. Whatever fails raises PlanRefusedError, before anything is
applied.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError
from pagewire.internal.v1 import worker_pb2 as pb

from gpu_worker.batch_plan import (
    BatchPlan,
    Int32s,
    NewRows,
    PageNames,
    RowIds,
    RowLogprobs,
    RowOptions,
    StepResult,
)
from gpu_worker.errors import PlanRefusedError
from gpu_worker.model_card import ModelCard
from gpu_worker.published_pages import Inventory
from gpu_worker.worker_card import WorkerCard

PROTOCOL_VERSION = 1
HASH_BYTES = 16
_INT, _LONG, _FLOAT, _ROW = np.dtype("<i4"), np.dtype("<u8"), np.dtype("<f4"), np.dtype("<u2")
_NONE: "dict[np.dtype[Any], npt.NDArray[Any]]" = {
    element: np.frombuffer(b"", dtype=element) for element in (_INT, _LONG, _FLOAT)
}
"""Columns without entries."""
_NO_ROWS = np.empty(0, dtype=np.intp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A frame from the scheduler: its envelope and what it says. ``body`` is the protobuf message named by ``kind``."""

    session: int
    epoch: int
    step_id: int
    kind: str
    body: Any
    content: bytes
    """The frame itself."""


def decode_frame(data: bytes) -> Frame | None:
    """The frame, or None for bytes that are none: noise on the socket is dropped."""
    message = pb.SchedulerFrame()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return None
    kind = message.WhichOneof("body")
    if kind is None:
        return None
    return Frame(
        session=message.session,
        epoch=message.epoch,
        step_id=message.step_id,
        kind=kind,
        body=getattr(message, kind),
        content=data,
    )


def decode_plan(frame: Frame) -> BatchPlan:
    """The plan of a frame of kind ``plan``. Raises PlanRefusedError."""
    body = frame.body
    plan = BatchPlan(
        step_id=frame.step_id,
        epoch=frame.epoch,
        releases=_rows(body, "releases"),
        new_rows=_new_rows(body.new_rows, {each.grammar_id: each.text for each in body.grammars}),
        append_rows=_rows(body, "append_rows"),
        append_pages=_int32s(body, "append_pages"),
        copy_sources=_int32s(body, "copy_sources"),
        copy_destinations=_int32s(body, "copy_destinations"),
        chunk_rows=_rows(body, "chunk_rows"),
        chunk_tokens=_int32s(body, "chunk_tokens"),
        idle_rows=_rows(body, "idle_rows"),
        published_pages=_int32s(body, "published_pages"),
        published_hashes=body.published_hashes,
        published_parents=_int32s(body, "published_parents"),
        parent_hashes=body.parent_hashes,
        evicted_pages=_int32s(body, "evicted_pages"),
        group_ids=_int32s(body, "group_ids"),
        group_pages=_int32s(body, "group_pages"),
        group_sizes=_int32s(body, "group_sizes"),
        group_rows=_rows(body, "group_rows"),
        num_scheduled_rows=body.num_scheduled_rows,
        num_scheduled_tokens=body.num_scheduled_tokens,
        frame=frame.content,
    )
    _equal_lengths("append", plan.append_rows, plan.append_pages)
    _equal_lengths("copy", plan.copy_sources, plan.copy_destinations)
    _equal_lengths("chunk", plan.chunk_rows, plan.chunk_tokens)
    _check_names(plan)
    _equal_lengths("group", plan.group_ids, plan.group_pages, plan.group_sizes)
    group_sizes = plan.group_sizes.tolist()
    if group_sizes and min(group_sizes) < 0:
        raise PlanRefusedError("group: a negative size")
    if sum(group_sizes) != len(plan.group_rows):
        raise PlanRefusedError("group: group_rows does not match group_sizes")
    return plan


def decode_names(frame: Frame) -> PageNames:
    """The names of a frame of kind ``names``. Raises PlanRefusedError."""
    body = frame.body
    names = PageNames(
        epoch=frame.epoch,
        published_pages=_int32s(body, "published_pages"),
        published_hashes=body.published_hashes,
        published_parents=_int32s(body, "published_parents"),
        parent_hashes=body.parent_hashes,
        evicted_pages=_int32s(body, "evicted_pages"),
    )
    _check_names(names)
    return names


def _check_names(names: BatchPlan | PageNames) -> None:
    _equal_lengths("published", names.published_pages, names.published_parents)
    _check_hashes("published_hashes", names.published_hashes, len(names.published_pages))
    _check_hashes("parent_hashes", names.parent_hashes, names.published_parents.tolist().count(-1))


def _check_hashes(name: str, hashes: bytes, count: int) -> None:
    if len(hashes) != HASH_BYTES * count:
        raise PlanRefusedError(f"{name} has {len(hashes)} bytes for {count} pages")


def _new_rows(body: Any, grammars: Mapping[int, str]) -> NewRows:
    new = NewRows(
        rows=_rows(body, "rows"),
        num_prompt_tokens=_int32s(body, "num_prompt_tokens"),
        num_token_ids=_int32s(body, "num_token_ids"),
        token_ids=_int32s(body, "token_ids"),
        num_cached_tokens=_int32s(body, "num_cached_tokens"),
        output_indices=_int32s(body, "output_indices"),
        seeds=_column(body, "seeds", _LONG),
        temperatures=_column(body, "temperatures", _FLOAT),
        top_ps=_column(body, "top_ps", _FLOAT),
        top_ks=_int32s(body, "top_ks"),
        min_ps=_column(body, "min_ps", _FLOAT),
        options=_all_options(body, grammars),
    )
    columns = (new.num_prompt_tokens, new.num_token_ids, new.num_cached_tokens, new.output_indices, new.seeds)
    _equal_lengths("new_rows", new.rows, *columns, new.temperatures, new.top_ps, new.top_ks, new.min_ps)
    num_token_ids = new.num_token_ids.tolist()
    if num_token_ids and min(num_token_ids) < 1:
        raise PlanRefusedError("new_rows: a row without token ids")
    if sum(num_token_ids) != len(new.token_ids):
        raise PlanRefusedError(f"new_rows: {len(new.token_ids)} token ids do not match num_token_ids")
    return new


def _all_options(body: Any, grammars: Mapping[int, str]) -> dict[int, RowOptions]:
    """By position, of the rows that have options or a grammar."""
    options = {each.position: _row_options(each) for each in body.options}
    grammar_ids = _int32s(body, "grammar_ids")
    if len(grammar_ids):
        _equal_lengths("new_rows", _rows(body, "rows"), grammar_ids)
    for position, grammar_id in enumerate(grammar_ids.tolist()):
        if grammar_id >= 0:
            if grammar_id not in grammars:
                raise PlanRefusedError(f"grammar_ids: {grammar_id} is no grammar of the plan")
            options[position] = replace(options.get(position, RowOptions()), grammar=grammars[grammar_id])
    return options


def _row_options(body: Any) -> RowOptions:
    options = RowOptions(
        frequency_penalty=body.frequency_penalty,
        presence_penalty=body.presence_penalty,
        repetition_penalty=body.repetition_penalty or 1.0,
        bias_token_ids=_int32s(body, "bias_token_ids"),
        biases=_column(body, "biases", _FLOAT),
        allowed_token_ids=_int32s(body, "allowed_token_ids"),
        bad_words=_bad_words(_int32s(body, "bad_words").tolist()),
        min_tokens=body.min_tokens,
        stop_token_ids=_int32s(body, "stop_token_ids"),
        logprobs=body.logprobs if body.HasField("logprobs") else None,
        prompt_logprobs=body.prompt_logprobs if body.HasField("prompt_logprobs") else None,
    )
    _equal_lengths("options", options.bias_token_ids, options.biases)
    return options


def _bad_words(column: Sequence[int]) -> list[tuple[int, ...]]:
    """Lists of ids, each preceded by its length."""
    words, start = [], 0
    while start < len(column):
        end = start + 1 + column[start]
        if column[start] < 1 or end > len(column):
            raise PlanRefusedError("bad_words: a length that is not its word's")
        words.append(tuple(column[start + 1 : end]))
        start = end
    return words


def _int32s(body: Any, name: str) -> Int32s:
    return _column(body, name, _INT)


def _rows(body: Any, name: str) -> RowIds:
    return _column(body, name, _ROW).astype(np.intp) if getattr(body, name) else _NO_ROWS


def _column(body: Any, name: str, element: "np.dtype[Any]") -> npt.NDArray[Any]:
    data: bytes = getattr(body, name)
    if not data:
        return _NONE[element]
    if len(data) % element.itemsize:
        raise PlanRefusedError(f"{name}: {len(data)} bytes are no whole number of {element.itemsize}-byte values")
    return np.frombuffer(data, dtype=element)


def _equal_lengths(what: str, first: npt.NDArray[Any], *others: npt.NDArray[Any]) -> None:
    for other in others:
        if len(other) != len(first):
            lengths = sorted({len(first), *(len(each) for each in others)})
            raise PlanRefusedError(f"{what}: columns of different lengths {lengths}")


def encode_hello(epoch: int, card: WorkerCard, inventory: Inventory) -> bytes:
    """The first frame of an epoch."""
    hello = pb.Hello(
        protocol_version=PROTOCOL_VERSION,
        device=card.device,
        page_size=card.page_size,
        num_pages=card.num_pages,
        max_num_seqs=card.max_num_seqs,
        max_num_batched_tokens=card.max_num_batched_tokens,
        max_model_len=card.max_model_len,
        model_card=_model_card(card.model_card),
        cache_fingerprint=card.cache_fingerprint,
        inventory=pb.Inventory(
            pages=inventory.pages, hashes=inventory.hashes, parents=inventory.parents, identity=inventory.identity
        ),
        num_ranks=card.num_ranks,
        rank=0,
        pid=card.pid,
        version=card.version,
    )
    return _encode(pb.WorkerFrame(session=0, epoch=epoch, step_id=0, hello=hello))


def _model_card(card: ModelCard) -> pb.ModelCard:
    return pb.ModelCard(
        name=card.name,
        architecture=card.architecture,
        tokenizer_json=card.tokenizer_json,
        chat_template=card.chat_template,
        special_tokens=dict(card.special_tokens),
        eos_token_ids=card.eos_token_ids,
        bos_token_id=card.bos_token_id,
        vocab_size=card.vocab_size,
        max_model_len=card.max_model_len,
        dtype=card.dtype,
        kv_cache_dtype=card.kv_cache_dtype,
        quantization=card.quantization,
        digest=card.digest,
        generation_defaults=_generation_defaults(card.generation_defaults),
    )


def _generation_defaults(defaults: Mapping[str, float | int]) -> pb.GenerationDefaults:
    message = pb.GenerationDefaults()
    for name, value in defaults.items():
        setattr(message, name, value)
    return message


def encode_result(session: int, result: StepResult) -> bytes:
    """A step result."""
    body = pb.StepResult(
        rows=_bytes(result.rows),
        token_ids=_bytes(result.token_ids),
        statuses=result.statuses,
        step_us=result.step_us,
        failure=result.failure,
        refusal=result.refusal,
        logprobs=[_row_logprobs(each) for each in result.logprobs],
    )
    return _encode(pb.WorkerFrame(session=session, epoch=result.epoch, step_id=result.step_id, result=body))


def _row_logprobs(found: RowLogprobs) -> pb.RowLogprobs:
    return pb.RowLogprobs(
        row=found.row,
        width=found.width,
        num_prompt_positions=found.num_prompt_positions,
        first_position=found.first_position,
        token_ids=_bytes(found.token_ids),
        logprobs=np.ascontiguousarray(found.logprobs, dtype=_FLOAT).tobytes(),
        ranks=_bytes(found.ranks),
    )


def encode_heartbeat(session: int, epoch: int, last_completed: int, last_received: int) -> bytes:
    """A sign of life with the last completed and the last received step."""
    body = pb.Heartbeat(last_received_step_id=last_received)
    return _encode(pb.WorkerFrame(session=session, epoch=epoch, step_id=last_completed, heartbeat=body))


def encode_goodbye(session: int, epoch: int, reason: str) -> bytes:
    """The worker leaves."""
    return _encode(pb.WorkerFrame(session=session, epoch=epoch, goodbye=pb.Goodbye(reason=reason)))


def _bytes(column: RowIds | Sequence[int]) -> bytes:
    return np.ascontiguousarray(column, dtype="<i4").tobytes()


def _encode(frame: pb.WorkerFrame) -> bytes:
    data: bytes = frame.SerializeToString()
    return data
