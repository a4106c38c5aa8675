# ruff: noqa: N802 (methods are named as in the proto)
"""pagewire.v1.AdminService: asks the scheduler. Who may call it is decided before."""

from typing import Any

from pagewire.v1 import admin_pb2, admin_pb2_grpc

from scheduler_svc.front.caller import CALLER
from scheduler_svc.front.errors import Reason
from scheduler_svc.front.scheduler_link import SchedulerLink
from scheduler_svc.front.validation import LONGEST_MS


class AdminService(admin_pb2_grpc.AdminServiceServicer):  # type: ignore[misc]
    """Looks into the server through the scheduler."""

    def __init__(self, link: SchedulerLink) -> None:
        self._link = link

    async def GetLoad(self, request: Any, context: Any) -> Any:
        """Counts now."""
        return admin_pb2.GetLoadResponse.FromString(await self._link.query(load=True))

    async def ListWorkers(self, request: Any, context: Any) -> Any:
        """The workers now."""
        return admin_pb2.ListWorkersResponse.FromString(await self._link.query(workers=True))

    async def Drain(self, request: Any, context: Any) -> Any:
        """Starts a drain of the whole server."""
        if request.HasField("timeout_ms"):
            await self._link.query(drain_ms=min(request.timeout_ms, LONGEST_MS))
        else:
            await self._link.query(drain=True)
        return admin_pb2.DrainResponse()

    async def UpdateLimits(self, request: Any, context: Any) -> Any:
        """Changes limits."""
        return admin_pb2.UpdateLimitsResponse.FromString(await self._link.query(update_limits=request))

    async def RemoveWorker(self, request: Any, context: Any) -> Any:
        """Lets a worker go."""
        reply = await self._link.query(missing=Reason.WORKER_NOT_FOUND, remove_worker_id=request.worker_id)
        return admin_pb2.RemoveWorkerResponse.FromString(reply)

    async def ExplainRequest(self, request: Any, context: Any) -> Any:
        """What the scheduler decided about a request."""
        reply = await self._link.query(CALLER.get().tenant, explain_request_id=request.request_id)
        return admin_pb2.ExplainRequestResponse.FromString(reply)
