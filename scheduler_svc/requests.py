"""Whose request is whose: the fronts' keys, the callers' ids and the core's keys, and how a request of n outputs ends.

A request is n requests of the core. It ends once, with the end of its last output; ended_requests.py has those
that did. Ids belong to a tenant: the same id of two tenants names two requests.
"""

import itertools
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from scheduler_svc.core.types import Ended, EndReason, RequestKey
from scheduler_svc.messages import Code, RequestSummary, Submission
from scheduler_svc.output_key import RESUMABLE, output_key

HARD_ENDS = frozenset({EndReason.CANCELLED, EndReason.DEADLINE, EndReason.WORKER_LOST, EndReason.SHUTDOWN})
"""They end the request as a whole, even if some of its outputs had ended by themselves before."""
ONE_CAUSE_ENDS = HARD_ENDS | {EndReason.TIME_LIMIT, EndReason.NAN, EndReason.GRAMMAR, EndReason.STEP_FAILED}


class DuplicateRequest(Exception):  # noqa: N818 - names what the caller did
    """A live request of the tenant has the same id."""


class Output:
    """One output: one request of the core."""

    __slots__ = (
        "ended",
        "has_token",
        "held_at",
        "index",
        "key",
        "num_cached_tokens",
        "num_refused_plans",
        "num_tokens",
        "preempted_at",
        "request",
        "running",
        "worker_id",
    )
    __deletable__ = ("request",)  # for mypyc, whose attributes cannot be deleted else

    def __init__(self, *, key: RequestKey, index: int, request: "Request") -> None:
        self.key = key
        self.index = index
        self.request = request
        self.num_tokens = 0
        """As the core counted them last."""
        self.running = False
        self.worker_id = ""
        self.num_cached_tokens = 0
        self.held_at: int | None = None
        """Its ending after so many tokens waits for a front."""
        self.has_token = False
        self.preempted_at: float | None = None
        """Since when a request that had tokens gets none; None if it gets some."""
        self.num_refused_plans = 0
        """Plans in a row that workers refused and that may have been refused because of it."""
        self.ended: Ended | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class ResumeRecord:
    """What is kept of a request that another front may continue."""

    submit: bytes
    content_digest: bytes
    grace_seconds: float
    token_ids: "list[array[int]]"
    """Of each output, all of them."""
    broken_at: float | None = None
    """Since when it has no front."""

    @property
    def num_bytes(self) -> int:
        return len(self.submit) + sum(4 * len(each) for each in self.token_ids)


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """What a caller asked for: one output or several."""

    front_id: int
    front_key: int
    request_id: str
    tenant: str
    num_prompt_tokens: int
    progress_events: bool
    hold_endings: bool = False
    submitted_at: float = 0.0
    has_token: bool = False
    is_counted: bool = False
    """Its prompt is in the metrics."""
    told_code: Code | None = None
    """What its front answered its caller, if not what follows from the ending."""
    outputs: list[Output] = field(default_factory=list)
    cancelled_elsewhere: bool = False
    record: "ResumeRecord | None" = None
    """None: it ends with its stream."""

    @property
    def is_over(self) -> bool:
        return all(output.ended is not None for output in self.outputs)

    @property
    def state(self) -> str:
        """waiting, running or ended."""
        if self.is_over:
            return "ended"
        return "running" if any(output.running for output in self.outputs) else "waiting"

    def endings(self) -> list[tuple[int, Ended]]:
        return [(output.index, output.ended) for output in self.outputs if output.ended is not None]

    def summary(self) -> RequestSummary:
        """Its usage and times so far; the prompt counts once."""
        ends = [output.ended for output in self.outputs if output.ended is not None]
        first = self.outputs[0]
        output_tokens = sum([o.num_tokens if o.ended is None else o.ended.num_output_tokens for o in self.outputs])
        if not ends:
            return RequestSummary(
                prompt_tokens=self.num_prompt_tokens,
                cached_tokens=first.num_cached_tokens,
                output_tokens=output_tokens,
                worker_id=first.worker_id,
            )
        submitted, last = ends[0].submitted_at, ends[0]
        for ended in ends:
            submitted = min(submitted, ended.submitted_at)
            last = ended if ended.ended_at > last.ended_at else last
        admitted = [ended.admitted_at for ended in ends if ended.admitted_at is not None]
        began = [ended.first_token_at for ended in ends if ended.first_token_at is not None]
        went_on = [ended.last_token_at for ended in ends if ended.last_token_at is not None]
        workers = [ended.worker_id for ended in ends if ended.worker_id]
        return RequestSummary(
            reason=_common_reason(ends) if len(ends) == len(self.outputs) else None,
            elsewhere=self.cancelled_elsewhere,
            prompt_tokens=self.num_prompt_tokens,
            cached_tokens=first.num_cached_tokens if first.ended is None else first.ended.num_cached_tokens,
            output_tokens=output_tokens,
            recomputed_tokens=sum([ended.num_recomputed_tokens for ended in ends]),
            queue_seconds=(min(admitted) if admitted else last.ended_at) - submitted,
            first_token_seconds=min(began) - submitted if began else 0.0,
            decode_seconds=max(went_on) - min(began) if began and went_on else 0.0,
            total_seconds=last.ended_at - submitted,
            worker_id=workers[-1] if workers else "",
            stage=last.stage,
        )


def _common_reason(ends: list[Ended]) -> EndReason | None:
    reason = ends[0].reason
    if all(ended.reason is reason for ended in ends):
        return reason if reason in ONE_CAUSE_ENDS else None
    hard = {ended.reason for ended in ends if ended.reason in HARD_ENDS}
    return hard.pop() if len(hard) == 1 else None


def _record(submission: Submission) -> ResumeRecord | None:
    if not submission.resume_grace_seconds:
        return None
    return ResumeRecord(
        submit=submission.resume_record,
        content_digest=submission.content_digest,
        grace_seconds=submission.resume_grace_seconds,
        token_ids=[array("i") for _ in range(submission.n)],
    )


class Requests:
    """All live requests."""

    def __init__(self) -> None:
        self._resumable_keys = itertools.count(1)
        self._outputs: dict[RequestKey, Output] = {}
        self._by_front: dict[int, dict[int, Request]] = {}
        self._by_id: dict[tuple[str, str], Request] = {}
        self._num_of_tenant: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._outputs)

    def __len__(self) -> int:
        return sum(len(requests) for requests in self._by_front.values())

    def __iter__(self) -> Iterator[Request]:
        for requests in self._by_front.values():
            yield from requests.values()

    def add(self, front_id: int, front_number: int, submission: Submission, now: float = 0.0) -> Request:
        """Gives a new request its outputs and their keys.

        Raises: DuplicateRequest.
        """
        name = (submission.tenant, submission.request_id)
        if submission.request_id and name in self._by_id:
            raise DuplicateRequest(submission.request_id)
        front_key = submission.key
        if submission.resume_grace_seconds:
            front_number, front_key = RESUMABLE, next(self._resumable_keys)
        request = Request(
            front_id=front_id,
            front_key=submission.key,
            request_id=submission.request_id,
            tenant=submission.tenant,
            num_prompt_tokens=len(submission.prompt),
            progress_events=submission.progress_events,
            hold_endings=submission.hold_endings,
            submitted_at=now,
            record=_record(submission),
        )
        for index in range(submission.n):
            output = Output(key=output_key(front_number, front_key, index), index=index, request=request)
            request.outputs.append(output)
            self._outputs[output.key] = output
        self._by_front.setdefault(front_id, {})[submission.key] = request
        if submission.request_id:
            self._by_id[name] = request
        self._num_of_tenant[request.tenant] += 1
        return request

    def rebind(self, request: Request, front_id: int, front_key: int) -> None:
        """From now on the request is another front's."""
        self._unbind(request)
        request.front_id, request.front_key = front_id, front_key
        self._by_front.setdefault(front_id, {})[front_key] = request

    def _unbind(self, request: Request) -> None:
        of_front = self._by_front.get(request.front_id, {})
        of_front.pop(request.front_key, None)
        if not of_front:
            self._by_front.pop(request.front_id, None)

    def remove(self, request: Request) -> None:
        """Forgets a request; what the core still says of it means nothing any more."""
        if request.outputs[0].key in self._outputs:
            self._num_of_tenant[request.tenant] -= 1
            if not self._num_of_tenant[request.tenant]:
                del self._num_of_tenant[request.tenant]
        for output in request.outputs:
            # Without the way back there is no cycle: cycles are looked for so seldom here that they would pile up.
            if self._outputs.pop(output.key, None) is not None:
                del output.request
        self._unbind(request)
        if self._by_id.get((request.tenant, request.request_id)) is request:
            del self._by_id[request.tenant, request.request_id]

    def output(self, key: RequestKey) -> Output | None:
        return self._outputs.get(key)

    def of_front(self, front_id: int) -> list[Request]:
        return list(self._by_front.get(front_id, {}).values())

    def by_front_key(self, front_id: int, front_key: int) -> Request | None:
        return self._by_front.get(front_id, {}).get(front_key)

    def num_of(self, tenant: str) -> int:
        """Live requests of a tenant."""
        return self._num_of_tenant[tenant]

    def by_id(self, tenant: str, request_id: str) -> Request | None:
        return self._by_id.get((tenant, request_id))
