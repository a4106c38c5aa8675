"""`python -m scheduler_svc.front`: one front process, started by the scheduler.

Writes the line "ready" to --ready-fd once its ports are bound, or "error: TEXT" if they cannot be. Ends with code 0 on
SIGTERM or when its parent is gone, 2 if it cannot listen, cannot use a file of keys or is refused by the scheduler.
SIGINT is left to the parent.
"""

import argparse
import asyncio
import gc
import os
import signal
import sys
from pathlib import Path

import structlog
import uvloop

from scheduler_svc.front.access import AccessOptions
from scheduler_svc.front.caller import TenantLimits
from scheduler_svc.front.listening import PortInUseError
from scheduler_svc.front.parent import die_with_parent, wait_for_orphanhood
from scheduler_svc.front.reloaded_file import FileError
from scheduler_svc.front.server import Front, FrontOptions
from scheduler_svc.front.tls import TlsFiles
from scheduler_svc.log import configure

STOP_SECONDS = 3.0
EXIT_REFUSED = 2
# Cycles are rare here and modules many: look for them seldom, and not among what stays.
_GC_THRESHOLDS = (50_000, 20, 100)


def main() -> int:
    """Parses the arguments and runs the front."""
    arguments = _parser().parse_args()
    configure(arguments.log_format)
    parent = os.getppid()
    die_with_parent()
    if hasattr(asyncio, "Runner"):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(arguments, parent))
    loop = uvloop.new_event_loop()
    try:
        return int(loop.run_until_complete(_run(arguments, parent)))
    finally:
        loop.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scheduler_svc.front", description=__doc__)
    parser.add_argument("--front-endpoint", required=True, help="ZeroMQ endpoint of the scheduler")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--internal-port", type=int, default=0, help="0: no internal server")
    parser.add_argument("--health-port", type=int, default=0, help="0: no server for health alone")
    parser.add_argument("--reuse-port", type=int, choices=(0, 1), default=0)
    parser.add_argument("--slow-reader-seconds", type=float, default=30.0)
    parser.add_argument("--polling-seconds", type=float, default=0.0, help="see polling.py")
    for name in ("--max-connection-age-seconds", "--max-connection-age-grace-seconds"):
        parser.add_argument(name, type=float, default=0.0)
    for name in ("--tls-cert", "--tls-key", "--tls-client-ca", "--auth-tokens-file", "--auth-jwks-file"):
        parser.add_argument(name, type=Path, default=None)
    for name in ("--auth-jwt-issuer", "--auth-jwt-audience"):
        parser.add_argument(name, default=None)
    for name in ("--trust-tenant-metadata", "--tenants-share-pages"):
        parser.add_argument(name, type=int, choices=(0, 1), default=0)
    for name in ("--max-tenant-requests", "--tenant-requests-per-minute"):
        parser.add_argument(name, type=int, default=0)
    parser.add_argument("--otlp-endpoint", default=None, help="where traces go; none if not given")
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    parser.add_argument("--ready-fd", type=int, default=None, help="file descriptor that is told how the start went")
    return parser


async def _run(arguments: argparse.Namespace, parent: int) -> int:
    log = structlog.get_logger("pagewire.front")
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    refusals: list[str] = []

    def refused(reason: str) -> None:
        refusals.append(reason)
        stop.set()

    front = Front(_options(arguments), on_refusal=refused)

    def terminated() -> None:
        if stop.is_set():
            front.in_flight.hurry()
        stop.set()

    loop.add_signal_handler(signal.SIGTERM, terminated)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        await front.start()
    except (PortInUseError, FileError) as error:
        _tell(arguments.ready_fd, f"error: {error}")
        await front.stop(0)
        return EXIT_REFUSED
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    _tell(arguments.ready_fd, "ready")
    log.info(
        "front_listening", host=arguments.host, port=front.port, internal_port=front.internal_port, pid=os.getpid()
    )
    is_orphan = await _wait(stop, parent)
    if refusals:
        log.error("front_refused", reason=refusals[0])
    await front.stop(0 if is_orphan or refusals else STOP_SECONDS)
    return EXIT_REFUSED if refusals else 0


async def _wait(stop: asyncio.Event, parent: int) -> bool:
    """Until the front is to stop; whether that is because its parent has gone."""
    orphaned = asyncio.ensure_future(wait_for_orphanhood(parent))
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait([orphaned, stopped], return_when=asyncio.FIRST_COMPLETED)
    is_orphan = orphaned.done() or os.getppid() != parent
    orphaned.cancel()
    stopped.cancel()
    return is_orphan


def _options(arguments: argparse.Namespace) -> FrontOptions:
    return FrontOptions(
        front_endpoint=arguments.front_endpoint,
        host=arguments.host,
        port=arguments.port,
        internal_port=arguments.internal_port or None,
        health_port=arguments.health_port or None,
        reuse_port=bool(arguments.reuse_port),
        slow_reader_seconds=arguments.slow_reader_seconds,
        polling_seconds=arguments.polling_seconds,
        max_connection_age_seconds=arguments.max_connection_age_seconds,
        max_connection_age_grace_seconds=arguments.max_connection_age_grace_seconds,
        otlp_endpoint=arguments.otlp_endpoint,
        tls=_tls(arguments),
        access=_access(arguments),
        tenants_share_pages=bool(arguments.tenants_share_pages),
    )


def _tls(arguments: argparse.Namespace) -> TlsFiles | None:
    if arguments.tls_cert is None:
        return None
    return TlsFiles(cert=arguments.tls_cert, key=arguments.tls_key, client_ca=arguments.tls_client_ca)


def _access(arguments: argparse.Namespace) -> AccessOptions:
    return AccessOptions(
        tokens_file=arguments.auth_tokens_file,
        jwks_file=arguments.auth_jwks_file,
        jwt_issuer=arguments.auth_jwt_issuer,
        jwt_audience=arguments.auth_jwt_audience,
        client_certificates=arguments.tls_client_ca is not None,
        trust_tenant_metadata=bool(arguments.trust_tenant_metadata),
        limits=TenantLimits(
            max_concurrent_requests=arguments.max_tenant_requests,
            requests_per_minute=arguments.tenant_requests_per_minute,
        ),
    )


def _tell(ready_fd: int | None, line: str) -> None:
    """One line to whoever started us; an error to stderr if nobody listens."""
    if ready_fd is None:
        if line.startswith("error"):
            print(line, file=sys.stderr)
        return
    with os.fdopen(ready_fd, "w") as pipe:
        pipe.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
