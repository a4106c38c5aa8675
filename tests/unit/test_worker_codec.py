"""What the worker's codec refuses by the message alone, and that what it writes is what worker.proto says."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pagewire.internal.v1 import worker_pb2 as pb

from gpu_worker import codec
from gpu_worker.batch_plan import StepResult, int32s
from gpu_worker.errors import PlanRefusedError


def column(*values: int) -> bytes:
    return np.array(values, dtype="<i4").tobytes()


def rows(*values: int) -> bytes:
    return np.array(values, dtype="<u2").tobytes()


def floats(*values: float) -> bytes:
    return np.array(values, dtype="<f4").tobytes()


def make_message() -> pb.BatchPlan:
    """Two rows begin, with three and two tokens; everything a plan can carry is there."""
    return pb.BatchPlan(
        releases=rows(7),
        new_rows=pb.NewRows(
            rows=rows(1, 2),
            num_prompt_tokens=column(3, 2),
            num_token_ids=column(3, 2),
            token_ids=column(10, 11, 12, 20, 21),
            num_cached_tokens=column(0, 0),
            output_indices=column(0, 1),
            seeds=np.array([5, 2**64 - 1], dtype="<u8").tobytes(),
            temperatures=floats(0, 0.5),
            top_ps=floats(1, 0.9),
            top_ks=column(0, 40),
            min_ps=floats(0, 0.1),
        ),
        append_rows=rows(1, 2),
        append_pages=column(8, 9),
        copy_sources=column(4),
        copy_destinations=column(5),
        chunk_rows=rows(1, 2),
        chunk_tokens=column(3, 2),
        published_pages=column(3),
        published_hashes=bytes(16),
        published_parents=column(-1),
        parent_hashes=bytes(16),
        evicted_pages=column(6),
        group_ids=column(1),
        group_pages=column(1),
        group_sizes=column(2),
        group_rows=rows(1, 2),
        num_scheduled_rows=2,
        num_scheduled_tokens=5,
    )


def decode(message: pb.BatchPlan) -> Any:
    frame = codec.decode_frame(pb.SchedulerFrame(session=1, epoch=2, step_id=3, plan=message).SerializeToString())
    assert frame is not None
    return codec.decode_plan(frame)


def test_a_plan_is_read_as_it_was_written() -> None:
    plan = decode(make_message())
    assert (plan.epoch, plan.step_id, plan.num_scheduled_rows, plan.num_scheduled_tokens) == (2, 3, 2, 5)
    assert plan.releases.tolist() == [7]
    assert (plan.append_rows.tolist(), plan.group_rows.tolist()) == ([1, 2], [1, 2])
    assert plan.new_rows.token_ids.tolist() == [10, 11, 12, 20, 21]
    assert plan.new_rows.seeds.tolist() == [5, 2**64 - 1]
    assert plan.new_rows.temperatures.tolist() == [0, 0.5]
    assert plan.append_pages.tolist() == [8, 9]
    assert plan.chunk_tokens.tolist() == [3, 2]
    assert (plan.published_pages.tolist(), plan.evicted_pages.tolist()) == ([3], [6])


def test_row_options_are_read_and_neutral_where_unset() -> None:
    message = make_message()
    message.new_rows.options.add(position=1, bad_words=column(1, 4, 2, 5, 6), min_tokens=3, stop_token_ids=column(8))
    message.new_rows.options.add(position=0)
    options = decode(message).new_rows.options
    assert options[1].bad_words == [(4,), (5, 6)]
    assert (options[1].min_tokens, options[1].stop_token_ids.tolist()) == (3, [8])
    assert options[1].repetition_penalty == 1.0
    assert [options[position].changes_logits for position in (0, 1)] == [False, True]


def test_an_empty_plan_is_a_plan() -> None:
    plan = decode(pb.BatchPlan())
    assert (len(plan.new_rows.rows), len(plan.chunk_rows)) == (0, 0)


COLUMNS = (
    "releases",
    "append_rows",
    "append_pages",
    "copy_sources",
    "chunk_rows",
    "chunk_tokens",
    "idle_rows",
    "evicted_pages",
)
NEW_ROW_COLUMNS = (
    *("rows", "num_prompt_tokens", "num_token_ids", "token_ids", "num_cached_tokens", "output_indices", "seeds"),
    *("temperatures", "top_ps", "top_ks", "min_ps"),
)


@pytest.mark.parametrize("name", COLUMNS)
def test_a_torn_column_is_refused(name: str) -> None:
    message = make_message()
    setattr(message, name, getattr(message, name) + b"\0")
    with pytest.raises(PlanRefusedError, match=f"{name}: .* bytes"):
        decode(message)


@pytest.mark.parametrize("name", NEW_ROW_COLUMNS)
@pytest.mark.parametrize(
    "change", [lambda data: data[:-1], lambda data: data[:-8], lambda data: data + bytes(8), lambda data: b""]
)
def test_new_rows_of_unequal_columns_are_refused(name: str, change: Callable[[bytes], bytes]) -> None:
    message = make_message()
    setattr(message.new_rows, name, change(getattr(message.new_rows, name)))
    with pytest.raises(PlanRefusedError):
        decode(message)


def spoil(**fields: Any) -> Callable[[pb.BatchPlan], None]:
    def apply(message: pb.BatchPlan) -> None:
        for name, value in fields.items():
            setattr(message, name, value)

    return apply


def spoil_new_rows(**fields: Any) -> Callable[[pb.BatchPlan], None]:
    def apply(message: pb.BatchPlan) -> None:
        for name, value in fields.items():
            setattr(message.new_rows, name, value)

    return apply


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (spoil(append_pages=column(8)), "append: columns of different lengths"),
        (spoil(copy_destinations=b""), "copy: columns of different lengths"),
        (spoil(chunk_tokens=column(3)), "chunk: columns of different lengths"),
        (spoil(published_hashes=bytes(15)), "published_hashes has 15 bytes for 1 pages"),
        (spoil(published_parents=column(3)), "parent_hashes has 16 bytes for 0 pages"),
        (spoil(published_parents=column(-1, 3)), "published: columns of different lengths"),
        (spoil(parent_hashes=bytes(32)), "parent_hashes has 32 bytes for 1 pages"),
        (spoil(group_pages=b""), "group: columns"),
        (spoil(group_sizes=column(1)), "group_rows does not match"),
        (spoil(group_sizes=column(-1)), "negative size"),
        (spoil_new_rows(num_token_ids=column(3, 0)), "a row without token ids"),
        (spoil_new_rows(num_token_ids=column(-3, 2)), "a row without token ids"),
        (spoil_new_rows(num_token_ids=column(2, 2)), "5 token ids do not match"),
        (spoil_new_rows(num_token_ids=column(2**31 - 1, 2**31 - 1)), "do not match"),
        (spoil_new_rows(grammar_ids=column(-1, 0)), "0 is no grammar of the plan"),
        (spoil_new_rows(grammar_ids=column(-1)), "columns of different lengths"),
        (lambda message: message.new_rows.options.add(bad_words=column(2, 5)), "bad_words: a length"),
        (lambda message: message.new_rows.options.add(bad_words=column(0)), "bad_words: a length"),
        (lambda message: message.new_rows.options.add(bias_token_ids=column(2)), "options: columns of different"),
        (lambda message: message.new_rows.options.add(stop_token_ids=b"abc"), "stop_token_ids: 3 bytes"),
    ],
)
def test_inconsistent_columns_are_refused(change: Callable[[pb.BatchPlan], Any], reason: str) -> None:
    message = make_message()
    change(message)
    with pytest.raises(PlanRefusedError, match=reason):
        decode(message)


@pytest.mark.parametrize("data", [b"", b"\xff\xff\xff", b"\x08", pb.SchedulerFrame(session=1).SerializeToString()])
def test_noise_is_no_frame(data: bytes) -> None:
    assert codec.decode_frame(data) is None


def test_results_carry_columns_and_absent_is_not_empty() -> None:
    done = StepResult(
        step_id=9, epoch=4, rows=int32s([3, 1]), token_ids=int32s([70, 80]), statuses=b"\0\1", step_us=1500
    )
    frame = pb.WorkerFrame.FromString(codec.encode_result(6, done))
    assert (frame.session, frame.epoch, frame.step_id) == (6, 4, 9)
    assert (frame.result.rows, frame.result.token_ids) == (column(3, 1), column(70, 80))
    assert (frame.result.statuses, frame.result.step_us) == (b"\0\1", 1500)
    assert not frame.result.HasField("failure")
    assert not frame.result.HasField("refusal")
    failed = pb.WorkerFrame.FromString(codec.encode_result(6, StepResult(step_id=9, epoch=4, failure="x")))
    assert (failed.result.failure, failed.result.rows) == ("x", b"")
    refused = pb.WorkerFrame.FromString(codec.encode_result(6, StepResult(step_id=9, epoch=4, refusal="y")))
    assert refused.result.refusal == "y"


def test_rows_name_grammars_of_their_plan() -> None:
    message = make_message()
    message.grammars.add(grammar_id=4, text="{}")
    message.new_rows.grammar_ids = column(-1, 4)
    del message.new_rows.options[:]
    message.new_rows.options.add(position=1, min_tokens=3)
    options = decode(message).new_rows.options
    assert list(options) == [1]
    assert (options[1].grammar, options[1].min_tokens, options[1].changes_logits) == ("{}", 3, True)
