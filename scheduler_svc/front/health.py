"""grpc.health.v1: one answer for every service, following the service state.

NOT_SERVING until a worker is there and the model is built, while draining, and after the last worker was lost.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from grpc_health.v1 import health_pb2
from grpc_health.v1._async import HealthServicer


class Health:
    """Keeps the servicer's statuses; changes are applied in order by one task."""

    def __init__(self, services: Sequence[str]) -> None:
        self.servicer: Any = HealthServicer()
        self._services = ("", *services)
        self._wanted: bool | None = None
        self._told: bool | None = None
        self._task: asyncio.Task[None] | None = None

    def set_serving(self, serving: bool) -> None:
        """All services are serving, or none."""
        self._wanted = serving
        if self._task is None and self._told != serving:
            self._task = asyncio.get_running_loop().create_task(self._tell())

    async def close(self) -> None:
        """Waits until watchers were told."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _tell(self) -> None:
        try:
            while self._told != self._wanted:
                serving = self._told = self._wanted
                status = (
                    health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
                )
                for service in self._services:
                    await self.servicer.set(service, status)
        finally:
            self._task = None
