"""Results that a worker should not send: they end what they must and corrupt nothing."""

from array import array
from dataclasses import replace

import pytest
from support.core_bench import CoreBench, card, config
from support.core_worker import counting

from scheduler_svc.core.types import EndReason, RequestKey, StepId, StepResult, WorkerId


def two_running() -> CoreBench:
    bench = CoreBench(config(), card(pages=16, size=4), function=counting)
    bench.submit(0, [1, 2], 5, stops=())
    bench.submit(1, [3, 4], 5, stops=())
    bench.step()
    bench.plan()
    return bench


def result(rows: list[int], token_ids: list[int], statuses: bytes = b"", step: int = 2, name: str = "w") -> StepResult:
    return StepResult(
        worker_id=WorkerId(name),
        step_id=StepId(step),
        rows=array("i", rows),
        token_ids=array("i", token_ids),
        statuses=statuses,
    )


@pytest.mark.parametrize("late", [result([0, 1], [5, 6], step=1), result([0], [5], step=3), result([0], [5], name="x")])
def test_another_steps_or_workers_result_is_ignored(late: StepResult) -> None:
    bench = two_running()
    before = bench.core.counts()
    assert bench.core.commit(late, 0.0).keys == ()
    assert bench.core.counts() == before
    bench.finish()


def test_a_result_without_a_step_in_flight_is_ignored() -> None:
    bench = CoreBench(config(), card())
    assert bench.core.commit(result([0], [5]), 0.0).keys == ()


def test_a_row_without_a_token_ends_its_request_alone() -> None:
    bench = two_running()
    bench.execute()
    bench.commit(result([0], [1001]))
    assert bench.ended[1].reason is EndReason.STEP_FAILED
    assert 0 not in bench.ended
    bench.finish()


def test_a_row_named_twice_gives_one_token() -> None:
    bench = two_running()
    bench.execute()
    committed = bench.commit(result([0, 0, 1], [1001, 77, 2001]))
    assert list(committed.token_ids) == [1001, 2001]
    assert bench.core.counts().num_wasted_tokens == 1
    bench.finish()


def test_a_row_that_does_not_exist_is_ignored() -> None:
    bench = two_running()
    bench.execute()
    assert list(bench.commit(result([9, 0, 1], [5, 1001, 2001])).token_ids) == [1001, 2001]
    bench.finish()


@pytest.mark.parametrize("broken", [result([0, 1], [1001]), result([0, 1], [1001, 2001], b"\0")])
def test_columns_of_different_length_count_as_a_failed_step(broken: StepResult) -> None:
    bench = two_running()
    bench.execute()
    bench.commit(broken)
    assert {ended.reason for ended in bench.ended.values()} == {EndReason.STEP_FAILED}
    bench.finish()


def test_a_nan_of_a_request_that_is_held_or_over_changes_nothing() -> None:
    bench = CoreBench(config(), card(pages=16, size=4), function=counting)
    bench.submit(0, [1, 2], 9, stops=(1001,), hold=True)
    bench.submit(1, [3, 4], 9, stops=(2001,))
    for _ in range(2):
        bench.plan()
    bench.result()
    bench.plan()
    bench.result()
    assert bench.held == {0}
    bench.result(nan_rows=[0, 1])  # the overrun of both
    bench.scanned(0)
    assert {ended.reason for ended in bench.ended.values()} == {EndReason.STOP_TOKEN}
    bench.finish()


def test_an_overrun_step_that_fails_leaves_a_held_ending_alone() -> None:
    bench = CoreBench(config(), card(pages=16, size=4), function=counting)
    bench.submit(0, [1, 2], 9, stops=(1001,), hold=True)
    bench.plan()
    bench.plan()
    bench.result()
    bench.plan()
    bench.result()
    bench.result(failed=True)
    bench.scanned(0)
    assert bench.ended[0].reason is EndReason.STOP_TOKEN
    bench.finish()


def test_times_are_those_of_the_calls() -> None:
    bench = CoreBench(config(), card(pages=16, size=4), function=counting)
    for now in (1.0, 2.0, 3.0, 4.0, 5.0):
        bench.now = now
        if now == 1.0:
            bench.submit(0, [1, 2], 2, stops=())
        elif now in (2.0, 4.0):
            bench.plan()
        else:
            bench.result()
    ended = bench.ended[0]
    assert (ended.submitted_at, ended.admitted_at, ended.first_token_at) == (1.0, 2.0, 3.0)
    assert (ended.last_token_at, ended.ended_at) == (5.0, 5.0)


def test_output_tokens_of_a_running_request_are_counted_when_asked() -> None:
    bench = CoreBench(config(), card())
    bench.submit(0, [1, 2], 5, stops=())
    for count in range(1, 4):
        bench.step()
        assert bench.core.num_output_tokens(RequestKey(0)) == count
    assert bench.core.num_output_tokens(RequestKey(1)) == 0


def test_what_is_said_beside_tokens_goes_with_them() -> None:
    """A chunk's, a token's, and both of one row; not those of a row that was not there or whose request has ended."""
    bench = CoreBench(config(tokens=4), card(pages=16, size=4), function=counting)
    bench.submit(0, [1, 2, 3, 4, 5, 6], 5, stops=())
    bench.plan()
    bench.execute()
    said = (StepResult(worker_id=WorkerId("w"), step_id=StepId(1), rows=array("i"), token_ids=array("i")),)
    committed = bench.commit(replace(said[0], attachments=[(0, b"part"), (7, b"nobody")]))
    assert committed.attachments == [(0, b"part")]
    bench.submit(1, [8], 5, stops=())
    bench.plan()
    bench.plan()
    bench.core.cancel(RequestKey(1), EndReason.CANCELLED, 0.0)
    bench.execute()
    both = result([0, 1], [1006, 2001])
    committed = bench.commit(replace(both, attachments=[(0, b"rest"), (0, b"token"), (1, b"late")]))
    assert committed.attachments == [(0, b"rest"), (0, b"token")]
