"""grpc.health.v1: one answer for every service, following the service state, and one for whether we live.

NOT_SERVING until a worker is there and the model is built, before and while draining, and after the last worker was
lost. `liveness` is another question, for whoever restarts what is stuck: NOT_SERVING when the scheduler is not heard
any more, or has work and workers and nothing moves.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from grpc_health.v1 import health_pb2
from grpc_health.v1._async import HealthServicer

LIVENESS = "liveness"
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Health:
    """Keeps the servicer's statuses; changes are applied in order by one task."""

    def __init__(self, services: Sequence[str]) -> None:
        self.servicer: Any = HealthServicer()
        self._services = ("", *services)
        self._wanted: dict[str, bool] = {}
        self._told: dict[str, bool] = {}
        self._task: asyncio.Task[None] | None = None

    def set(self, serving: bool, alive: bool) -> None:
        """All services are serving, or none."""
        self._wanted = {**dict.fromkeys(self._services, serving), LIVENESS: alive}
        if self._task is None and self._told != self._wanted:
            self._task = asyncio.get_running_loop().create_task(self._tell())

    async def close(self) -> None:
        """Waits until watchers were told."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _tell(self) -> None:
        try:
            while self._told != self._wanted:
                wanted = self._told = self._wanted
                for service, good in wanted.items():
                    await self.servicer.set(service, _SERVING if good else _NOT_SERVING)
        finally:
            self._task = None
