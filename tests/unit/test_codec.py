"""Frames of the worker link: what is written can be read, what does not fit is refused."""

import contextlib
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagewire.internal.v1 import worker_pb2

from scheduler_svc import columns, front_codec, worker_codec
from scheduler_svc.columns import ColumnError
from scheduler_svc.core.types import (
    NO_PAGE,
    BatchPlan,
    NewRow,
    PageHash,
    PageId,
    Published,
    Row,
    SamplingParams,
    StepId,
    WorkerId,
)
from scheduler_svc.messages import FrameError, WorkerHello, WorkerRefusal, WorkerResult, only_part


def ints(*values: int) -> "array[int]":
    return array("i", values)


def make_plan(**changes: object) -> BatchPlan:
    fields: dict[str, object] = {
        "worker_id": WorkerId("w"),
        "step_id": StepId(7),
        "append_rows": ints(),
        "append_pages": ints(),
        "copy_sources": ints(),
        "copy_destinations": ints(),
        "chunk_rows": ints(),
        "chunk_tokens": ints(),
        "idle_rows": ints(),
        "evicted_pages": ints(),
        "num_scheduled_rows": 0,
        "num_scheduled_tokens": 0,
        **changes,
    }
    return BatchPlan(**fields)  # type: ignore[arg-type]


def test_a_plan_travels_whole() -> None:
    sampling = SamplingParams(temperature=0.5, top_p=0.75, top_k=3, min_p=0.25, seed=2**64 - 1, output_index=2)
    options = worker_pb2.RowOptions(min_tokens=3).SerializeToString()
    rows = [
        NewRow(row=Row(4), num_prompt_tokens=2, token_ids=ints(1, 2, 3), num_cached_tokens=1, sampling=sampling),
        NewRow(
            row=Row(0),
            num_prompt_tokens=1,
            token_ids=ints(9),
            num_cached_tokens=0,
            sampling=SamplingParams(options=options),
        ),
    ]
    published = [
        Published(page=PageId(3), hash=PageHash(b"h" * 16), parent=PageHash(bytes(16))),
        Published(page=PageId(8), hash=PageHash(b"i" * 16), parent=PageHash(b"h" * 16)),
    ]
    plan = make_plan(
        releases=[Row(5)],
        new_rows=rows,
        append_rows=ints(4, 4, 0),
        append_pages=ints(7, 8, 9),
        chunk_rows=ints(4),
        chunk_tokens=ints(2),
        idle_rows=ints(1),
        published=published,
        parent_pages=[NO_PAGE, PageId(3)],
        evicted_pages=ints(6),
        num_scheduled_rows=3,
        num_scheduled_tokens=4,
    )
    frame = worker_pb2.SchedulerFrame.FromString(worker_codec.plan(11, 12, plan))
    assert (frame.session, frame.epoch, frame.step_id) == (11, 12, 7)
    sent = frame.plan
    assert array("i", sent.append_pages) == ints(7, 8, 9)
    rows_sent = [sent.releases, sent.new_rows.rows, sent.append_rows, sent.chunk_rows, sent.idle_rows]
    assert [array("H", column).tolist() for column in rows_sent] == [[5], [4, 0], [4, 4, 0], [4], [1]]
    assert (sent.published_hashes, sent.parent_hashes) == (b"h" * 16 + b"i" * 16, bytes(16))
    assert array("i", sent.published_parents) == ints(-1, 3)
    assert array("i", sent.new_rows.num_token_ids) == ints(3, 1)
    assert array("i", sent.new_rows.token_ids) == ints(1, 2, 3, 9)
    assert array("Q", sent.new_rows.seeds) == array("Q", [2**64 - 1, 0])
    assert array("f", sent.new_rows.temperatures) == array("f", [0.5, 1.0])
    assert array("i", sent.new_rows.output_indices) == ints(2, 0)
    assert (sent.num_scheduled_rows, sent.num_scheduled_tokens) == (3, 4)


def test_a_plan_of_decodes_alone_is_small() -> None:
    assert len(worker_codec.plan(2**63, 2**63, make_plan(num_scheduled_rows=256, num_scheduled_tokens=256))) < 40


def test_columns_are_little_endian_on_any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert columns.ints([1, -2]) == b"\x01\0\0\0\xfe\xff\xff\xff"
    monkeypatch.setattr(columns, "FOREIGN_ORDER", True)
    foreign = ints(1, -2)
    foreign.byteswap()
    assert columns.ints(foreign) == b"\x01\0\0\0\xfe\xff\xff\xff"
    assert columns.read_ints(b"\x01\0\0\0", "x") == ints(2**24)
    assert foreign != ints(1, -2), "the caller's own array stays as it was"


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_ints_come_back(values: list[int]) -> None:
    assert list(columns.read_ints(columns.ints(values), "x")) == values


@given(st.binary(max_size=50))
def test_any_bytes_are_a_frame_or_refused(content: bytes) -> None:
    with contextlib.suppress(FrameError):
        worker_codec.read_worker_frame(content)
    with contextlib.suppress(FrameError):
        front_codec.read_front_frame(content)


def test_a_message_has_one_part() -> None:
    assert only_part([b"a"]) == b"a"
    for parts in ([], [b"a", b"b"]):
        with pytest.raises(FrameError):
            only_part(parts)


def result_frame(**fields: object) -> bytes:
    result = worker_pb2.StepResult(**fields)  # type: ignore[arg-type]
    return bytes(worker_pb2.WorkerFrame(session=1, epoch=2, step_id=3, result=result).SerializeToString())


def test_a_result_is_read() -> None:
    message = worker_codec.read_worker_frame(
        result_frame(rows=ints(1, 2).tobytes(), token_ids=ints(5, 6).tobytes(), statuses=b"\0\1", step_us=1500)
    )
    assert (message.session, message.epoch, message.step_id) == (1, 2, 3)
    assert message.body == WorkerResult(
        rows=ints(1, 2), token_ids=ints(5, 6), statuses=b"\0\1", failure=None, step_seconds=0.0015
    )


def test_failure_and_refusal_are_told_even_if_empty() -> None:
    failed = worker_codec.read_worker_frame(result_frame(failure="")).body
    assert isinstance(failed, WorkerResult)
    assert failed.failure == ""
    assert worker_codec.read_worker_frame(result_frame(refusal="")).body == WorkerRefusal(reason="")


@pytest.mark.parametrize(
    "fields",
    [
        {"rows": b"\0\0\0"},
        {"rows": ints(1).tobytes()},
        {"rows": ints(1).tobytes(), "token_ids": ints(1, 2).tobytes()},
        {"rows": ints(1).tobytes(), "token_ids": ints(1).tobytes(), "statuses": b"\0\0"},
        {"token_ids": b"\0" * 5},
    ],
)
def test_columns_that_do_not_fit_are_refused(fields: dict[str, bytes]) -> None:
    with pytest.raises(FrameError):
        worker_codec.read_worker_frame(result_frame(**fields))


def test_a_frame_without_a_body_is_refused() -> None:
    with pytest.raises(FrameError):
        worker_codec.read_worker_frame(worker_pb2.WorkerFrame(session=1).SerializeToString())


def test_a_hello_keeps_its_model_card_as_it_came() -> None:
    card = worker_pb2.ModelCard(name="m", digest="d", vocab_size=5, tokenizer_json=b"{}")
    hello = worker_pb2.Hello(protocol_version=1, page_size=32, num_pages=9, model_card=card)
    body = worker_codec.read_worker_frame(worker_pb2.WorkerFrame(epoch=4, hello=hello).SerializeToString()).body
    assert isinstance(body, WorkerHello)
    assert (body.page_size, body.num_pages, body.digest, body.vocab_size) == (32, 9, "d", 5)
    assert worker_pb2.ModelCard.FromString(body.model_card) == card


def test_hashes_are_sixteen_bytes() -> None:
    assert columns.read_hashes(b"a" * 16 + b"b" * 16, "x") == [b"a" * 16, b"b" * 16]
    with pytest.raises(ColumnError):
        columns.read_hashes(b"a" * 17, "x")


def test_a_grammar_travels_once_a_plan() -> None:
    def row(number: int, grammar: str) -> NewRow:
        sampling = SamplingParams(output_index=number, grammar=grammar)
        return NewRow(row=Row(number), num_prompt_tokens=1, token_ids=ints(1), num_cached_tokens=0, sampling=sampling)

    texts = ["{1}", "", "{2}", "{1}"]
    plan = make_plan(new_rows=[row(number, text) for number, text in enumerate(texts)])
    sent = worker_pb2.SchedulerFrame.FromString(worker_codec.plan(1, 1, plan)).plan
    assert [each.text for each in sent.grammars] == ["{1}", "{2}"]
    ids = columns.read_ints(sent.new_rows.grammar_ids, "grammar_ids").tolist()
    assert [{each.grammar_id: each.text for each in sent.grammars}.get(number, "") for number in ids] == texts
    plain = worker_pb2.SchedulerFrame.FromString(worker_codec.plan(1, 1, make_plan(new_rows=[row(0, "")]))).plan
    assert (len(plain.grammars), plain.new_rows.grammar_ids) == (0, b"")
