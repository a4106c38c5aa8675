"""The life of the scheduler process: bind, start the fronts, serve, drain, stop.

A first SIGTERM or SIGINT drains: balancers are told, no new requests are taken, running ones get ``--drain-seconds``. A
second one ends them at once. Fronts are stopped after their requests have ended, while the loop still answers them.
"""

import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType

import structlog

from scheduler_svc import code, curve, run_dir
from scheduler_svc.children import FrontFailed, Fronts
from scheduler_svc.config import SchedulerConfig, runtime_dir
from scheduler_svc.core.types import CoreConfig, SchedulingPolicy
from scheduler_svc.engine import Engine, EngineSettings
from scheduler_svc.freed_memory import keep_freed_memory
from scheduler_svc.machine import default_fronts, has_cores_to_spare
from scheduler_svc.metrics_server import MetricsPortError, MetricsServer
from scheduler_svc.polling import POLLING_SECONDS
from scheduler_svc.traced_core import TraceFile

_FRONT_STOP_SECONDS = 10.0
_CHECK_SECONDS = 0.1
# Cycles are rare here and the live objects many: look for them seldom.
_GC_THRESHOLDS = (50_000, 20, 100)


class SchedulerProcess:
    """One run of the scheduler."""

    def __init__(self, config: SchedulerConfig) -> None:
        """Claims and binds the endpoints.

        Raises: RunDirError, MetricsPortError, OSError.
        """
        self._config = config
        self._log = structlog.get_logger()
        state_dir = run_dir.prepare(config.state_dir or run_dir.default_directory(runtime_dir()))
        self._front_endpoint = run_dir.ipc_endpoint(state_dir / f"front-{config.port}.sock")
        worker_socket = run_dir.ipc_endpoint(state_dir / f"worker-{config.port}.sock")
        self._worker_endpoint = run_dir.shortened(config.worker_endpoint) if config.worker_endpoint else worker_socket
        key_file = config.prefix_hash_key_file
        hash_key = run_dir.hash_key(key_file or state_dir / "hash.key", make=key_file is None)
        self._polling_seconds = POLLING_SECONDS if has_cores_to_spare() else 0.0
        self._num_fronts = config.front_processes or default_fronts()
        if self._num_fronts > 1:
            _check_port(config.host, config.port)
        if config.zmq_curve_dir is not None:
            curve.ensure_keys(config.zmq_curve_dir)
        self._claims = [run_dir.claim(endpoint) for endpoint in self._endpoints]
        self._engine = Engine(self._engine_settings(hash_key))
        for endpoint in self._endpoints:
            run_dir.close_to_others(endpoint)
        self._fronts = Fronts(
            [self._front_command(number) for number in range(self._num_fronts)],
            watch=self._engine.watch,
            unwatch=self._engine.unwatch,
            on_ready=self._listening,
            reads_lines=config.log_format == "json",
        )
        self._metrics = self._metrics_server()
        self._num_signals = self._num_obeyed = 0
        self._next_check = 0.0
        self._is_listening = False

    def run(self) -> None:
        """Serves until a signal, or a drain asked for by a front, has ended everything.

        Raises: FrontFailed.
        """
        self._take_signals()
        try:
            self._fronts.start(time.monotonic())
            gc.collect()
            gc.freeze()
            gc.set_threshold(*_GC_THRESHOLDS)
            keep_freed_memory()
            self._engine.run(self._checked(lambda: self._engine.is_drained))
            self._stop_fronts()
        finally:
            self._fronts.kill()
            if self._metrics is not None:
                self._metrics.close()
            self._engine.close("it was asked to")
            for endpoint in self._endpoints:
                run_dir.remove(endpoint)
            for lock in self._claims:
                if lock is not None:
                    lock.close()
        self._log.info("stopped")

    @property
    def was_listening(self) -> bool:
        return self._is_listening

    @property
    def _endpoints(self) -> tuple[str, str]:
        return self._worker_endpoint, self._front_endpoint

    def _engine_settings(self, hash_key: bytes) -> EngineSettings:
        config = self._config
        target_ms = config.target_inter_token_ms
        return EngineSettings(
            worker_endpoint=self._worker_endpoint,
            front_endpoint=self._front_endpoint,
            hash_key=hash_key,
            worker_timeout_seconds=config.worker_timeout_seconds,
            drain_seconds=config.drain_seconds,
            drain_notice_seconds=config.drain_notice_seconds,
            curve_dir=config.zmq_curve_dir,
            polling_seconds=self._polling_seconds,
            trace_file=None if config.trace_file is None else TraceFile(config.trace_file),
            core=CoreConfig(
                max_num_batched_tokens=config.max_num_batched_tokens,
                max_num_seqs=config.max_num_seqs,
                max_model_len=config.max_model_len,
                enable_prefix_caching=config.enable_prefix_caching,
                long_prefill_token_threshold=config.long_prefill_token_threshold,
                target_step_seconds=None if target_ms is None else target_ms / 1000,
                worker_lost_seconds=config.worker_lost_seconds,
                max_queued_requests=config.max_queued_requests,
                max_queued_tokens=config.max_queued_tokens,
                page_watermark=config.page_watermark,
                scheduling_policy=SchedulingPolicy(config.scheduling_policy),
                aging_seconds=config.aging_seconds,
                tenant_fairness=config.tenant_fairness,
                tenant_weights=config.tenant_weights,
                pin_share=config.pin_share,
            ),
        )

    def _metrics_server(self) -> MetricsServer | None:
        """Raises: MetricsPortError; what was bound before is given back."""
        config = self._config
        if not config.metrics_port:
            return None
        try:
            return MetricsServer(
                config.metrics_host,
                config.metrics_port,
                self._engine.metrics,
                watch=self._engine.watch,
                unwatch=self._engine.unwatch,
                clock=time.monotonic,
            )
        except MetricsPortError:
            self._engine.close("it cannot start")
            for endpoint in self._endpoints:
                run_dir.remove(endpoint)
            raise

    def _front_command(self, number: int) -> list[str]:
        """The internal port is the first front's alone: several could not tell whose answer they get."""
        config = self._config
        settings = {
            "--front-endpoint": self._front_endpoint,
            "--host": config.host,
            "--port": config.port,
            "--internal-port": config.internal_port if number == 0 else 0,
            "--reuse-port": int(self._num_fronts > 1),
            "--polling-seconds": self._polling_seconds,
            "--slow-reader-seconds": config.slow_reader_seconds,
            "--max-connection-age-seconds": config.max_connection_age_seconds,
            "--max-connection-age-grace-seconds": config.max_connection_age_grace_seconds,
            "--log-format": config.log_format,
            "--otlp-endpoint": config.otlp_endpoint,
            "--health-port": config.health_port if number == 0 else 0,
            "--tls-cert": config.tls_cert,
            "--tls-key": config.tls_key,
            "--tls-client-ca": config.tls_client_ca,
            "--auth-tokens-file": config.auth_tokens_file,
            "--auth-jwks-file": config.auth_jwks_file,
            "--auth-jwt-issuer": config.auth_jwt_issuer,
            "--auth-jwt-audience": config.auth_jwt_audience,
            "--trust-tenant-metadata": int(config.trust_tenant_metadata),
            "--tenants-share-pages": int(config.tenants_share_pages),
            "--max-tenant-requests": config.max_tenant_requests,
            "--tenant-requests-per-minute": config.tenant_requests_per_minute,
        }
        given = {flag: value for flag, value in settings.items() if value is not None}
        return ["-m", "scheduler_svc.front", *(f"{flag}={value}" for flag, value in given.items())]

    def _listening(self) -> None:
        self._is_listening = True
        config = self._config
        self._log.info(
            "listening",
            host=config.host,
            port=config.port,
            internal_port=config.internal_port,
            metrics_port=config.metrics_port,
            worker_endpoint=self._worker_endpoint,
            pid=os.getpid(),
            code=code,
        )

    def _take_signals(self) -> None:
        """Signals wake the loop through a pipe; the handler itself does nothing but note them."""
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, self._note)
        self._engine.watch(read_end, lambda: self._woken(read_end))

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self._num_signals += 1

    def _woken(self, descriptor: int) -> None:
        os.read(descriptor, 4096)
        self._next_check = 0.0
        if self._num_signals > self._num_obeyed:
            self._num_obeyed = self._num_signals
            self._log.info("draining", signal=self._num_signals, requests=len(self._engine.desk.requests))
            if self._num_signals == 1:
                self._engine.drain()
            else:
                self._engine.drain(0.0, notice_seconds=0.0)
                self._fronts.hurry()

    def _checked(self, condition: Callable[[], bool]) -> Callable[[], bool]:
        """The condition, with a look at the fronts now and then."""

        def check() -> bool:
            now = time.monotonic()
            if now >= self._next_check:
                self._next_check = now + _CHECK_SECONDS
                self._fronts.check(now, self._engine.fronts.hung_pids(now))
            return condition()

        return check

    def _stop_fronts(self) -> None:
        """They write out what has ended; of that a reader may be slow, so they have what is left of the drain."""
        began = time.monotonic()

        def are_stopped() -> bool:
            deadline = max(began, self._engine.drain_until) + _FRONT_STOP_SECONDS
            return self._fronts.num_alive == 0 or time.monotonic() > deadline

        self._fronts.terminate()
        self._engine.run(self._checked(are_stopped))


def _check_port(host: str, port: int) -> None:
    """Several fronts share a port by leave of the kernel, which would let another server share it too.

    Raises: OSError.
    """
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise OSError(f"--host {host}: {error.strerror}") from None
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as error:
                raise OSError(f"--port {port}: cannot listen on {host}:{port}: {error.strerror}") from None


def run(config: SchedulerConfig) -> int:
    """The exit code: 0 after a clean stop, 2 if something is there already or not allowed, 1 for a crash."""
    try:
        process = SchedulerProcess(config)
    except (run_dir.RunDirError, MetricsPortError, OSError) as error:
        print(f"pagewire scheduler: {error}", file=sys.stderr)
        return 2
    try:
        process.run()
    except FrontFailed as error:
        print(f"pagewire scheduler: {error}", file=sys.stderr)
        return 1 if process.was_listening else 2
    return 0
