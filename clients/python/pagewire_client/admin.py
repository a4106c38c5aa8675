"""The client of operators: all that ``Client`` does, and what looks into a server or changes it while it runs.

It asks the internal port, or the public one with a token of the role admin.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from pagewire.v1 import admin_pb2, cache_pb2
from pagewire.v1.admin_pb2_grpc import AdminServiceStub
from pagewire.v1.cache_pb2_grpc import CacheServiceStub

from .client import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits in force; 0 is no limit."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_queued_requests: int
    max_queued_tokens: int
    scheduling_policy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker that has joined, and its pages now."""

    worker_id: str
    device: str
    num_pages: int
    num_free_pages: int
    num_held_pages: int
    num_cached_pages: int
    num_requests_running: int
    num_steps: int
    pid: int


class AdminClient(Client):
    """``AdminClient("127.0.0.1:50052")``. Nothing here is tried again by itself but ``workers``."""

    def workers(self, *, timeout: float | None = None) -> tuple[Worker, ...]:
        """Those that have joined."""
        response = self._read(AdminServiceStub(self._internal).ListWorkers, admin_pb2.ListWorkersRequest(), timeout)
        names = [field.name for field in fields(Worker)]
        return tuple(Worker(**{name: getattr(each, name) for name in names}) for each in response.workers)

    def remove_worker(self, worker_id: str, *, timeout: float | None = None) -> None:
        """Has a worker end; its requests go on elsewhere. Raises: NotFoundError."""
        message = admin_pb2.RemoveWorkerRequest(worker_id=worker_id)
        self._read(AdminServiceStub(self._internal).RemoveWorker, message, timeout)

    def update_limits(
        self,
        *,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        max_queued_requests: int | None = None,
        max_queued_tokens: int | None = None,
        timeout: float | None = None,
    ) -> Limits:
        """Changes limits, none beyond what the server was started with; returns all of them.

        Raises: InvalidRequestError.
        """
        message = admin_pb2.UpdateLimitsRequest(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_queued_requests=max_queued_requests,
            max_queued_tokens=max_queued_tokens,
        )
        response = self._read(AdminServiceStub(self._internal).UpdateLimits, message, timeout)
        return Limits(**{field.name: getattr(response, field.name) for field in fields(Limits)})

    def drain(self, seconds: float | None = None, *, timeout: float | None = None) -> None:
        """Has a server refuse requests, let the running ones finish (at most so long; None: as it is configured) and
        end. Returns at once."""
        message = admin_pb2.DrainRequest(timeout_ms=None if seconds is None else int(seconds * 1000))
        self._read(AdminServiceStub(self._internal).Drain, message, timeout)

    def reset_prefix_cache(self, *, timeout: float | None = None) -> int:
        """Frees every cached page that nobody uses; returns how many there were."""
        method = CacheServiceStub(self._internal).ResetPrefixCache
        return int(self._read(method, cache_pb2.ResetPrefixCacheRequest(), timeout).num_pages)
