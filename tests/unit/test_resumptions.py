"""Requests without a front: how long and how many are kept."""

from array import array
from typing import Any

from pagewire.internal.v1 import front_pb2
from support.submissions import submission

from scheduler_svc.core.types import Ended, EndReason
from scheduler_svc.messages import FrontResume, Submission
from scheduler_svc.outbox import Outbox
from scheduler_svc.requests import Request, Requests
from scheduler_svc.resumptions import NO_FRONT, Resumptions


class Link:
    """Outboxes by front."""

    def __init__(self) -> None:
        self.boxes: dict[int, Outbox] = {}

    def outbox(self, front_id: int) -> Outbox:
        return self.boxes.setdefault(front_id, Outbox())

    def sent(self, front_id: int) -> Any:
        return front_pb2.SchedulerToFrontFrame.FromString(self.outbox(front_id).take(1))


def resumable(request_id: str, key: int = 1, digest: bytes = b"d", grace: float = 5.0) -> Submission:
    record = front_pb2.Submit(request_id=request_id, n=1).SerializeToString()
    return submission(key, request_id, resume_grace_seconds=grace, content_digest=digest, resume_record=record)


def end(request: Request) -> None:
    output = request.outputs[0]
    output.ended = Ended(
        key=output.key,
        reason=EndReason.LENGTH,
        num_prompt_tokens=1,
        num_cached_tokens=0,
        num_output_tokens=3,
        num_recomputed_tokens=0,
        stop_token_id=None,
        submitted_at=0.0,
        admitted_at=0.0,
        first_token_at=0.0,
        last_token_at=0.0,
        ended_at=1.0,
        worker_id=None,
        stage="decode",
    )


def made(**options: Any) -> tuple[Requests, Link, Resumptions]:
    requests, link = Requests(), Link()
    stand_in: Any = link
    return requests, link, Resumptions(requests, stand_in, **options)


def test_a_broken_request_expires_after_its_grace_unless_it_is_resumed() -> None:
    requests, _, resumptions = made()
    first, second = (requests.add(7, 0, resumable(name, key)) for key, name in enumerate(("a", "b"), start=1))
    assert resumptions.next_expiry() is None
    resumptions.leave(first, 10.0)
    resumptions.leave(second, 11.0)
    assert (resumptions.next_expiry(), resumptions.expired(14.9)) == (15.0, [])
    assert resumptions.resume(8, FrontResume(key=4, tenant="t", request_id="a"), 14.0)
    assert resumptions.expired(16.0) == [second]
    assert requests.by_front_key(8, 4) is first
    assert requests.of_front(NO_FRONT) == [second]
    resumptions.drop(second)
    assert resumptions.next_expiry() is None


def test_tokens_are_told_from_the_first_whoever_had_them() -> None:
    requests, link, resumptions = made()
    request = requests.add(7, 0, resumable("a"))
    key = request.outputs[0].key
    resumptions.add_tokens([key], array("i", [5]))
    resumptions.leave(request, 1.0)
    resumptions.add_tokens([key], array("i", [6]))
    assert resumptions.repeats(8, resumable("a", 9), 2.0)
    resumptions.add_tokens([key], array("i", [7]))
    assert not resumptions.repeats(8, resumable("a", 10, digest=b"other"), 2.0)
    assert not resumptions.repeats(8, resumable("a", 10, grace=0.0), 2.0)
    frame = link.sent(8)
    assert array("i", frame.tokens.token_ids).tolist() == [5, 6, 7]
    assert [(each.key, each.WhichOneof("event")) for each in frame.events] == [(9, "resumed")]
    assert array("i", link.sent(7).tokens.token_ids).tolist() == [5]


def test_ended_requests_are_kept_for_their_grace_and_within_their_bytes() -> None:
    requests, _, resumptions = made(max_kept_bytes=100)
    ended = [requests.add(7, 0, resumable(name, key)) for key, name in enumerate("abc", start=1)]
    for request in ended:
        resumptions.add_tokens([request.outputs[0].key], array("i", [1]))
        request.record.token_ids[0].extend([1] * 9)  # type: ignore[union-attr]
        end(request)
        resumptions.keep(request, 1.0)
        requests.remove(request)
    asked = [FrontResume(key=20 + place, tenant="t", request_id=name) for place, name in enumerate("abc")]
    assert [resumptions.resume(8, each, 2.0) for each in asked] == [False, True, True]
    assert [resumptions.resume(8, each, 6.0) for each in asked] == [False, False, False]
