"""How the front's servers listen: the channel arguments of their ports, and a port that is taken said in one line."""

import socket
from typing import Any

import grpc

from scheduler_svc.front.compression import MAX_MESSAGE_BYTES


class PortInUseError(Exception):
    """A server cannot listen; the text is for people."""


def server_options(
    reuse_port: bool, max_age_seconds: float = 0.0, max_age_grace_seconds: float = 0.0
) -> list[tuple[str, Any]]:
    """Channel arguments of a server; of its connections' ages 0 is no limit.

    Clients that balance by connections alone, or a balancer that does, find new servers by connecting anew. gRPC
    spreads the ages by a tenth, so that those who came together do not go together.
    """
    ages = {"grpc.max_connection_age_ms": max_age_seconds}
    if max_age_seconds:
        ages["grpc.max_connection_age_grace_ms"] = max_age_grace_seconds
    return [
        *((name, int(seconds * 1000)) for name, seconds in ages.items() if seconds),
        ("grpc.so_reuseport", int(reuse_port)),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_metadata_size", 16 * 1024),
        ("grpc.absolute_max_metadata_size", 32 * 1024),
        ("grpc.max_concurrent_streams", 1000),
        # Who connects must come to the point: half-open handshakes are not kept for two minutes.
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # Lets clients ping during a silent prefill; without it they are told `too_many_pings`.
        ("grpc.http2.min_ping_interval_without_data_ms", 5000),
        ("grpc.http2.max_ping_strikes", 5),
        ("grpc.enable_channelz", 1),
    ]


def listen(
    server: Any,
    host: str,
    port: int,
    reuse_port: bool = False,
    credentials: grpc.ServerCredentials | None = None,
    *,
    flag: str = "--port",
) -> int:
    """Binds a server and returns its port, which ``flag`` gave.

    Raises: PortInUseError.
    """
    host = host.strip("[]")
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        _probe(host, port, reuse_port)
        if credentials is None:
            bound = int(server.add_insecure_port(address))
        else:
            bound = int(server.add_secure_port(address, credentials))
    except OSError as error:
        raise PortInUseError(f"{flag} {port}: cannot listen on {address}: {error.strerror}") from None
    except RuntimeError:
        bound = 0
    if not bound:  # somebody was quicker
        raise PortInUseError(f"{flag} {port}: cannot listen on {address}; is the port in use?")
    return bound


def _probe(host: str, port: int, reuse_port: bool) -> None:
    """Binds and lets go: gRPC's own failure writes lines of its library to stderr.

    Raises: OSError if the address cannot be bound.
    """
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if reuse_port:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            probe.bind(address)
