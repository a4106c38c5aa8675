"""A core that writes down each call before it answers, so that its life can be lived again (replay.py).

Nothing is decided here and nothing is changed: a traced core answers as any other. Calls that cannot change anything (a
plan for a worker that has its steps in flight or nothing to do) are not written.
"""

import contextlib
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import structlog

from scheduler_svc import trace_format
from scheduler_svc.core.errors import CoreError
from scheduler_svc.core.request import Lane
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import (
    BatchPlan,
    Committed,
    CoreConfig,
    EndReason,
    Event,
    LiveLimits,
    NewPin,
    NewRequest,
    PageNames,
    Pin,
    PinKey,
    RequestKey,
    StepResult,
    WorkerCard,
    WorkerId,
)
from scheduler_svc.core.worker import Worker

MOST_BYTES = 4 << 30
"""A trace ends here; what was written is a trace."""
Answer = TypeVar("Answer")


class TraceFile:
    """A trace being written. Only its owner may read the file; one that is there is kept beside it as FILE.1."""

    def __init__(self, path: Path) -> None:
        """Raises: OSError: the file cannot be made there; names the flag."""
        try:
            if path.exists():
                if not path.is_file():  # a device must not be moved away
                    raise OSError(errno.EINVAL, "Not a regular file")
                path.replace(path.with_name(path.name + ".1"))
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise OSError(f"--trace-file {path}: {error.strerror}") from None
        self._file = os.fdopen(descriptor, "w", encoding="utf-8", buffering=1 << 16)
        self._num_bytes = 0

    def write(self, line: Any) -> None:
        """Adds a line."""
        if self._file.closed:
            return
        text = json.dumps(line, separators=(",", ":")) + "\n"
        self._num_bytes += len(text)
        try:
            if self._num_bytes > MOST_BYTES:
                raise OSError(f"more than {MOST_BYTES} bytes")
            self._file.write(text)
        except OSError as error:
            structlog.get_logger().warning("trace_ended", reason=str(error))
            self.close()

    def close(self) -> None:
        """Writes out what is left, if it can be. Idempotent."""
        with contextlib.suppress(OSError):
            self._file.close()


class TracedCore(Scheduler):
    """``write`` gets one line a call, the first at once."""

    def __init__(self, config: CoreConfig, write: Callable[[Any], None]) -> None:
        super().__init__(config)
        self._write = write
        write(trace_format.header(config))

    def submit(self, request: NewRequest, now: float) -> list[Event]:
        written = trace_format.write_request(request, self._placement.page_size)
        return self._call("submit", now, written, lambda: super(TracedCore, self).submit(request, now))

    def cancel(self, key: RequestKey, reason: EndReason, now: float) -> list[Event]:
        return self._call("cancel", now, [key, reason.value], lambda: super(TracedCore, self).cancel(key, reason, now))

    def stop(self, key: RequestKey, num_output_tokens: int, now: float) -> list[Event]:
        arguments = [key, num_output_tokens]
        return self._call("stop", now, arguments, lambda: super(TracedCore, self).stop(key, num_output_tokens, now))

    def scanned(self, key: RequestKey, now: float) -> list[Event]:
        return self._call("scanned", now, [key], lambda: super(TracedCore, self).scanned(key, now))

    def add_worker(self, card: WorkerCard, now: float) -> list[Event]:
        written = trace_format.write_card(card)
        return self._call("add_worker", now, written, lambda: super(TracedCore, self).add_worker(card, now))

    def remove_worker(self, worker_id: WorkerId, now: float) -> list[Event]:
        return self._call(
            "remove_worker", now, [worker_id], lambda: super(TracedCore, self).remove_worker(worker_id, now)
        )

    def plan(self, worker_id: WorkerId, now: float) -> tuple[BatchPlan | None, list[Event]]:
        expiry = self.next_expiry()
        # A worker with nothing to do may take over what waits for another one.
        is_idle = self.is_idle(worker_id) and not self.num_waiting
        if (expiry is None or expiry > now) and (self.is_full(worker_id) or is_idle):
            return None, []
        return self._call("plan", now, [worker_id], lambda: super(TracedCore, self).plan(worker_id, now))

    def take_names(self, worker_id: WorkerId, now: float) -> PageNames | None:
        names = super().take_names(worker_id, now)
        if names is not None:
            self._write(["take_names", now, [worker_id], trace_format.digest_of(names)])
        return names

    def commit(self, result: StepResult, now: float) -> Committed:
        worker = self._placement.workers.get(result.worker_id)
        lanes = [] if worker is None else _sampling_lanes(worker, result)
        committed: Committed | None = None
        try:
            committed = super().commit(result, now)
        finally:
            marks, ends = ([], []) if worker is None else _marks(worker, result, lanes)
            outcome = "failed" if committed is None else trace_format.digest_of(committed)
            self._write(["commit", now, trace_format.write_result(result, marks, ends), outcome])
        return committed

    def expire(self, now: float) -> list[Event]:
        return self._call("expire", now, [], lambda: super(TracedCore, self).expire(now))

    def update_limits(self, limits: LiveLimits, now: float) -> list[Event]:
        written = trace_format.write_limits(limits)
        return self._call("update_limits", now, written, lambda: super(TracedCore, self).update_limits(limits, now))

    def pin(self, pin: NewPin, now: float) -> Pin:
        return self._call("pin", now, trace_format.write_pin(pin), lambda: super(TracedCore, self).pin(pin, now))

    def unpin(self, key: PinKey, now: float) -> bool:
        return self._call("unpin", now, [list(key)], lambda: super(TracedCore, self).unpin(key, now))

    def reset_prefix_cache(self, now: float) -> int:
        return self._call("reset_prefix_cache", now, [], lambda: super(TracedCore, self).reset_prefix_cache(now))

    def _call(self, name: str, now: float, arguments: Any, call: Callable[[], Answer]) -> Answer:
        outcome = "failed"
        try:
            answer = call()
            outcome = trace_format.digest_of(answer)
        except CoreError as error:
            outcome = type(error).__name__
            raise
        finally:
            self._write([name, now, arguments, outcome])
        return answer


def _sampling_lanes(worker: Worker, result: StepResult) -> list[Lane | None]:
    """Whose tokens a result brings, None for nobody's; before it is applied."""
    if not worker.in_flight or worker.in_flight[0].step_id != result.step_id:
        return []
    record = worker.in_flight[0]
    places = [record.place_of(row) for row in result.rows]
    return [None if place is None or place in record.dropped else record.lane_at(place) for place in places]


def _marks(worker: Worker, result: StepResult, lanes: list[Lane | None]) -> tuple[list[int], list[tuple[int, int]]]:
    """What is written for each token of a result that was applied; and, by key, the stop tokens that end a page."""
    marks, page_size = [trace_format.BLANK] * len(result.token_ids), worker.page_size
    ends: list[tuple[int, int]] = []
    for index, (token_id, lane) in enumerate(zip(result.token_ids, lanes, strict=False)):
        if lane is None:
            continue
        request = lane.request
        if token_id in request.stop_token_ids:
            marks[index] = trace_format.STOP
        num_tokens = request.num_prompt + result.step_id + lane.offset + 1
        if num_tokens % page_size == 0:
            worker.collect(request)
            name = request.name_at(num_tokens // page_size - 1, page_size)
            if name is not None:
                if marks[index]:  # the steps in flight compute this page yet, so it needs a name too
                    ends.append((request.key, trace_format.fingerprint(name)))
                marks[index] = trace_format.fingerprint(name)
    return marks, ends
