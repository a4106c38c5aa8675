"""How busy the server is, in the words of ORCA, so that stock balancers can weigh servers by it.

Every answer of GenerationService that ends well carries the report as the trailer `endpoint-load-metrics-bin`;
`xds.service.orca.v3.OpenRcaService` streams it out of band. Both tell what the scheduler said last, at most a second
ago; while it is not known, nothing is told.
"""

import asyncio
import contextlib
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from pagewire.v1 import admin_pb2
from xds.data.orca.v3 import orca_load_report_pb2
from xds.service.orca.v3 import orca_pb2

from scheduler_svc.front.errors import FrontError
from scheduler_svc.front.scheduler_link import SchedulerLink

TRAILER = "endpoint-load-metrics-bin"
POLL_SECONDS = 1.0
LEAST_INTERVAL_SECONDS = 0.5
ORCA = orca_pb2.DESCRIPTOR.services_by_name["OpenRcaService"].full_name


class LoadReport:
    """Asks the scheduler once a second."""

    def __init__(self, link: SchedulerLink) -> None:
        self._link = link
        self._task: asyncio.Task[None] | None = None
        self.report: Any = None
        """The last OrcaLoadReport; None while the scheduler is not heard."""
        self.trailers: tuple[tuple[str, bytes], ...] = ()

    def start(self) -> None:
        """Begins to ask."""
        self._task = asyncio.get_running_loop().create_task(self._poll())

    async def close(self) -> None:
        """Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _poll(self) -> None:
        while True:
            report = None
            with contextlib.suppress(FrontError, DecodeError):
                report = report_of(admin_pb2.GetLoadResponse.FromString(await self._link.query(load=True)))
            self.report = report
            self.trailers = () if report is None else ((TRAILER, report.SerializeToString()),)
            await asyncio.sleep(POLL_SECONDS)

    def service(self) -> "grpc.GenericRpcHandler":
        """OpenRcaService."""
        method = grpc.unary_stream_rpc_method_handler(
            self._stream,
            request_deserializer=orca_pb2.OrcaLoadReportRequest.FromString,
            response_serializer=orca_load_report_pb2.OrcaLoadReport.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(ORCA, {"StreamCoreMetrics": method})

    async def _stream(self, request: Any, context: Any) -> None:
        """A report at once, or as soon as there is one, and then in each interval, as long as the caller listens."""
        seconds = max(LEAST_INTERVAL_SECONDS, request.report_interval.ToTimedelta().total_seconds())
        while True:
            report = self.report
            if report is not None:
                await context.write(report)
            await asyncio.sleep(LEAST_INTERVAL_SECONDS if report is None else seconds)


def report_of(load: Any) -> Any:
    """An OrcaLoadReport of a GetLoadResponse. `mem_utilization` is the share of pages that requests hold."""
    usage = load.num_held_pages / load.num_pages if load.num_pages else 0.0
    metrics = {
        "kv_cache_usage_perc": usage,
        "num_requests_running": float(load.num_requests_running),
        "num_requests_waiting": float(load.num_requests_waiting),
    }
    return orca_load_report_pb2.OrcaLoadReport(mem_utilization=usage, named_metrics=metrics)
