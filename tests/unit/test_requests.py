"""Requests of n outputs: names, endings, what is kept."""

import gc

import pytest
from support.submissions import submission

from scheduler_svc.core.types import Ended, EndReason
from scheduler_svc.ended_requests import EndedRequests
from scheduler_svc.requests import DuplicateRequest, Request, Requests


def end(request: Request, index: int, reason: EndReason, at: float = 10.0) -> None:
    output = request.outputs[index]
    output.ended = Ended(
        key=output.key,
        reason=reason,
        num_prompt_tokens=3,
        num_cached_tokens=index,
        num_output_tokens=4,
        num_recomputed_tokens=1,
        stop_token_id=None,
        submitted_at=1.0,
        admitted_at=2.0 + index,
        first_token_at=4.0 + index,
        last_token_at=7.0 + index,
        ended_at=at,
        worker_id=None,
        stage="decode",
    )


def test_names_lead_to_the_request_until_it_is_removed() -> None:
    requests = Requests()
    request = requests.add(9, 3, submission(n=2))
    assert requests.by_front_key(9, 1) is request
    assert requests.by_front_key(8, 1) is None
    assert requests.by_id("t", "r") is request
    assert requests.by_id("u", "r") is None
    assert [requests.output(output.key) for output in request.outputs] == request.outputs
    requests.remove(request)
    assert len(requests) == 0
    assert requests.by_id("t", "r") is requests.output(request.outputs[0].key) is None


def test_a_live_id_is_taken_once_in_a_tenant() -> None:
    requests = Requests()
    first = requests.add(9, 3, submission())
    with pytest.raises(DuplicateRequest):
        requests.add(9, 3, submission(key=2))
    requests.add(9, 3, submission(key=3, tenant="u"))
    requests.add(9, 3, submission(key=4, request_id=""))
    requests.add(9, 3, submission(key=5, request_id=""))
    requests.remove(first)
    requests.add(9, 3, submission(key=6))
    assert len(requests) == 4


def test_usage_is_summed_and_the_prompt_counts_once() -> None:
    request = Requests().add(9, 3, submission(n=2))
    end(request, 0, EndReason.LENGTH)
    end(request, 1, EndReason.STOP_TOKEN, at=12.0)
    summary = request.summary()
    assert (summary.prompt_tokens, summary.cached_tokens, summary.output_tokens, summary.recomputed_tokens) == (
        3,
        0,
        8,
        2,
    )
    assert (summary.queue_seconds, summary.first_token_seconds) == (1.0, 3.0)
    assert (summary.decode_seconds, summary.total_seconds) == (4.0, 11.0)
    assert summary.reason is None


@pytest.mark.parametrize(
    ("reasons", "common"),
    [
        ([EndReason.STOP_TOKEN, EndReason.LENGTH], None),
        ([EndReason.LENGTH, EndReason.LENGTH], None),
        ([EndReason.CANCELLED, EndReason.CANCELLED], EndReason.CANCELLED),
        ([EndReason.TIME_LIMIT, EndReason.TIME_LIMIT], EndReason.TIME_LIMIT),
        ([EndReason.LENGTH, EndReason.TIME_LIMIT], None),
        ([EndReason.LENGTH, EndReason.DEADLINE], EndReason.DEADLINE),
        ([EndReason.LENGTH, EndReason.NAN], None),
        ([EndReason.NAN, EndReason.NAN], EndReason.NAN),
    ],
)
def test_one_cause_is_told_if_it_ended_the_request(reasons: list[EndReason], common: EndReason | None) -> None:
    request = Requests().add(9, 3, submission(n=2))
    for index, reason in enumerate(reasons):
        assert not request.is_over
        end(request, index, reason)
    assert request.is_over
    assert request.summary().reason is common


def over(request_id: str, n: int = 1) -> Request:
    return Requests().add(9, 3, submission(request_id=request_id, n=n))


def test_ended_requests_are_kept_within_time_number_and_size() -> None:
    kept = EndedRequests(seconds=10, num_requests=3, num_bytes=10_000)
    requests = [over(f"r{number}") for number in range(5)]
    for number, request in enumerate(requests):
        kept.keep(request, now=float(number))
    assert [kept.get("t", f"r{number}", 4.0) for number in range(5)] == [None, None, *requests[2:]]
    assert kept.get("t", "r3", 13.5) is None
    assert kept.get("t", "r4", 13.5) is requests[4]
    large, again = over("large", n=15), over("large")
    kept.keep(large, 13.5)
    assert kept.get("t", "r4", 13.5) is None
    assert len(kept) == 1
    kept.keep(again, 14.0)
    assert kept.get("t", "large", 14.0) is again
    kept.keep(over(""), 14.0)
    assert len(kept) == 1


def test_what_is_kept_and_forgotten_leaves_nothing_to_the_collector() -> None:
    """The scheduler looks for cycles seldom: requests that are kept for a while must go without it."""
    requests, ended = Requests(), EndedRequests(num_requests=2)
    gc.collect()
    gc.disable()
    try:
        for number in range(5):
            request = requests.add(9, 3, submission(key=number, request_id=f"r{number}", n=2))
            for index in range(2):
                end(request, index, EndReason.LENGTH)
            ended.keep(request, 10.0)
            requests.remove(request)
            requests.remove(request)
        del request
        assert requests.num_of("t") == 0
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_live_requests_of_a_tenant_are_counted() -> None:
    requests = Requests()
    taken = [requests.add(9, 3, submission(key=n, request_id=str(n), tenant="ab"[n % 2])) for n in range(3)]
    assert (requests.num_of("a"), requests.num_of("b"), requests.num_of("c")) == (2, 1, 0)
    for request in taken:
        requests.remove(request)
        requests.remove(request)
    assert (requests.num_of("a"), requests.num_of("b")) == (0, 0)
