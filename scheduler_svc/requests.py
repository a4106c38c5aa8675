"""Whose request is whose: the fronts' keys, the callers' ids and the core's keys, and how a request of n outputs ends.

A request is n requests of the core. It ends once, with the end of its last output; then it is readable by its id for a
while. Ids belong to a tenant: the same id of two tenants names two requests.
"""

import itertools
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from scheduler_svc.core.types import Ended, EndReason, RequestKey
from scheduler_svc.messages import RequestSummary, Submission
from scheduler_svc.output_key import RESUMABLE, output_key

KEEP_SECONDS = 600.0
KEEP_REQUESTS = 10_000
KEEP_BYTES = 64 * 1024 * 1024
_BYTES_BESIDE_RECORD = 400

HARD_ENDS = frozenset({EndReason.CANCELLED, EndReason.DEADLINE, EndReason.WORKER_LOST, EndReason.SHUTDOWN})
"""They end the request as a whole, even if some of its outputs had ended by themselves before."""
ONE_CAUSE_ENDS = HARD_ENDS | {EndReason.TIME_LIMIT, EndReason.NAN, EndReason.STEP_FAILED}


class DuplicateRequest(Exception):  # noqa: N818 - names what the caller did
    """A live request of the tenant has the same id."""


@dataclass(slots=True, kw_only=True, eq=False)
class Output:
    """One output: one request of the core."""

    key: RequestKey
    index: int
    request: "Request"
    num_tokens: int = 0
    """As the core counted them last."""
    running: bool = False
    worker_id: str = ""
    num_cached_tokens: int = 0
    held_at: int | None = None
    """Its ending after so many tokens waits for a front."""
    num_refused_plans: int = 0
    """Plans in a row that workers refused and that may have been refused because of it."""
    ended: Ended | None = None


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
    front_id: int
    front_key: int
    request_id: str
    tenant: str
    num_prompt_tokens: int
    progress_events: bool
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
        ends = [ended for _, ended in self.endings()]
        first = self.outputs[0]
        output_tokens = sum(o.num_tokens if o.ended is None else o.ended.num_output_tokens for o in self.outputs)
        if not ends:
            return RequestSummary(
                prompt_tokens=self.num_prompt_tokens,
                cached_tokens=first.num_cached_tokens,
                output_tokens=output_tokens,
                worker_id=first.worker_id,
            )
        submitted = min(ended.submitted_at for ended in ends)
        last = max(ends, key=lambda ended: ended.ended_at)
        first_token = _least(ended.first_token_at for ended in ends)
        last_token = max((ended.last_token_at for ended in ends if ended.last_token_at is not None), default=None)
        admitted = _least(ended.admitted_at for ended in ends)
        return RequestSummary(
            reason=_common_reason(ends) if self.is_over else None,
            elsewhere=self.cancelled_elsewhere,
            prompt_tokens=self.num_prompt_tokens,
            cached_tokens=first.num_cached_tokens if first.ended is None else first.ended.num_cached_tokens,
            output_tokens=output_tokens,
            recomputed_tokens=sum(ended.num_recomputed_tokens for ended in ends),
            queue_seconds=(last.ended_at if admitted is None else admitted) - submitted,
            first_token_seconds=0.0 if first_token is None else first_token - submitted,
            decode_seconds=0.0 if first_token is None or last_token is None else last_token - first_token,
            total_seconds=last.ended_at - submitted,
            worker_id=next((ended.worker_id for ended in reversed(ends) if ended.worker_id), ""),
            stage=last.stage,
        )


def _least(times: Iterable[float | None]) -> float | None:
    return min((each for each in times if each is not None), default=None)


def _common_reason(ends: list[Ended]) -> EndReason | None:
    reasons = {ended.reason for ended in ends}
    hard = [reason for reason in reasons if reason in HARD_ENDS]
    if len(reasons) == 1:
        reason = next(iter(reasons))
        return reason if reason in ONE_CAUSE_ENDS else None
    return hard[0] if len(hard) == 1 else None


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

    def __len__(self) -> int:
        return sum(len(requests) for requests in self._by_front.values())

    def __iter__(self) -> Iterator[Request]:
        for requests in self._by_front.values():
            yield from requests.values()

    def add(self, front_id: int, front_number: int, submission: Submission) -> Request:
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
            record=_record(submission),
        )
        for index in range(submission.n):
            output = Output(key=output_key(front_number, front_key, index), index=index, request=request)
            request.outputs.append(output)
            self._outputs[output.key] = output
        self._by_front.setdefault(front_id, {})[submission.key] = request
        if submission.request_id:
            self._by_id[name] = request
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
        for output in request.outputs:
            self._outputs.pop(output.key, None)
        self._unbind(request)
        if self._by_id.get((request.tenant, request.request_id)) is request:
            del self._by_id[request.tenant, request.request_id]

    def output(self, key: RequestKey) -> Output | None:
        return self._outputs.get(key)

    def of_front(self, front_id: int) -> list[Request]:
        return list(self._by_front.get(front_id, {}).values())

    def by_front_key(self, front_id: int, front_key: int) -> Request | None:
        return self._by_front.get(front_id, {}).get(front_key)

    def by_id(self, tenant: str, request_id: str) -> Request | None:
        return self._by_id.get((tenant, request_id))


class EndedRequests:
    """Serialized answers about ended requests, kept for a time within limits of number and size; oldest go first."""

    def __init__(
        self, seconds: float = KEEP_SECONDS, num_requests: int = KEEP_REQUESTS, num_bytes: int = KEEP_BYTES
    ) -> None:
        self._limits = (seconds, num_requests, num_bytes)
        self._answers: OrderedDict[tuple[str, str], tuple[float, bytes, Sequence[RequestKey]]] = OrderedDict()
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._answers)

    def keep(self, tenant: str, request_id: str, answer: bytes, now: float, keys: Sequence[RequestKey] = ()) -> None:
        """``keys`` are those its outputs had."""
        if not request_id:
            return
        self._drop((tenant, request_id))
        self._answers[tenant, request_id] = (now, answer, keys)
        self._num_bytes += self._size((tenant, request_id), answer)
        self.expire(now)

    def get(self, tenant: str, request_id: str, now: float) -> bytes | None:
        self.expire(now)
        found = self._answers.get((tenant, request_id))
        return None if found is None else found[1]

    def keys(self, tenant: str, request_id: str) -> Sequence[RequestKey]:
        """What its outputs were called in the core; nothing if it is not kept."""
        found = self._answers.get((tenant, request_id))
        return () if found is None else found[2]

    def expire(self, now: float) -> None:
        seconds, num_requests, num_bytes = self._limits
        while self._answers:
            oldest = next(iter(self._answers))
            is_old = now - self._answers[oldest][0] > seconds
            if not (is_old or len(self._answers) > num_requests or self._num_bytes > num_bytes):
                return
            self._drop(oldest)

    def _drop(self, name: tuple[str, str]) -> None:
        found = self._answers.pop(name, None)
        if found is not None:
            self._num_bytes -= self._size(name, found[1])

    @staticmethod
    def _size(name: tuple[str, str], answer: bytes) -> int:
        return len(name[0]) + len(name[1]) + len(answer) + _BYTES_BESIDE_RECORD
