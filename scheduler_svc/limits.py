"""Which limits may change while the scheduler runs, and how far: inside what it was started with."""

from scheduler_svc.core.types import CoreConfig, LiveLimits
from scheduler_svc.messages import LimitChanges


class LimitRefused(Exception):  # noqa: N818 - an answer, not a fault
    """A limit cannot be changed so; the message is for the caller."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.message = message


def changed(now: LiveLimits, started: CoreConfig, asked: LimitChanges) -> LiveLimits:
    """The limits with what was asked for in place.

    Raises: LimitRefused.
    """
    if asked.scheduling_policy not in (None, started.scheduling_policy.value):
        policy = started.scheduling_policy.value
        raise LimitRefused(
            "scheduling_policy", f"is {policy}; who waits was put in this order, start again to change it"
        )
    return LiveLimits(
        max_num_seqs=_inside("max_num_seqs", asked.max_num_seqs, now.max_num_seqs, started.max_num_seqs),
        max_num_batched_tokens=_inside(
            "max_num_batched_tokens",
            asked.max_num_batched_tokens,
            now.max_num_batched_tokens,
            started.max_num_batched_tokens,
        ),
        max_queued_requests=_inside_or_none(
            "max_queued_requests", asked.max_queued_requests, now.max_queued_requests, started.max_queued_requests
        ),
        max_queued_tokens=_inside_or_none(
            "max_queued_tokens", asked.max_queued_tokens, now.max_queued_tokens, started.max_queued_tokens
        ),
    )


def _inside(field: str, asked: int | None, now: int, most: int) -> int:
    if asked is not None and not 1 <= asked <= most:
        raise LimitRefused(field, f"must lie in [1, {most}], as the server was started with {most}")
    return now if asked is None else asked


def _inside_or_none(field: str, asked: int | None, now: int, most: int) -> int:
    """0 is no limit, so it is the largest."""
    if asked is not None and most and not 1 <= asked <= most:
        raise LimitRefused(field, f"must lie in [1, {most}], as the server was started with {most}")
    return now if asked is None else asked
