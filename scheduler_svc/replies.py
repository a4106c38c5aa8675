"""Answers to fronts' queries: a ``Reply``, and in it the bytes of the response that the caller gets."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from pagewire.internal.v1 import front_pb2
from pagewire.v1 import admin_pb2, cache_pb2, generation_pb2

from scheduler_svc.core.types import (
    Counts,
    Ended,
    EndReason,
    LiveLimits,
    PageExplanation,
    Pin,
    Quote,
    SchedulingPolicy,
    WorkerId,
)
from scheduler_svc.histogram import Histogram
from scheduler_svc.messages import STATUS_OF_END, Code, RequestSummary, WorkerHello

_FINISH_REASONS = {
    EndReason.STOP_TOKEN: generation_pb2.FINISH_REASON_STOP,
    EndReason.STOP_STRING: generation_pb2.FINISH_REASON_STOP,
    EndReason.LENGTH: generation_pb2.FINISH_REASON_LENGTH,
    EndReason.NO_PAGES: generation_pb2.FINISH_REASON_LENGTH,
    EndReason.CANCELLED: generation_pb2.FINISH_REASON_CANCELLED,
    EndReason.TIME_LIMIT: generation_pb2.FINISH_REASON_DEADLINE,
    EndReason.DEADLINE: generation_pb2.FINISH_REASON_DEADLINE,
}


def reply(
    query_id: int,
    response: bytes = b"",
    code: Code = Code.OK,
    message: str = "",
    field: str = "",
    reason: str = "",
) -> Any:
    return front_pb2.Reply(query_id=query_id, response=response, code=code, message=message, field=field, reason=reason)


def load_response(counts: Counts, num_link_faults: int, first_token: Histogram, inter_token: Histogram) -> bytes:
    pages = counts.pages.values()
    response = admin_pb2.GetLoadResponse(
        num_requests_running=counts.num_running,
        num_requests_waiting=counts.num_waiting,
        num_workers=counts.num_workers,
        num_pages=sum(each.num_pages for each in pages),
        num_free_pages=sum(each.num_free for each in pages),
        num_held_pages=sum(each.num_held for each in pages),
        num_cached_pages=sum(each.num_cached for each in pages),
        num_preemptions=counts.num_preemptions,
        num_computed_tokens=counts.num_computed_tokens,
        num_output_tokens=counts.num_output_tokens,
        num_cached_tokens=counts.num_cached_tokens,
        num_wasted_tokens=counts.num_wasted_tokens,
        num_steps=counts.num_steps,
        num_link_faults=num_link_faults,
        num_asked_pages=counts.num_asked_pages,
        num_hit_pages=counts.num_hit_pages,
        num_evicted_pages=counts.num_evicted_pages,
        num_diverged_pages=counts.num_diverged_pages,
        num_salted_pages=counts.num_salted_pages,
        num_tail_pages=counts.num_tail_pages,
        page_waste_ratio=counts.page_waste_ratio,
        first_token_seconds=_distribution(first_token),
        inter_token_seconds=_distribution(inter_token),
    )
    return bytes(response.SerializeToString())


def _distribution(histogram: Histogram) -> Any:
    return admin_pb2.Distribution(bounds=histogram.bounds, counts=histogram.counts, sum=histogram.total)


def workers_response(counts: Counts, hellos: Mapping[WorkerId, WorkerHello]) -> bytes:
    workers = [
        admin_pb2.Worker(
            worker_id=worker_id,
            device=hellos[worker_id].device if worker_id in hellos else "",
            pid=hellos[worker_id].pid if worker_id in hellos else 0,
            num_pages=pages.num_pages,
            num_free_pages=pages.num_free,
            num_held_pages=pages.num_held,
            num_cached_pages=pages.num_cached,
            num_requests_running=pages.num_running,
            num_steps=pages.num_steps,
        )
        for worker_id, pages in counts.pages.items()
    ]
    return bytes(admin_pb2.ListWorkersResponse(workers=workers).SerializeToString())


def request_response(
    request_id: str, state: str, summary: RequestSummary, endings: Iterable[tuple[int, Ended]]
) -> bytes:
    """A GetRequestResponse; ``state`` is waiting, running or ended, ``endings`` are those of ended outputs by index."""
    response = generation_pb2.GetRequestResponse(
        request_id=request_id,
        state=f"REQUEST_STATE_{state.upper()}",
        usage=generation_pb2.Usage(
            prompt_tokens=summary.prompt_tokens,
            cached_tokens=summary.cached_tokens,
            output_tokens=summary.output_tokens,
            recomputed_tokens=summary.recomputed_tokens,
        ),
        finished=[_finished(index, ended) for index, ended in endings],
    )
    if summary.reason in STATUS_OF_END and not summary.elsewhere:
        response.status.code = STATUS_OF_END[summary.reason]
        response.status.message = f"the request ended: {summary.reason.value}"
    return bytes(response.SerializeToString())


def _finished(index: int, ended: Ended) -> Any:
    reason = _FINISH_REASONS.get(ended.reason, generation_pb2.FINISH_REASON_FAILED)
    finished = generation_pb2.Finished(index=index, finish_reason=reason)
    if ended.reason is EndReason.STOP_TOKEN and ended.stop_token_id is not None:
        finished.stop_token_id = ended.stop_token_id
    return finished


def cancel_response() -> bytes:
    return bytes(generation_pb2.CancelRequestResponse().SerializeToString())


def explain_response(decisions: Iterable[tuple[float, int, str]]) -> bytes:
    """An ExplainRequestResponse of (seconds since arrival, step, sentence)."""
    response = admin_pb2.ExplainRequestResponse(
        decisions=[admin_pb2.Decision(at_seconds=at, step_id=step_id, text=text) for at, step_id, text in decisions]
    )
    return bytes(response.SerializeToString())


def prefix_response(pages: Iterable[PageExplanation]) -> bytes:
    """An ExplainPrefixResponse."""
    response = cache_pb2.ExplainPrefixResponse(
        pages=[
            cache_pb2.PageExplanation(status=f"PAGE_STATUS_{page.status.name}", diverged_at=page.diverged_at)
            for page in pages
        ]
    )
    return bytes(response.SerializeToString())


def quote_response(num_prompt_tokens: int, quote: Quote) -> bytes:
    response = generation_pb2.QuoteResponse(
        prompt_tokens=num_prompt_tokens,
        cached_tokens=quote.num_cached_tokens,
        queue_seconds=quote.queue_seconds,
        first_token_seconds=quote.first_token_seconds,
    )
    return bytes(response.SerializeToString())


def pin_response(pin: Pin, now: float) -> bytes:
    return bytes(cache_pb2.PinPrefixResponse(pin=_pin_message(pin, now)).SerializeToString())


def pins_response(pins: Iterable[Pin], now: float) -> bytes:
    return bytes(cache_pb2.ListPinsResponse(pins=[_pin_message(pin, now) for pin in pins]).SerializeToString())


def unpin_response() -> bytes:
    return bytes(cache_pb2.UnpinPrefixResponse().SerializeToString())


def _pin_message(pin: Pin, now: float) -> Any:
    ttl_ms = max(0, int((pin.until - now) * 1000))
    return cache_pb2.Pin(pin_id=pin.pin_id, num_pages=pin.num_pages, ttl_ms=ttl_ms)


def limits_response(limits: LiveLimits, policy: SchedulingPolicy) -> bytes:
    response = admin_pb2.UpdateLimitsResponse(**asdict(limits), scheduling_policy=policy.value)
    return bytes(response.SerializeToString())


def reset_response(num_pages: int) -> bytes:
    return bytes(cache_pb2.ResetPrefixCacheResponse(num_pages=num_pages).SerializeToString())


def remove_worker_response() -> bytes:
    return bytes(admin_pb2.RemoveWorkerResponse().SerializeToString())


def drain_response() -> bytes:
    return bytes(admin_pb2.DrainResponse().SerializeToString())
