"""How a channel to a server is opened: options, credentials, retries.

Retries are gRPC's own, from the service config below: reads up to 4 attempts, generation up to 3, only on UNAVAILABLE
and only before the first message of the answer (gRPC commits a call at its first byte), throttled over the whole
channel. Of generation's two delays the first is for another server that may be there, the second for this one to be
started again: together they take 1.5 s at least. A server's pushback is honoured. Nothing that changes a server is
retried but CancelRequest, which may run twice; nothing is ever hedged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import grpc

from .errors import invalid_field

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
_READS = {
    "pagewire.v1.GenerationService": ("Tokenize", "Detokenize", "GetRequest", "Quote", "CancelRequest"),
    "pagewire.v1.CacheService": ("ExplainPrefix", "ListPins"),
    "pagewire.v1.ModelService": ("ListModels", "GetModel"),
    "pagewire.v1.AdminService": ("GetLoad", "ListWorkers"),
    "grpc.health.v1.Health": ("Check",),
}
_GENERATION = {"pagewire.v1.GenerationService": ("Generate", "GenerateOnce")}


LONGEST_TIMEOUT_SECONDS = 1e9


def call_timeout(seconds: float | None) -> float | None:
    """What gRPC takes for a timeout: none for one longer than 31 years, as it counts nanoseconds in 63 bits.

    Raises: InvalidRequestError for NaN.
    """
    if seconds is None or seconds > LONGEST_TIMEOUT_SECONDS:
        return None
    if seconds != seconds:
        raise invalid_field("timeout", "must be a number")
    return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS towards a server. All None: the system's roots, no client certificate. Values are PEM."""

    root_certificates: bytes | None = None
    private_key: bytes | None = None
    certificate_chain: bytes | None = None
    server_name: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """What grpc takes."""
        return grpc.ssl_channel_credentials(self.root_certificates, self.private_key, self.certificate_chain)


def _policy(max_attempts: int, first_backoff: str, multiplier: int) -> dict[str, object]:
    """Delays are what is said here, give or take a fifth."""
    return {
        "maxAttempts": max_attempts,
        "initialBackoff": first_backoff,
        "maxBackoff": "2s",
        "backoffMultiplier": multiplier,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }


def service_config() -> str:
    """The service config as JSON."""

    def entry(methods: Mapping[str, tuple[str, ...]], policy: dict[str, object]) -> dict[str, object]:
        names = [{"service": service, "method": method} for service in methods for method in methods[service]]
        return {"name": names, "retryPolicy": policy}

    config = {
        "methodConfig": [entry(_READS, _policy(4, "0.1s", 2)), entry(_GENERATION, _policy(3, "0.15s", 12))],
        # Some hundred calls may fail together when a server is started again.
        "retryThrottling": {"maxTokens": 1000, "tokenRatio": 0.1},
    }
    return json.dumps(config)


def channel_options(tls: Tls | None) -> list[tuple[str, str | int]]:
    """Options of a channel, sync or aio."""
    options: list[tuple[str, str | int]] = [
        ("grpc.service_config", service_config()),
        ("grpc.enable_retries", 1),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        # A server that vanished without a word is noticed within 80 s, also while a prompt is silently computed.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        # A server that is started again is found soon: by default gRPC looks after 1 s, 2.6 s, ...
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 300),
        # Every client has a connection of its own: another client's backoff never delays it.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if tls is not None and tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return options


def call_metadata(token: str | None, metadata: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Metadata of every call: the caller's own, and the token as a bearer.

    Raises: InvalidRequestError for what gRPC cannot carry: it would say so at the first call, and not of what.
    """
    own = tuple(metadata)
    for name, value in (("token", token or ""), *own):
        if isinstance(value, str) and not (value.isascii() and value.isprintable()):
            raise invalid_field(name, "must be printable ASCII")
    return (*own, ("authorization", f"Bearer {token}")) if token else own


def health_request(service: str) -> bytes:
    """grpc.health.v1.HealthCheckRequest{service} in its encoding: field 1, length-delimited."""
    name = service.encode()
    if len(name) > 127:
        raise ValueError("a service name has at most 127 bytes")
    return b"" if not name else bytes((0x0A, len(name))) + name


def health_number(response: bytes) -> int:
    """The status of a grpc.health.v1.HealthCheckResponse: field 1, varint; 0 (UNKNOWN) if absent."""
    return response[1] if len(response) >= 2 and response[0] == 0x08 else 0
