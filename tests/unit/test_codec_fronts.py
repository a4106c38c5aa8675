"""Frames of the front link."""

from array import array
from typing import Any

import pytest
from pagewire.internal.v1 import front_pb2, worker_pb2
from pagewire.v1 import generation_pb2

from scheduler_svc import front_codec, replies
from scheduler_svc.core.types import Ended, EndReason, PrefillProgress, RequestKey
from scheduler_svc.messages import Code, FrameError, InvalidSubmission, Query, RequestSummary, Service, Submission
from scheduler_svc.outbox import MAX_FRAME_TOKENS, Outbox

SUBMIT = {"key": 5, "prompt_token_ids": array("i", [1, 2]).tobytes(), "n": 1, "max_tokens": 3, "top_p": 1.0}


def read_submit(**fields: object) -> Submission | InvalidSubmission:
    submit = front_pb2.Submit(**{**SUBMIT, **fields})  # type: ignore[arg-type]
    message = front_codec.read_front_frame(front_pb2.FrontFrame(front_id=1, submits=[submit]).SerializeToString())
    return message.submissions[0]


def ended(reason: EndReason, **fields: object) -> Ended:
    values: dict[str, object] = {
        "key": RequestKey(1),
        "reason": reason,
        "num_prompt_tokens": 2,
        "num_cached_tokens": 0,
        "num_output_tokens": 4,
        "num_recomputed_tokens": 0,
        "stop_token_id": None,
        "submitted_at": 1.0,
        "admitted_at": 2.0,
        "first_token_at": 3.0,
        "last_token_at": 4.0,
        "ended_at": 5.0,
        "worker_id": None,
        "stage": "decode",
        **fields,
    }
    return Ended(**values)  # type: ignore[arg-type]


def test_a_submission_is_read() -> None:
    read = read_submit(
        request_id="r", page_hashes=b"a" * 32, stop_token_ids=array("i", [7]).tobytes(), deadline_ms=1500
    )
    assert isinstance(read, Submission)
    assert (read.key, list(read.prompt), read.page_hashes) == (5, [1, 2], [b"a" * 16] * 2)
    assert (read.stop_token_ids, read.deadline_seconds, read.time_limit_seconds) == (frozenset({7}), 1.5, None)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt_token_ids": b"abc"}, "prompt"),
        ({"page_hashes": b"abc"}, "prompt"),
        ({"n": 0}, "output.n"),
        ({"n": 2**31}, "output.n"),
        ({"max_tokens": 0}, "stop.max_tokens"),
        ({"top_p": 1.5}, "sampling"),
        ({"min_p": float("nan")}, "sampling"),
        ({"temperature": -1.0}, "sampling"),
    ],
)
def test_a_submission_that_cannot_run_names_its_field(fields: dict[str, object], field: str) -> None:
    read = read_submit(**fields)
    assert isinstance(read, InvalidSubmission)
    assert (read.key, read.code, read.field) == (5, Code.INVALID_ARGUMENT, field)


def test_options_and_grammars_are_handed_on() -> None:
    options = worker_pb2.RowOptions(min_tokens=3)
    read = read_submit(options=options)
    assert isinstance(read, Submission)
    assert read.sampling.options == options.SerializeToString()
    plain = read_submit()
    assert isinstance(plain, Submission)
    assert plain.sampling.options == b""
    assert plain.sampling.grammar == ""
    structured = read_submit(grammar={"text": "{}"})
    assert isinstance(structured, Submission)
    assert structured.sampling.grammar == "{}"


def test_a_frame_needs_a_front() -> None:
    with pytest.raises(FrameError):
        front_codec.read_front_frame(b"")


def test_queries_are_read() -> None:
    queries = [
        front_pb2.Query(query_id=1, load=True),
        front_pb2.Query(query_id=2, tenant="t", get_request_id="r"),
        front_pb2.Query(query_id=3, drain_ms=0),
        front_pb2.Query(query_id=4),
    ]
    message = front_codec.read_front_frame(front_pb2.FrontFrame(front_id=1, queries=queries).SerializeToString())
    assert [each.kind for each in message.queries] == ["load", "get_request_id", "drain_ms", ""]
    assert message.queries[1] == Query(query_id=2, tenant="t", kind="get_request_id", request_id="r")


@pytest.mark.parametrize("column", ["prompt_token_ids", "page_hashes"])
def test_a_prefix_that_cannot_be_read_is_none(column: str) -> None:
    asked = {"prompt_token_ids": bytes(8), "page_hashes": bytes(32), "root_hash": b"r", "unsalted_root": b"u"}
    good = front_pb2.Query(query_id=1, tenant="t", explain_prefix=asked)
    broken = front_pb2.Query(query_id=2, explain_prefix={**asked, column: bytes(7)})
    frame = front_pb2.FrontFrame(front_id=1, queries=[good, broken])
    (first, second) = front_codec.read_front_frame(frame.SerializeToString()).queries
    assert first.prefix is not None
    assert (first.prefix.tenant, list(first.prefix.prompt), len(first.prefix.page_hashes)) == ("t", [0, 0], 2)
    assert second.prefix is None


@pytest.mark.parametrize(
    "fault", [{"page_hashes": bytes(17)}, {"pin_id": ""}, {"pin_id": "x" * 257}, {"ttl_ms": 0}, {"ttl_ms": 2**64 - 1}]
)
def test_a_pin_that_cannot_be_read_is_none(fault: dict[str, Any]) -> None:
    asked = {"pin_id": "p", "ttl_ms": 1500, "page_hashes": bytes(32)}
    good = front_pb2.Query(query_id=1, tenant="t", pin_prefix=asked)
    broken = front_pb2.Query(query_id=2, pin_prefix={**asked, **fault})
    frame = front_pb2.FrontFrame(front_id=1, queries=[good, broken])
    (first, second) = front_codec.read_front_frame(frame.SerializeToString()).queries
    assert first.pin is not None
    assert (first.pin.pin_id, first.pin.seconds, len(first.pin.page_hashes)) == ("p", 1.5, 2)
    assert second.pin is None


@pytest.mark.parametrize("reason", list(EndReason))
def test_every_ending_has_a_word(reason: EndReason) -> None:
    event = front_pb2.RequestEvent(**front_codec.output_ended(9, 1, ended(reason), elsewhere=False))
    assert event.output_ended.reason != front_pb2.END_REASON_UNSPECIFIED
    name = front_pb2.EndReason.Name(event.output_ended.reason)
    assert name == "END_REASON_" + reason.name
    answer = replies.request_response("r", "ended", RequestSummary(prompt_tokens=2), [(0, ended(reason))])
    finished = generation_pb2.GetRequestResponse.FromString(answer).finished[0]
    assert finished.finish_reason != generation_pb2.FINISH_REASON_UNSPECIFIED


def test_a_cancel_from_elsewhere_has_a_word_of_its_own() -> None:
    event = front_pb2.RequestEvent(**front_codec.output_ended(9, 0, ended(EndReason.CANCELLED), elsewhere=True))
    assert event.output_ended.reason == front_pb2.END_REASON_CANCELLED_ELSEWHERE


def read(frame: bytes) -> front_pb2.SchedulerToFrontFrame:
    return front_pb2.SchedulerToFrontFrame.FromString(frame)


def test_nothing_to_tell_is_a_heartbeat() -> None:
    assert read(front_codec.front_frame(3)) == front_pb2.SchedulerToFrontFrame(session=3, heartbeat=True)
    assert not read(front_codec.front_frame(3, refusal="no")).heartbeat


# The outbox.


def test_tokens_keep_their_order_and_go_before_events() -> None:
    box = Outbox()
    for token_id in (1, 2, 3):
        box.add_tokens(array("Q", [7, 8]), array("i", [token_id, 9]))
    box.add_event(front_codec.held(7, 0, 3))
    frame = read(box.take(1))
    assert array("Q", frame.tokens.keys) == array("Q", [7, 8] * 3)
    assert array("i", frame.tokens.token_ids) == array("i", [1, 9, 2, 9, 3, 9])
    assert frame.events[0].held.num_output_tokens == 3
    assert not box


def test_a_frame_that_was_not_sent_is_the_next() -> None:
    box = Outbox()
    box.add_tokens([7], array("i", [1]))
    frame = box.take(1)
    box.restore(frame)
    box.add_tokens([7], array("i", [2]))
    assert box.take(1) == frame
    assert array("i", read(box.take(1)).tokens.token_ids) == array("i", [2])
    assert not box


def test_of_progress_the_newest_is_kept() -> None:
    box = Outbox()
    for computed in range(100):
        event = PrefillProgress(key=RequestKey(7), num_computed_tokens=computed, num_prompt_tokens=100)
        box.add_progress(7, "prefill", front_codec.progress(7, event))
    frame = read(box.take(1))
    assert [event.prefill.computed_tokens for event in frame.events] == [99]


def test_events_wait_for_the_last_of_many_tokens() -> None:
    box = Outbox()
    half = MAX_FRAME_TOKENS // 2 + 1
    for key in (1, 2, 3):
        box.add_tokens(array("Q", [key]) * half, array("i", bytes(4 * half)))
        box.add_event(front_codec.held(key, 0, half))
    first, second = read(box.take(1)), read(box.take(1))
    assert (len(first.tokens.keys) // 8, len(first.events)) == (MAX_FRAME_TOKENS, 0)
    assert (len(second.tokens.keys) // 8, len(second.events)) == (3 * half - MAX_FRAME_TOKENS, 3)
    assert not box


def test_a_service_carries_the_model_card() -> None:
    service = Service(
        model_card=worker_pb2.ModelCard(name="m").SerializeToString(),
        num_workers=1,
        page_size=32,
        hash_key=b"k",
        max_request_tokens=10,
        max_num_seqs=2,
        draining=True,
        retry_ms=0,
    )
    box = Outbox()
    box.set_service(service)
    told = read(box.take(1)).service
    assert (told.model_card.name, told.page_size, told.draining) == ("m", 32, True)
    assert "hash_key" not in repr(service)
