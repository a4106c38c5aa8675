"""What requests tell: how each ended, what it used and how long it took, and what was refused.

Every request that reached a front is counted once in ``outcomes``: when it ends, or when it is refused. Its prompt
counts when it first begins, or at its end if it never did; cached tokens when it begins; so the sums over all ended
requests equal those of the callers' usages, whatever the endings. Of fronts only totals since their start are known:
what they add is the difference to what they said before, so that a lost or repeated message changes nothing.
"""

from collections import OrderedDict
from collections.abc import Sequence

from scheduler_svc.core.types import Ended, EndReason
from scheduler_svc.histogram import REQUEST_SECONDS, REQUEST_TOKENS, STALL_SECONDS, TOKEN_SECONDS, Histogram
from scheduler_svc.messages import STATUS_OF_END, Code, FrontFigures, RequestSummary
from scheduler_svc.requests import Output, Request

REJECTED = "rejected"
"""Finish reason of a request that never began."""
MAX_FRONTS_REMEMBERED = 256

_FINISH_REASONS = {
    EndReason.STOP_TOKEN: "stop",
    EndReason.STOP_STRING: "stop",
    EndReason.LENGTH: "length",
    EndReason.NO_PAGES: "length",
    EndReason.CANCELLED: "cancelled",
    EndReason.DEADLINE: "deadline",
    EndReason.TIME_LIMIT: "deadline",
}


class RequestMetrics:
    """Told of each request's beginning and end, and of each refusal."""

    def __init__(self) -> None:
        self.outcomes: dict[tuple[str, str], int] = {}
        """By finish reason and name of the status code."""
        self.rejections: dict[str, int] = {}
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_recomputed_tokens = 0
        self.queue = Histogram(REQUEST_SECONDS)
        self.prefill = Histogram(REQUEST_SECONDS)
        self.decode = Histogram(REQUEST_SECONDS)
        self.total = Histogram(REQUEST_SECONDS)
        self.per_token = Histogram(TOKEN_SECONDS)
        self.prompt_tokens = Histogram(REQUEST_TOKENS)
        self.output_tokens = Histogram(REQUEST_TOKENS)
        self.stalls = Histogram(STALL_SECONDS)
        self._fronts: OrderedDict[int, FrontFigures] = OrderedDict()

    def rejected(self, code: Code, reason: str, times: int = 1) -> None:
        """Requests were refused."""
        self._count(REJECTED, code, times)
        self.rejections[reason] = self.rejections.get(reason, 0) + times

    def begun(self, output: Output) -> None:
        """An output was admitted for the first time."""
        self._count_prompt(output.request)
        if output.index == 0:
            self.num_cached_tokens += output.num_cached_tokens

    def output_ended(self, ended: Ended) -> None:
        """One output came to its end."""
        first, last, count = ended.first_token_at, ended.last_token_at, ended.num_output_tokens
        if first is not None and last is not None and count > 1:
            self.per_token.observe((last - first) / (count - 1))

    def request_ended(self, request: Request, summary: RequestSummary) -> None:
        """All of its outputs did."""
        self._count_prompt(request)
        first = request.outputs[0].ended
        reason = "failed" if first is None else _FINISH_REASONS.get(first.reason, "failed")
        self._count(reason, _code(request, summary))
        self.num_recomputed_tokens += summary.recomputed_tokens
        self.queue.observe(summary.queue_seconds)
        self.total.observe(summary.total_seconds)
        if summary.first_token_seconds:
            self.prefill.observe(summary.first_token_seconds - summary.queue_seconds)
            self.decode.observe(summary.decode_seconds)
        self.prompt_tokens.observe(summary.prompt_tokens)
        self.output_tokens.observe(summary.output_tokens)

    def request_failed(self, request: Request) -> None:
        """It ended because the scheduler itself failed on it."""
        self._count_prompt(request)
        self._count("failed", Code.INTERNAL)

    def front_said(self, front_id: int, figures: FrontFigures) -> None:
        """A front's totals."""
        before = self._fronts.pop(front_id, FrontFigures())
        self._fronts[front_id] = figures
        if len(self._fronts) > MAX_FRONTS_REMEMBERED:
            self._fronts.popitem(last=False)
        for (code, reason), count in figures.refused.items():
            if count > before.refused.get((code, reason), 0):
                self.rejected(code, reason, count - before.refused.get((code, reason), 0))
        added = _differences(figures.stall_counts, before.stall_counts)
        if len(added) == len(self.stalls.counts):
            self.stalls.add(added, max(0.0, figures.stall_seconds - before.stall_seconds))

    def _count(self, finish_reason: str, code: Code, times: int = 1) -> None:
        name = (finish_reason, code.name)
        self.outcomes[name] = self.outcomes.get(name, 0) + times

    def _count_prompt(self, request: Request) -> None:
        if not request.is_counted:
            request.is_counted = True
            self.num_prompt_tokens += request.num_prompt_tokens


def _code(request: Request, summary: RequestSummary) -> Code:
    """The status its caller saw."""
    if request.told_code is not None:
        return request.told_code
    if summary.reason is None or summary.elsewhere:
        return Code.OK
    return STATUS_OF_END.get(summary.reason, Code.OK)


def _differences(counts: Sequence[int], before: Sequence[int]) -> list[int]:
    old = before or [0] * len(counts)
    return [max(0, new - had) for new, had in zip(counts, old, strict=False)]
