"""Which limits an operator may change, and how far."""

import pytest

from scheduler_svc.core.types import CoreConfig, LiveLimits
from scheduler_svc.limits import LimitRefused, changed
from scheduler_svc.messages import LimitChanges

STARTED = CoreConfig(max_num_batched_tokens=512, max_num_seqs=64, max_queued_requests=100)
NOW = LiveLimits(max_num_seqs=64, max_num_batched_tokens=512, max_queued_requests=100, max_queued_tokens=0)
NOTHING: dict[str, None] = dict.fromkeys(LimitChanges.__dataclass_fields__)


def asked(**changes: int | str) -> LimitChanges:
    return LimitChanges(**{**NOTHING, **changes})  # type: ignore[arg-type]


def test_what_is_not_asked_for_stays() -> None:
    assert changed(NOW, STARTED, asked()) == NOW
    lower = changed(NOW, STARTED, asked(max_num_seqs=8, max_queued_tokens=1000, scheduling_policy="priority"))
    assert lower == LiveLimits(
        max_num_seqs=8, max_num_batched_tokens=512, max_queued_requests=100, max_queued_tokens=1000
    )
    assert changed(lower, STARTED, asked(max_num_seqs=64, max_queued_tokens=0)) == NOW


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_num_seqs", 0),
        ("max_num_seqs", 65),
        ("max_num_batched_tokens", 513),
        ("max_queued_requests", 101),
        ("max_queued_requests", 0),
        ("scheduling_policy", "fcfs"),
    ],
)
def test_nothing_goes_beyond_what_was_started(field: str, value: int | str) -> None:
    with pytest.raises(LimitRefused) as refused:
        changed(NOW, STARTED, asked(**{field: value}))
    assert refused.value.field == field
