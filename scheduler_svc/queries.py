"""Questions of fronts that concern the whole server or requests by the callers' ids, and their answers."""

from typing import Any

import structlog

from scheduler_svc import replies
from scheduler_svc.core.errors import InvariantViolation, RequestRejected
from scheduler_svc.core.explain import sentence
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import EndReason, NewPin, RequestKey
from scheduler_svc.front_desk import REJECTIONS, FrontDesk, new_request
from scheduler_svc.limits import LimitRefused
from scheduler_svc.limits import changed as limits_changed
from scheduler_svc.messages import Code, InvalidSubmission, LimitChanges, Query, Submission
from scheduler_svc.requests import Request
from scheduler_svc.worker_link import WorkerLink


class QueryFailed(Exception):  # noqa: N818 - an answer, not a fault
    """The answer is a status."""

    def __init__(self, code: Code, message: str, field: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field
        self.reason = reason

    @classmethod
    def rejected(cls, error: RequestRejected) -> "QueryFailed":
        """As the core refused it."""
        code, reason = REJECTIONS[error.code]
        return cls(code, error.message, error.field, reason)


class Queries:
    """Answers everything but what takes a drain or a worker's leave, which are the engine's."""

    def __init__(self, core: Scheduler, desk: FrontDesk, workers: WorkerLink) -> None:
        self._core = core
        self._desk = desk
        self._workers = workers
        self._log = structlog.get_logger()

    def reply(self, query: Query, num_link_faults: int, now: float) -> Any:
        """A Reply message."""
        try:
            return replies.reply(query.query_id, self._answer(query, num_link_faults, now))
        except QueryFailed as failure:
            return replies.reply(
                query.query_id,
                code=failure.code,
                message=failure.message,
                field=failure.field,
                reason=failure.reason,
            )
        except InvariantViolation:
            raise
        except Exception:
            self._log.exception("query_failed", kind=query.kind)
            return replies.reply(query.query_id, code=Code.INTERNAL, message="the scheduler failed on this question")

    def _answer(self, query: Query, num_link_faults: int, now: float) -> bytes:
        if query.kind == "load":
            return self._load(num_link_faults)
        if query.kind == "workers":
            return replies.workers_response(self._core.counts(), self._workers.hellos)
        if query.limits is not None:
            return self._update_limits(query.limits, now)
        if query.kind == "reset_prefix_cache":
            return replies.reset_response(self._core.reset_prefix_cache(now))
        if query.kind == "explain_prefix":
            return self._explain_prefix(query)
        if query.submission is not None:
            return self._quote(query.submission, now)
        if query.kind == "pin_prefix":
            return self._pin(query, now)
        if query.kind == "unpin_id":
            return self._unpin(query, now)
        if query.kind == "list_pins":
            return replies.pins_response(self._core.pins(query.tenant), now)
        if query.kind not in ("cancel_request_id", "get_request_id", "explain_request_id"):
            raise QueryFailed(Code.UNIMPLEMENTED, "the scheduler does not know this question")
        if not query.request_id:
            raise QueryFailed(Code.INVALID_ARGUMENT, "request_id is empty")
        if query.kind == "cancel_request_id":
            return self._cancel(query, now)
        return self._explain(query, now) if query.kind == "explain_request_id" else self._get(query, now)

    def _update_limits(self, asked: LimitChanges, now: float) -> bytes:
        try:
            limits = limits_changed(self._core.limits, self._core.started, asked)
        except LimitRefused as refused:
            raise QueryFailed(Code.INVALID_ARGUMENT, refused.message, refused.field) from None
        self._core.update_limits(limits, now)
        return replies.limits_response(limits, self._core.started.scheduling_policy)

    def _load(self, num_link_faults: int) -> bytes:
        steps = self._desk.metrics.steps
        return replies.load_response(self._core.counts(), num_link_faults, steps.first_token, steps.inter_token)

    def _cancel(self, query: Query, now: float) -> bytes:
        request = self._desk.requests.by_id(query.tenant, query.request_id)
        if request is not None:
            request.cancelled_elsewhere = True
            self._desk.cancel(request, EndReason.CANCELLED, now)
        elif self._desk.ended.get(query.tenant, query.request_id, now) is None:
            raise QueryFailed(Code.NOT_FOUND, "there is no such request")
        return replies.cancel_response()

    def _get(self, query: Query, now: float) -> bytes:
        request = self._find(query, now)
        if request is None:
            raise QueryFailed(Code.NOT_FOUND, "there is no such request")
        return replies.request_response(
            request.request_id, request.state, self._desk.summary(request), request.endings()
        )

    def _find(self, query: Query, now: float) -> Request | None:
        """The request asked about, live or ended."""
        live = self._desk.requests.by_id(query.tenant, query.request_id)
        return live or self._desk.ended.get(query.tenant, query.request_id, now)

    def _explain(self, query: Query, now: float) -> bytes:
        """What was decided about each of its outputs, in the order of time."""
        request = self._find(query, now)
        keys = [] if request is None else [output.key for output in request.outputs]
        found = [(index, decision) for index, key in enumerate(keys) for decision in self._core.decisions(key)]
        found += [(index, decision) for index, key in enumerate(keys) for decision in self._core.standing(key, now)]
        if not found:
            raise QueryFailed(Code.NOT_FOUND, "there is no such request, or it ended too long ago")
        own = {key: f"output {index}" for index, key in enumerate(keys)}
        found.sort(key=lambda entry: entry[1].at)
        began = found[0][1].at
        return replies.explain_response(
            (
                decision.at - began,
                decision.step_id,
                f"output {index}: " * (len(keys) > 1) + sentence(decision, lambda key: own.get(key) or self._name(key)),
            )
            for index, decision in found
        )

    def _explain_prefix(self, query: Query) -> bytes:
        if query.prefix is None:
            raise QueryFailed(Code.INVALID_ARGUMENT, "the prompt cannot be read")
        try:
            return replies.prefix_response(self._core.explain_prefix(query.prefix))
        except RequestRejected as error:
            raise QueryFailed.rejected(error) from None

    def _quote(self, submission: Submission | InvalidSubmission, now: float) -> bytes:
        if isinstance(submission, InvalidSubmission):
            raise QueryFailed(submission.code, submission.message, submission.field, submission.reason)
        try:
            quote = self._core.quote(new_request(submission, RequestKey(0), now), now)
        except RequestRejected as error:
            raise QueryFailed.rejected(error) from None
        return replies.quote_response(len(submission.prompt), quote)

    def _pin(self, query: Query, now: float) -> bytes:
        """Answered by what the pin holds at once."""
        asked = query.pin
        if asked is None:
            raise QueryFailed(Code.INVALID_ARGUMENT, "the prefix cannot be read")
        pin = NewPin(tenant=query.tenant, pin_id=asked.pin_id, page_hashes=asked.page_hashes, until=now + asked.seconds)
        try:
            return replies.pin_response(self._core.pin(pin, now), now)
        except RequestRejected as error:
            raise QueryFailed.rejected(error) from None

    def _unpin(self, query: Query, now: float) -> bytes:
        if not self._core.unpin((query.tenant, query.unpin_id), now):
            raise QueryFailed(Code.NOT_FOUND, "there is no such pin", reason="PIN_NOT_FOUND")
        return replies.unpin_response()

    def _name(self, key: RequestKey) -> str:
        """How people know the request of an output."""
        output = self._desk.requests.output(key)
        return "another request" if output is None else f"request {output.request.request_id}"
