"""How a request ends, in the caller's words: finished, summary and progress events, or an error.

The scheduler decides why; here its reasons become finish reasons (soft ends, status OK) or statuses (hard ends).
"""

from typing import Any

from pagewire.internal.v1 import front_pb2
from pagewire.v1 import generation_pb2

from scheduler_svc.front.errors import (
    DeadlinePassedError,
    ExhaustedError,
    FrontError,
    InternalError,
    InvalidRequestError,
    Reason,
    UnavailableError,
    error_of_code,
)
from scheduler_svc.front.output import Output

DEFAULT_RETRY_MS = 1000
EARLY_SECONDS = 0.02
"""The front decides a deadline so early that its status still reaches the caller."""

_FINISH_REASONS = {
    front_pb2.END_REASON_STOP_TOKEN: generation_pb2.FINISH_REASON_STOP,
    front_pb2.END_REASON_STOP_STRING: generation_pb2.FINISH_REASON_STOP,
    front_pb2.END_REASON_LENGTH: generation_pb2.FINISH_REASON_LENGTH,
    front_pb2.END_REASON_NO_PAGES: generation_pb2.FINISH_REASON_LENGTH,
    front_pb2.END_REASON_CANCELLED: generation_pb2.FINISH_REASON_CANCELLED,
    front_pb2.END_REASON_CANCELLED_ELSEWHERE: generation_pb2.FINISH_REASON_CANCELLED,
    front_pb2.END_REASON_TIME_LIMIT: generation_pb2.FINISH_REASON_DEADLINE,
}

_UNAVAILABLE = {
    front_pb2.END_REASON_WORKER_LOST: ("the worker was lost and none came back", Reason.WORKER_LOST),
    front_pb2.END_REASON_SHUTDOWN: ("the server stops", Reason.SHUTDOWN),
}
_FAILED = {
    front_pb2.END_REASON_NAN: ("the model's output was not a number", Reason.NAN_LOGITS),
    front_pb2.END_REASON_STEP_FAILED: ("a step failed on the worker", Reason.STEP_FAILED),
}


def hard_end(ended: Any) -> FrontError | None:
    """The error of a RequestEnded; None if it ended softly."""
    if ended.reason in _UNAVAILABLE:
        message, reason = _UNAVAILABLE[ended.reason]
        return UnavailableError(message, reason=reason.value, retry_ms=ended.retry_ms or DEFAULT_RETRY_MS)
    if ended.reason in _FAILED:
        message, reason = _FAILED[ended.reason]
        return InternalError(reason.value, message)
    if ended.reason == front_pb2.END_REASON_GRAMMAR:
        return InvalidRequestError.at(
            "structured", "no token could go on with this form, with the other options, or it takes too much to follow"
        )
    if ended.reason == front_pb2.END_REASON_DEADLINE:
        return deadline_error(ended.stage or "decode", ended)
    return None


def deadline_error(stage: str, ended: Any = None) -> FrontError:
    """The deadline passed in this stage; with the usage of a RequestEnded if it is known."""
    metadata = {"stage": stage}
    if ended is not None:
        for name in ("prompt_tokens", "cached_tokens", "output_tokens", "recomputed_tokens"):
            metadata[name] = str(getattr(ended, name))
    return DeadlinePassedError(f"the deadline passed in stage {stage}", reason=Reason.DEADLINE.value, metadata=metadata)


def slow_reader_error() -> FrontError:
    """The caller does not read. No queue is in its way, so it may come again at once, or nearly."""
    return ExhaustedError("the caller reads too slowly", reason=Reason.SLOW_READER.value, retry_ms=DEFAULT_RETRY_MS)


def rejection_error(rejected: Any, prompt_field: str) -> FrontError:
    """The error of a Rejected; `prompt_field` names the prompt as the caller gave it."""
    field = prompt_field if rejected.field in ("", "prompt") else rejected.field
    if rejected.code == 3:
        return InvalidRequestError.at(field, rejected.message)
    retry_ms = rejected.retry_ms or (DEFAULT_RETRY_MS if rejected.code == 14 else 0)
    error = error_of_code(rejected.code, reason=rejected.reason, message=rejected.message, retry_ms=retry_ms)
    if isinstance(error, ExhaustedError):
        error.metadata["queue_depth"] = str(rejected.num_waiting)
    elif rejected.reason == Reason.DEADLINE.value:
        error.metadata["stage"] = "queue"
    return error


def finished_message(output: Output) -> Any:
    """A Finished for an ended output."""
    finished = generation_pb2.Finished()
    write_finished(finished, output)
    return finished


def write_finished(finished: Any, output: Output) -> None:
    """Fills an empty Finished. A stop string found in the output's text beats any later ending."""
    finished.index = output.index
    if output.stop_string is not None:
        finished.finish_reason = generation_pb2.FINISH_REASON_STOP
        finished.stop_string = output.stop_string
        return
    reason = output.ending.reason
    finished.finish_reason = _FINISH_REASONS.get(reason, generation_pb2.FINISH_REASON_FAILED)
    if reason == front_pb2.END_REASON_STOP_TOKEN:
        finished.stop_token_id = output.ending.stop_token_id


def write_summary(summary: Any, ended: Any, *, seed: int, num_overrun: int) -> None:
    """Fills an empty Summary; `num_overrun` tokens lie behind stop strings the scheduler had not heard of when it
    ended."""
    usage, timings = summary.usage, summary.timings
    usage.prompt_tokens = ended.prompt_tokens
    usage.cached_tokens = ended.cached_tokens
    usage.output_tokens = max(0, ended.output_tokens - num_overrun)
    usage.recomputed_tokens = ended.recomputed_tokens
    timings.queue_seconds = ended.queue_seconds
    timings.first_token_seconds = ended.first_token_seconds
    timings.decode_seconds = ended.decode_seconds
    timings.total_seconds = ended.total_seconds
    summary.seed = seed
    summary.worker_id = ended.worker_id


def progress_response(request_id: str, event: Any) -> Any:
    """A GenerateResponse for a progress event of the scheduler; None for a kind callers are not told."""
    kind = event.WhichOneof("event")
    response = generation_pb2.GenerateResponse(request_id=request_id)
    if kind == "queued":
        response.queued.position = event.queued.position
        response.queued.reason = event.queued.reason
    elif kind == "admitted":
        response.admitted.cached_tokens = event.admitted.cached_tokens
        response.admitted.worker_id = event.admitted.worker_id
    elif kind == "prefill":
        response.prefill.computed_tokens = event.prefill.computed_tokens
        response.prefill.total_tokens = event.prefill.total_tokens
    elif kind == "preempted":
        response.preempted.reason = event.preempted.reason
    else:
        return None
    return response
