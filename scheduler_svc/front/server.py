"""The front's gRPC servers and everything behind them, put together and taken apart.

The public server has the services callers use, and may have TLS; AdminService is among them if callers are known. The
internal one (loopback) has all services for everybody, a third one answers health alone. Limits are in the
application, not in `maximum_concurrent_rpcs`, which would refuse health too.
"""

import asyncio
import importlib.util
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
from grpc_channelz.v1 import channelz_pb2
from grpc_channelz.v1.channelz import add_channelz_servicer
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha._async import ReflectionServicer
from pagewire.kserve.v2 import inference_pb2_grpc
from pagewire.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    cache_pb2,
    cache_pb2_grpc,
    generation_pb2,
    generation_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
)

from scheduler_svc.front import kserve
from scheduler_svc.front.access import Access, AccessOptions, InternalAccess
from scheduler_svc.front.admin import AdminService
from scheduler_svc.front.cache import CacheService
from scheduler_svc.front.child_pool import NUM_PROCESSES
from scheduler_svc.front.compression import OPTIONS, PLAIN_OPTIONS
from scheduler_svc.front.errors import Reason, UnavailableError
from scheduler_svc.front.form_reader import FormReader
from scheduler_svc.front.generation import GenerationService
from scheduler_svc.front.hang_up import hang_up
from scheduler_svc.front.health import Health
from scheduler_svc.front.in_flight import InFlight
from scheduler_svc.front.listening import listen, server_options
from scheduler_svc.front.load_report import ORCA, LoadReport
from scheduler_svc.front.models import ModelService
from scheduler_svc.front.preparation import Preparation
from scheduler_svc.front.prompt import PromptReader
from scheduler_svc.front.scheduler_link import HEARTBEAT_SECONDS, SchedulerLink
from scheduler_svc.front.service_state import ServiceState
from scheduler_svc.front.status_interceptor import StatusInterceptor
from scheduler_svc.front.tls import TlsFiles, server_credentials

if TYPE_CHECKING:
    from scheduler_svc.front.tracing import Tracing

TOKENIZER_THREADS = 2
STOP_SECONDS = 1.0
REFUSAL_SECONDS = 0.25

GENERATION = generation_pb2.DESCRIPTOR.services_by_name["GenerationService"].full_name
MODEL = model_pb2.DESCRIPTOR.services_by_name["ModelService"].full_name
CACHE = cache_pb2.DESCRIPTOR.services_by_name["CacheService"].full_name
ADMIN = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
CHANNELZ = channelz_pb2.DESCRIPTOR.services_by_name["Channelz"].full_name
REFLECTION_V1 = "grpc.reflection.v1.ServerReflection"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontOptions:
    """How a front is set up. A port of None: no such server; 0: any free one."""

    front_endpoint: str
    host: str = "127.0.0.1"
    port: int = 0
    internal_port: int | None = None
    internal_host: str = "127.0.0.1"
    health_port: int | None = None
    health_host: str = "0.0.0.0"
    reuse_port: bool = False
    slow_reader_seconds: float = 30.0
    polling_seconds: float = 0.0
    """How long the loop looks for more before it sleeps, when it had work for a request."""
    max_connection_age_seconds: float = 0.0
    """Of the public port; 0: no limit."""
    max_connection_age_grace_seconds: float = 0.0
    """0: calls have all the time they need."""
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    tls: TlsFiles | None = None
    access: AccessOptions = field(default_factory=AccessOptions)
    tenants_share_pages: bool = False
    otlp_endpoint: str | None = None
    """A collector of traces; None: nothing is traced."""


class Front:
    """One front: link, services and servers."""

    def __init__(self, options: FrontOptions, *, on_refusal: Callable[[str], None] = lambda reason: None) -> None:
        self._options = options
        self._executor = ThreadPoolExecutor(TOKENIZER_THREADS, thread_name_prefix="tokenizer")
        self._chat_executor = ThreadPoolExecutor(NUM_PROCESSES, thread_name_prefix="chats")
        self._grammar_executor = ThreadPoolExecutor(NUM_PROCESSES, thread_name_prefix="grammars")
        self._state = ServiceState(self._executor)
        self._tracing = None if options.otlp_endpoint is None else _tracing(options.otlp_endpoint)
        self.in_flight = InFlight()
        self._health = Health((GENERATION, MODEL, CACHE, ADMIN))
        self.link = SchedulerLink(
            options.front_endpoint,
            on_service=self._state.update,
            on_lost=self._state.lost,
            on_refusal=on_refusal,
            heartbeat_seconds=options.heartbeat_seconds,
            polling_seconds=options.polling_seconds,
        )
        self.preparation = Preparation(
            self._state,
            PromptReader(self._executor, self._chat_executor),
            FormReader(self._grammar_executor),
            self.link.figures,
            self._tracing,
            tenants_share_pages=options.tenants_share_pages,
        )
        self._load_report = LoadReport(self.link)
        self._servers: list[Any] = []
        self.port = 0
        self.internal_port = 0
        self.health_port = 0

    async def start(self) -> None:
        """Binds the ports and starts to serve.

        Raises: PortInUseError; FileError if a certificate or the tokens cannot be read.
        """
        options = self._options
        credentials = None if options.tls is None else server_credentials(options.tls)
        is_admin = options.access.authenticates
        public = self._server(
            Access(options.access),
            is_admin=is_admin,
            options=server_options(
                options.reuse_port, options.max_connection_age_seconds, options.max_connection_age_grace_seconds
            ),
        )
        self.port = listen(public, options.host, options.port, options.reuse_port, credentials)
        if options.internal_port is not None:
            internal = self._server(InternalAccess(), is_admin=True, options=server_options(reuse_port=False))
            self.internal_port = listen(internal, options.internal_host, options.internal_port, flag="--internal-port")
        if options.health_port is not None:
            health = self._health_server()
            self.health_port = listen(health, options.health_host, options.health_port, flag="--health-port")
        self._state.listen(self._health.set)
        for server in self._servers:
            await server.start()
        self.link.start()
        self._load_report.start()

    async def stop(self, seconds: float) -> None:
        """Takes no more requests, gives the running ones so long, or what a drain leaves them, then ends everything.

        0: they get nothing. Connections end when none is left. Idempotent.
        """
        self._state.stop()
        was_idle = self.in_flight.is_idle
        await self._health.close()
        if not await self.in_flight.wait_patiently(seconds and max(seconds, self._state.drain_seconds_left)):
            self.link.fail_all(UnavailableError("the server stops", reason=Reason.SHUTDOWN.value, retry_ms=1000))
            await self.in_flight.wait_idle(STOP_SECONDS)
        elif not was_idle:
            # Whose stream just ended may ask again at once: it is told UNAVAILABLE; a stopping server would cancel it.
            await asyncio.sleep(REFUSAL_SECONDS)
            await self.in_flight.wait_idle(STOP_SECONDS)
        servers, self._servers = self._servers, []
        for server in servers:
            await hang_up(frozenset({self.port, self.internal_port, self.health_port}))
            await server.stop(STOP_SECONDS / 4)
        await self._state.close()
        await self._health.close()
        await self._load_report.close()
        await self.link.close()
        if self._tracing is not None:
            await self._tracing.close()
        for executor in (self._executor, self._chat_executor, self._grammar_executor):
            executor.shutdown(wait=False, cancel_futures=True)

    def _server(self, access: Access | InternalAccess, *, is_admin: bool, options: list[tuple[str, Any]]) -> Any:
        """A server with its services, not listening yet; ``is_admin``: AdminService is one of them."""
        is_stranger = access.is_stranger if isinstance(access, Access) else None
        outermost = StatusInterceptor(access.admit, is_stranger)
        server = grpc.aio.server(interceptors=[outermost], options=[*options, *OPTIONS])
        generation = GenerationService(
            self._state,
            self.link,
            self._executor,
            self.preparation,
            self.in_flight,
            self._load_report,
            self._tracing,
            slow_reader_seconds=self._options.slow_reader_seconds,
        )
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(generation, server)
        model_pb2_grpc.add_ModelServiceServicer_to_server(ModelService(self._state), server)
        cache = CacheService(self._state, self.preparation, self.link, self.in_flight)
        cache_pb2_grpc.add_CacheServiceServicer_to_server(cache, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health.servicer, server)
        server.add_generic_rpc_handlers((self._load_report.service(),))
        names = [GENERATION, MODEL, CACHE, HEALTH, ORCA]
        if is_admin:
            admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminService(self.link), server)
            add_channelz_servicer(server)
            names += [ADMIN, CHANNELZ]
        names += self._add_facades(server, generation)
        _add_reflection(server, [*names, reflection.SERVICE_NAME])
        self._servers.append(server)
        return server

    def _add_facades(self, server: Any, generation: GenerationService) -> list[str]:
        """Services in other people's words over the same generation; their names."""
        inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(
            kserve.InferenceService(generation, self._state), server
        )
        if importlib.util.find_spec("smg_grpc_proto") is None:
            return [kserve.SERVICE]
        from smg_grpc_proto.generated import vllm_engine_pb2_grpc

        from scheduler_svc.front import vllm_engine

        engine = vllm_engine.VllmEngine(generation, self._state, self.link)
        vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(engine, server)
        return [kserve.SERVICE, vllm_engine.SERVICE]

    def _health_server(self) -> Any:
        """For probes that reach neither the internal port nor have credentials."""
        server = grpc.aio.server(options=[*server_options(reuse_port=False), *PLAIN_OPTIONS])
        health_pb2_grpc.add_HealthServicer_to_server(self._health.servicer, server)
        self._servers.append(server)
        return server


def _tracing(endpoint: str) -> "Tracing":
    """The library is loaded where it is wanted only."""
    from scheduler_svc.front.tracing import Tracing

    return Tracing(endpoint)


def _add_reflection(server: Any, names: list[str]) -> None:
    """Reflection as v1alpha and, with the same messages, as v1."""
    servicer = ReflectionServicer(service_names=names)
    add_servicer: Any = reflection_pb2_grpc.add_ServerReflectionServicer_to_server
    add_servicer(servicer, server)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(REFLECTION_V1, {"ServerReflectionInfo": handler}),)
    )
