"""Who makes a call: known before the call's handler begins, to it and to the tasks it starts."""

from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Role(Enum):
    """What a caller may do."""

    USER = "user"
    """Its own requests."""
    PROXY = "proxy"
    """Requests of the tenants that it names."""
    ADMIN = "admin"
    """Everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimits:
    """What one tenant may ask for; 0: no limit."""

    max_concurrent_requests: int = 0
    requests_per_minute: int = 0


UNLIMITED = TenantLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """``tenant`` is empty where tenants are not known."""

    tenant: str = ""
    role: Role = Role.USER
    limits: TenantLimits = UNLIMITED


REQUEST_ID = "x-request-id"
MAX_ECHO_CHARS = 256


def echo(context: Any) -> tuple[tuple[str, str], ...]:
    """Trailing metadata that tells a caller its own name of a call, if it gave one that metadata can carry."""
    metadata = context.invocation_metadata() or ()
    return tuple(entry for entry in metadata if entry[0] == REQUEST_ID and _can_be_told(entry[1]))[:1]


def _can_be_told(name: str | bytes) -> bool:
    """Others arrive (bytes, where they are no UTF-8), but gRPC sends no such text: the call would end INTERNAL."""
    return isinstance(name, str) and len(name) <= MAX_ECHO_CHARS and all(" " <= char <= "~" for char in name)


NOBODY = Caller()
CALLER: ContextVar[Caller] = ContextVar("caller", default=NOBODY)
"""Set by the interceptor around each handler."""
