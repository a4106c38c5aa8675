"""What fronts ask becomes calls of the core; what the core tells becomes events for the fronts.

Owns the live requests and the ended ones. A request ends once: after the end of its last output the front is told, the
request is kept for later questions and is live no more. A fault while one request is handled ends
that request and no other; a broken rule of the core is not a fault of a request and goes on up.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from scheduler_svc import front_codec
from scheduler_svc.columns import ids_are_below
from scheduler_svc.core.errors import InvariantViolation, RejectCode, RequestRejected
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import (
    Admitted,
    Committed,
    Ended,
    EndReason,
    Event,
    Held,
    NewRequest,
    Preempted,
    PrefillProgress,
    RequestKey,
)
from scheduler_svc.drain_rate import DrainRate
from scheduler_svc.duplicates import Duplicates
from scheduler_svc.ended_requests import EndedRequests
from scheduler_svc.front_link import FrontLink
from scheduler_svc.messages import Code, FrontMessage, FrontResume, InvalidSubmission, RequestSummary, Submission
from scheduler_svc.metrics import Metrics
from scheduler_svc.output_key import RESUMABLE, by_front, output_key
from scheduler_svc.quotas import Quotas
from scheduler_svc.requests import DuplicateRequest, Output, Request, Requests
from scheduler_svc.resumptions import Resumptions

REJECTIONS = {
    RejectCode.INVALID: (Code.INVALID_ARGUMENT, "INVALID_FIELD"),
    RejectCode.TOO_LARGE: (Code.INVALID_ARGUMENT, "INVALID_FIELD"),
    RejectCode.QUEUE_FULL: (Code.RESOURCE_EXHAUSTED, "QUEUE_FULL"),
    RejectCode.DEADLINE: (Code.DEADLINE_EXCEEDED, "DEADLINE"),
    RejectCode.NO_WORKER: (Code.UNAVAILABLE, "NO_WORKER"),
    RejectCode.PIN_QUOTA: (Code.RESOURCE_EXHAUSTED, "PIN_QUOTA"),
    RejectCode.DUPLICATE: (Code.INTERNAL, "INTERNAL"),
}
_OUTSIDE_ENDS = frozenset({EndReason.CANCELLED, EndReason.DEADLINE, EndReason.TIME_LIMIT})
_RETRY_ENDS = frozenset({EndReason.WORKER_LOST, EndReason.SHUTDOWN})


class FrontDesk:
    """``apply`` takes what a front says, ``deliver`` and ``deliver_tokens`` what the core says."""

    def __init__(self, core: Scheduler, link: FrontLink, *, unavailable_retry_ms: int) -> None:
        self.requests = Requests()
        self.resumptions = Resumptions(self.requests, link)
        self.ended = EndedRequests()
        self.metrics = Metrics(self.requests)
        self._duplicates = Duplicates(self.requests)
        self.draining = False
        self.vocab_size = 0
        self._core = core
        self._link = link
        self._unavailable_retry_ms = unavailable_retry_ms
        self._queue_rate, self._end_rate = DrainRate(), DrainRate()
        self._quotas = Quotas()
        self._log = structlog.get_logger()

    # From fronts.

    def apply(self, message: FrontMessage, now: float) -> None:
        """Everything of a frame but its queries."""
        front_id = message.front_id
        for submission in message.submissions:
            self._submit(front_id, submission, now)
        for stop in message.stops:
            output = self._output(front_id, stop.key, stop.index)
            if output is not None:
                self._tell(output, partial(self._core.stop, num_output_tokens=stop.num_output_tokens, now=now), now)
        for scanned in message.scanned:
            output = self._output(front_id, scanned.key, scanned.index)
            if output is not None:
                self._tell(output, partial(self._core.scanned, now=now), now)
        for cancel in message.cancels:
            request = self.requests.by_front_key(front_id, cancel.key)
            if request is None:
                duplicate = self._duplicates.take(front_id, cancel.key)
                if duplicate is not None:
                    self._refuse_duplicate(front_id, duplicate)
            elif cancel.broken and request.record is not None:
                self.resumptions.leave(request, now)
            else:
                request.told_code = cancel.code
                self.cancel(request, EndReason.DEADLINE if cancel.deadline else EndReason.CANCELLED, now)
        for resume in message.resumes:
            self._resume(front_id, resume, now)

    def cancel(self, request: Request, reason: EndReason, now: float) -> None:
        """Ends all outputs of a request that have not ended."""
        for output in list(request.outputs):
            if output.ended is None:
                self._tell(output, partial(self._core.cancel, reason=reason, now=now), now)

    def lose_front(self, front_id: int, now: float) -> None:
        """Its requests end, but for those that another front may continue."""
        self._duplicates.lose_front(front_id)
        for request in self.requests.of_front(front_id):
            if request.record is not None:
                message = "the scheduler had lost this front"
                self._reject(front_id, request.front_key, Code.UNAVAILABLE, "SCHEDULER_LOST", message)
                self.resumptions.leave(request, now)
            else:
                self.cancel(request, EndReason.CANCELLED, now)

    def expire(self, now: float) -> None:
        """Ends what was to be resumed and was not; begins or refuses what waited for its id."""
        for request in self.resumptions.expired(now):
            self.cancel(request, EndReason.CANCELLED, now)
        for front_id, submission in self._duplicates.due(now):
            self._begin(front_id, submission, now, may_wait=False)

    def next_expiry(self) -> float | None:
        """The earliest ``now`` at which ``expire`` would do something of itself."""
        times = (self.resumptions.next_expiry(), self._duplicates.next_expiry())
        return min((time for time in times if time is not None), default=None)

    def _resume(self, front_id: int, resume: FrontResume, now: float) -> None:
        if not self.resumptions.resume(front_id, resume, now):
            message = "there is no such request to resume"
            self._reject(front_id, resume.key, Code.NOT_FOUND, "REQUEST_NOT_FOUND", message)

    def cancel_all(self, reason: EndReason, now: float) -> None:
        for request in list(self.requests):
            self.cancel(request, reason, now)

    def fail(self, outputs: Iterable[Output], now: float) -> None:
        """Ends outputs that the server is at fault for."""
        for output in outputs:
            if output.ended is None:
                self._tell(output, partial(self._core.cancel, reason=EndReason.STEP_FAILED, now=now), now)

    def outputs_on(self, worker_id: str) -> list[Output]:
        """Outputs that run on a worker."""
        return [o for request in self.requests for o in request.outputs if o.running and o.worker_id == worker_id]

    def summary(self, request: Request) -> RequestSummary:
        """Usage and times of a live request so far."""
        for output in request.outputs:
            if output.ended is None:
                output.num_tokens = self._core.num_output_tokens(output.key)
        return request.summary()

    def _output(self, front_id: int, front_key: int, index: int) -> Output | None:
        request = self.requests.by_front_key(front_id, front_key)
        if request is None or index >= len(request.outputs) or request.outputs[index].ended is not None:
            return None
        return request.outputs[index]

    def _tell(self, output: Output, call: Callable[[RequestKey], list[Event]], now: float) -> None:
        """One call of the core about one output; if it fails, the request ends and the loop goes on."""
        try:
            events = call(output.key)
        except InvariantViolation:
            raise
        except Exception:
            request = output.request
            self._log.exception("request_failed", request_id=request.request_id, key=output.key)
            self._abandon(request, now)
            return
        self.deliver(events, now)

    def _submit(self, front_id: int, submission: Submission | InvalidSubmission, now: float) -> None:
        if self.requests.by_front_key(front_id, submission.key) is not None:
            self._log.warning("repeated_submission_dropped", front=f"{front_id:016x}", key=submission.key)
            return
        if isinstance(submission, InvalidSubmission):
            self._refuse(
                front_id, submission.key, submission.code, submission.reason, submission.message, submission.field
            )
            return
        if self.resumptions.repeats(front_id, submission, now):
            return
        if self.draining:
            self._refuse(front_id, submission.key, Code.UNAVAILABLE, "DRAINING", "the server is draining")
            return
        if self.vocab_size and not ids_are_below(submission.prompt, self.vocab_size):
            message = f"a token id is not in 0..{self.vocab_size - 1}"
            self._refuse(front_id, submission.key, Code.INVALID_ARGUMENT, "INVALID_FIELD", message, "prompt")
            return
        if (retry_ms := self._over_quota(submission, now)) is not None:
            message = "the tenant has as many requests as it may have now"
            self._refuse(front_id, submission.key, Code.RESOURCE_EXHAUSTED, "TENANT_QUOTA", message, "", retry_ms)
            return
        self._begin(front_id, submission, now, may_wait=True)

    def _begin(self, front_id: int, submission: Submission, now: float, *, may_wait: bool) -> None:
        try:
            request = self.requests.add(front_id, self._link.number_of(front_id), submission, now)
        except DuplicateRequest:
            if not (may_wait and self._duplicates.hold(front_id, submission, now)):
                self._refuse_duplicate(front_id, submission)
            return
        self._start(request, submission, now)

    def _refuse_duplicate(self, front_id: int, submission: Submission) -> None:
        self._quotas.give_back(submission.tenant)
        message = "a live request has this request_id"
        self._refuse(front_id, submission.key, Code.ALREADY_EXISTS, "REQUEST_EXISTS", message, "request_id")

    def _over_quota(self, submission: Submission, now: float) -> int | None:
        """When to try again, in milliseconds, if the tenant may not begin another request now."""
        tenant, most = submission.tenant, submission.max_tenant_requests
        if not len(self.requests):
            self._end_rate.forget()
        if most and self.requests.num_of(tenant) >= most:
            return self._end_rate.retry_ms(self.requests.num_of(tenant), now)
        seconds = self._quotas.take(tenant, submission.tenant_requests_per_minute, now)
        return int(seconds * 1000) + 1 if seconds else None

    def _start(self, request: Request, submission: Submission, now: float) -> None:
        front_id, front_key = request.front_id, request.front_key
        events: list[Event] = []
        if not self._core.num_waiting:
            self._queue_rate.forget()
        try:
            for output in request.outputs:
                events += self._core.submit(_request_of(output, submission, now), now)
        except RequestRejected as error:
            self._quotas.give_back(request.tenant)
            self._take_back(request, now)
            code, reason = REJECTIONS[error.code]
            self._refuse(front_id, front_key, code, reason, error.message, error.field, self._retry_ms(code, now))
            return
        except InvariantViolation:
            raise
        except Exception:
            self._log.exception("submission_failed", request_id=request.request_id)
            self._take_back(request, now)
            self._refuse(front_id, front_key, Code.INTERNAL, "INTERNAL", "the scheduler failed on this request")
            return
        if request.progress_events:
            position = max(0, self._core.num_waiting - len(request.outputs))
            event = front_codec.queued(front_key, position, "waits for its turn")
            self._link.outbox(front_id).add_progress(front_key, "queued", event)
        self.deliver(events, now)

    def _take_back(self, request: Request, now: float) -> None:
        """Outputs of a refused request that the core has taken already."""
        for output in request.outputs:
            self._give_back(output, now)
        self.requests.remove(request)

    def _give_back(self, output: Output, now: float) -> None:
        """What the core still holds of an output, if it can."""
        try:
            self._core.cancel(output.key, EndReason.STEP_FAILED, now)
        except InvariantViolation:
            raise
        except Exception:
            self._log.exception("cancel_failed", key=output.key)

    def _refuse(self, front_id: int, front_key: int, code: Code, reason: str, *told: Any) -> None:
        """Rejects a request that was new."""
        self.metrics.requests.rejected(code, reason)
        self._reject(front_id, front_key, code, reason, *told)

    def _reject(
        self,
        front_id: int,
        front_key: int,
        code: Code,
        reason: str,
        message: str,
        field: str = "",
        retry_ms: int | None = None,
    ) -> None:
        if retry_ms is None:
            retry_ms = self._unavailable_retry_ms if code == Code.UNAVAILABLE else 0
        num_waiting = self._core.num_waiting if code == Code.RESOURCE_EXHAUSTED else 0
        rejected = front_codec.rejected(front_key, code, reason, message, field, retry_ms, num_waiting)
        self._link.outbox(front_id).add_event(rejected)

    def _retry_ms(self, code: Code, now: float) -> int | None:
        if code != Code.RESOURCE_EXHAUSTED:
            return None
        return self._queue_rate.retry_ms(self._core.num_waiting, now)

    def _abandon(self, request: Request, now: float) -> None:
        """Ends a request without waiting for the core, which failed on it."""
        summary = self.summary(request)
        for output in request.outputs:
            self._give_back(output, now)
        self._link.outbox(request.front_id).add_event(front_codec.request_failed(request.front_key, summary))
        self.resumptions.drop(request)
        self.requests.remove(request)
        self.metrics.requests.request_failed(request)

    def num_unsettled_tokens(self) -> int:
        """Output tokens that a stop string may still cut off. Costs the number of live requests."""
        unsettled = (o for request in self.requests if request.hold_endings for o in request.outputs)
        return sum(self._core.num_output_tokens(output.key) for output in unsettled if output.ended is None)

    # From the core.

    def deliver_tokens(self, committed: Committed) -> None:
        if committed.keys:
            for number, keys, token_ids in by_front(committed.keys, committed.token_ids):
                if number == RESUMABLE:
                    self.resumptions.add_tokens(keys, token_ids)
                else:
                    self._link.outbox_of(number).add_tokens(keys, token_ids)

        for key, content in committed.attachments:
            output = self.requests.output(key)
            if output is not None and output.ended is None:
                request = output.request
                named = output_key(0, request.front_key, output.index)
                self._link.outbox(request.front_id).add_logprobs(named, content)

    def deliver(self, events: Iterable[Event], now: float) -> None:
        for event in events:
            output = self.requests.output(event.key)
            if output is None:
                continue
            if isinstance(event, Ended):
                self._end(output, event, now)
            elif isinstance(event, Held):
                output.held_at = event.num_output_tokens
                held = front_codec.held(output.request.front_key, output.index, event.num_output_tokens)
                self._link.outbox(output.request.front_id).add_event(held)
            else:
                self._progress(output, event, now)

    def _progress(self, output: Output, event: Admitted | PrefillProgress | Preempted, now: float) -> None:
        request, key = output.request, output.request.front_key
        if isinstance(event, Admitted):
            output.running, output.worker_id = True, event.worker_id
            if not event.resumed:
                self._queue_rate.count(now)
                output.num_cached_tokens = event.num_cached_tokens
                self.metrics.requests.begun(output)
            kind = "admitted"
        elif isinstance(event, Preempted):
            output.running, output.preempted_at = False, now
            kind = "preempted"
        else:
            output.num_refused_plans = 0
            kind = "prefill"
        if request.progress_events:
            self._link.outbox(request.front_id).add_progress(key, kind, front_codec.progress(key, event))

    def _end(self, output: Output, ended: Ended, now: float) -> None:
        request, key = output.request, output.request.front_key
        if ended.reason in _OUTSIDE_ENDS:
            self.metrics.steps.cancelled(output, now)
        self.metrics.requests.output_ended(ended)
        output.ended, output.running = ended, False
        if ended.admitted_at is None:
            self._queue_rate.count(now)
        box = self._link.outbox(request.front_id)
        box.add_event(front_codec.output_ended(key, output.index, ended, request.cancelled_elsewhere))
        if not request.is_over:
            return
        summary = request.summary()
        retry_ms = self._unavailable_retry_ms if summary.reason in _RETRY_ENDS else 0
        box.add_event(front_codec.request_ended(key, summary, retry_ms))
        self.ended.keep(request, now)
        self.resumptions.keep(request, now)
        self.requests.remove(request)
        self._end_rate.count(now)
        self.metrics.requests.request_ended(request, summary)


def _request_of(output: Output, submission: Submission, now: float) -> NewRequest:
    first = new_request(submission, output.key, now)
    if not output.index:
        return first
    sampling = replace(submission.sampling, output_index=output.index)
    return replace(first, sampling=sampling, fork_of=output.request.outputs[0].key)


def new_request(submission: Submission, key: RequestKey, now: float) -> NewRequest:
    """A submission's first output, as the core takes it."""
    return NewRequest(
        key=key,
        tenant=submission.tenant,
        prompt=submission.prompt,
        page_hashes=submission.page_hashes,
        root_hash=submission.root_hash,
        max_tokens=submission.max_tokens,
        stop_token_ids=submission.stop_token_ids,
        hold_endings=submission.hold_endings,
        priority=submission.priority,
        deadline=_absolute(submission.deadline_seconds, now),
        time_limit=_absolute(submission.time_limit_seconds, now),
        sampling=submission.sampling,
    )


def _absolute(seconds: float | None, now: float) -> float | None:
    return None if seconds is None else now + seconds
