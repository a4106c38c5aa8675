"""A front's submission as the scheduler reads it, for tests of its books."""

from array import array
from typing import Any

from scheduler_svc.core.types import SamplingParams
from scheduler_svc.messages import Submission


def submission(key: int = 1, request_id: str = "r", tenant: str = "t", n: int = 1, **others: Any) -> Submission:
    return Submission(
        key=key,
        request_id=request_id,
        tenant=tenant,
        prompt=array("i", [1, 2, 3]),
        page_hashes=(),
        root_hash=b"",
        n=n,
        max_tokens=5,
        stop_token_ids=frozenset(),
        hold_endings=False,
        deadline_seconds=None,
        time_limit_seconds=None,
        priority=0,
        sampling=SamplingParams(),
        progress_events=False,
        **others,
    )
