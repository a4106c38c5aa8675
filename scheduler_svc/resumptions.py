"""Requests that outlive their streams: without a front they run on; they continue under a key of whichever front asks.

Such a request keeps its submission and all its output tokens here, so that a front that never saw it can tell its
caller everything from any position. While it runs without a front it has ``grace_seconds``; after its end it is kept as
long, within a limit of bytes, oldest forgotten first.

Invariants: a request has one front or none; what a front is told after a `resumed` event is the whole request, in
order, whatever an earlier front was told.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence

from scheduler_svc import front_codec
from scheduler_svc.core.types import RequestKey
from scheduler_svc.ended_requests import KEEP_BYTES
from scheduler_svc.front_link import FrontLink
from scheduler_svc.messages import Code, FrontResume, Submission
from scheduler_svc.outbox import Outbox
from scheduler_svc.output_key import output_key
from scheduler_svc.requests import Request, Requests, ResumeRecord

NO_FRONT = 0
"""No front draws this id."""


class Resumptions:
    """``add_tokens`` takes the tokens of such requests; ``leave``, ``resume`` and ``repeats`` change their front."""

    def __init__(self, requests: Requests, link: FrontLink, *, max_kept_bytes: int = KEEP_BYTES) -> None:
        self._requests = requests
        self._link = link
        self._max_kept_bytes = max_kept_bytes
        self._kept: OrderedDict[tuple[str, str], tuple[float, Request]] = OrderedDict()
        self._num_kept_bytes = 0
        self._broken: dict[RequestKey, Request] = {}

    def add_tokens(self, keys: Sequence[RequestKey], token_ids: "array[int]") -> None:
        """New tokens of resumable requests: kept, and passed on to whoever has the request now."""
        for key, token_id in zip(keys, token_ids, strict=True):
            output = self._requests.output(key)
            if output is None or output.ended is not None or output.request.record is None:
                continue
            request = output.request
            output.request.record.token_ids[output.index].append(token_id)
            if request.front_id != NO_FRONT:
                named = (output_key(0, request.front_key, output.index),)
                self._link.outbox(request.front_id).add_tokens(named, array("i", (token_id,)))

    def leave(self, request: Request, now: float) -> None:
        """Its stream broke: it goes on without a front."""
        if request.record is not None and request.front_id != NO_FRONT:
            request.record.broken_at = now
            first = request.outputs[0].key
            self._broken[first] = request
            self._requests.rebind(request, NO_FRONT, first)

    def resume(self, front_id: int, resume: FrontResume, now: float) -> bool:
        """Continues a request under a front's new key; False if there is none."""
        request = self._find(resume.tenant, resume.request_id, now)
        if request is not None and request.record is not None:
            self._attach(request, request.record, front_id, resume.key)
        return request is not None

    def repeats(self, front_id: int, submission: Submission, now: float) -> bool:
        """A submission with the id and the content of a request that can be resumed is that request."""
        if not submission.resume_grace_seconds:
            return False
        request = self._find(submission.tenant, submission.request_id, now)
        if request is None or request.record is None or request.record.content_digest != submission.content_digest:
            return False
        self._attach(request, request.record, front_id, submission.key)
        return True

    def _find(self, tenant: str, request_id: str, now: float) -> Request | None:
        """A request of this id that can be resumed, running or ended."""
        self._expire(now)
        live = self._requests.by_id(tenant, request_id)
        if live is not None:
            return live if live.record is not None else None
        kept = self._kept.get((tenant, request_id))
        return None if kept is None else kept[1]

    def _attach(self, request: Request, record: ResumeRecord, front_id: int, front_key: int) -> None:
        """A front that still has the request hears that it is gone."""
        if request.front_id != NO_FRONT and not request.is_over:
            message = "the request is read by another stream now"
            told = front_codec.rejected(request.front_key, Code.CANCELLED, "RESUMED_ELSEWHERE", message)
            self._link.outbox(request.front_id).add_event(told)
        box = self._link.outbox(front_id)
        box.add_event(front_codec.resumed(front_key, record.submit))
        self._tell_past(request, record, front_key, box)
        if not request.is_over:
            record.broken_at = None
            self.drop(request)
            self._requests.rebind(request, front_id, front_key)

    def _tell_past(self, request: Request, record: ResumeRecord, front_key: int, box: Outbox) -> None:
        """Everything that happened to it so far."""
        for output, token_ids in zip(request.outputs, record.token_ids, strict=True):
            box.add_tokens([output_key(0, front_key, output.index)] * len(token_ids), token_ids)
            if output.ended is not None:
                ended = front_codec.output_ended(front_key, output.index, output.ended, request.cancelled_elsewhere)
                box.add_event(ended)
            elif output.held_at is not None:
                box.add_event(front_codec.held(front_key, output.index, output.held_at))
        if request.is_over:
            box.add_event(front_codec.request_ended(front_key, request.summary(), 0))

    def keep(self, request: Request, now: float) -> None:
        """An ended request can be resumed for its grace."""
        self.drop(request)
        if request.record is not None and request.request_id:
            name = (request.tenant, request.request_id)
            self._forget(*name)
            self._kept[name] = (now + request.record.grace_seconds, request)
            self._num_kept_bytes += request.record.num_bytes
            self._expire(now)

    def drop(self, request: Request) -> None:
        """Its time without a front is over."""
        self._broken.pop(request.outputs[0].key, None)

    def _forget(self, tenant: str, request_id: str) -> None:
        """An ended request cannot be resumed any more."""
        kept = self._kept.pop((tenant, request_id), None)
        if kept is not None and kept[1].record is not None:
            self._num_kept_bytes -= kept[1].record.num_bytes
            kept[1].record = None

    def _expire(self, now: float) -> None:
        for name in [name for name, (until, _) in self._kept.items() if until <= now]:
            self._forget(*name)
        while self._num_kept_bytes > self._max_kept_bytes:
            self._forget(*next(iter(self._kept)))

    def next_expiry(self) -> float | None:
        """When the first request without a front will have had none for too long."""
        return min(map(_expiry, self._broken.values()), default=None)

    def expired(self, now: float) -> list[Request]:
        """Requests without a front for longer than their grace."""
        return [request for request in self._broken.values() if _expiry(request) <= now]


def _expiry(request: Request) -> float:
    record = request.record
    if record is None or record.broken_at is None:
        return float("inf")
    return record.broken_at + record.grace_seconds
