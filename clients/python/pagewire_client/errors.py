"""Errors of the client library, and how a gRPC status becomes one of them.

    PagewireError
    |-- ServerError                  a call failed: code, reason, field violations, retry delay
    |   |-- InvalidRequestError      INVALID_ARGUMENT and kin; also raised before anything is sent
    |   |-- NotFoundError            NOT_FOUND
    |   |-- AlreadyExistsError       ALREADY_EXISTS
    |   |-- OverloadedError          RESOURCE_EXHAUSTED: queue or tenant limits, slow reader
    |   |-- UnavailableError         UNAVAILABLE: no server, draining, no worker
    |   |-- DeadlineExceededError    DEADLINE_EXCEEDED
    |   |-- RequestCancelledError    CANCELLED
    |   |-- UnauthenticatedError     UNAUTHENTICATED
    |   |-- PermissionDeniedError    PERMISSION_DENIED
    |   |-- UnimplementedError       UNIMPLEMENTED
    |   `-- InternalError            INTERNAL, UNKNOWN, DATA_LOSS, ABORTED
    |-- StackError                   a local stack did not start or broke down
    `-- FetchError                   a model could not be fetched

Knows nothing about what a request means. Invariant: whatever a server sends as details, decoding them never raises.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

_DETAILS_KEY = "grpc-status-details-bin"


class PagewireError(Exception):
    """Root of the tree."""


class StackError(PagewireError):
    """A local stack did not start or broke down. ``exit_code`` is the failed process's, if one exited."""

    def __init__(self, message: str, *, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class FetchError(PagewireError):
    """A model could not be fetched; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldViolation:
    """One field a server refused."""

    field: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusDetails:
    """What the google.rpc details of a status said."""

    reason: str = ""
    domain: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    field_violations: tuple[FieldViolation, ...] = ()
    retry_delay_seconds: float | None = None


class ServerError(PagewireError):
    """A call failed.

    ``code`` is the gRPC status code, ``reason`` and ``metadata`` come from google.rpc.ErrorInfo (empty without one),
    ``field_violations`` from BadRequest, ``retry_delay_seconds`` from RetryInfo (None: the server named none).
    """

    def __init__(self, message: str, *, code: grpc.StatusCode, details: StatusDetails | None = None) -> None:
        super().__init__(message)
        details = details or StatusDetails()
        self.message = message
        self.code = code
        self.reason = details.reason
        self.metadata = details.metadata
        self.field_violations = details.field_violations
        self.retry_delay_seconds = details.retry_delay_seconds

    def __str__(self) -> str:
        parts = [f"{self.code.name}: {self._what() or 'no message'}"]
        if self.retry_delay_seconds is not None:
            parts.append(f"retry in {self.retry_delay_seconds:.3g} s")
        return "; ".join(parts)

    def _what(self) -> str:
        """The message; one that tells the first wrong field and counts the others gives way to all of them."""
        told = [f"{v.field}: {v.description}" for v in self.field_violations]
        if told and self.message.startswith(told[0]):
            return "; ".join(told)
        return "; ".join([self.message, *(text for text in told if text not in self.message)])


class InvalidRequestError(ServerError):
    """A field is invalid, the prompt is too long, or the request can never fit."""


class NotFoundError(ServerError):
    """No such model or request."""


class AlreadyExistsError(ServerError):
    """A live request has this id."""


class OverloadedError(ServerError):
    """A queue or a quota is full, or this reader was too slow; see ``retry_delay_seconds``."""


class UnavailableError(ServerError):
    """No server answers, it drains, or it has no worker; see ``retry_delay_seconds``."""


class DeadlineExceededError(ServerError):
    """The call's deadline passed, or by the server's measurements could not be met."""


class RequestCancelledError(ServerError):
    """The call was cancelled, by this side or on the way."""


class UnauthenticatedError(ServerError):
    """No or bad credentials."""


class PermissionDeniedError(ServerError):
    """These credentials do not allow the call."""


class UnimplementedError(ServerError):
    """The server does not have this method."""


class InternalError(ServerError):
    """The server failed."""


_TYPES: dict[grpc.StatusCode, type[ServerError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequestError,
    grpc.StatusCode.FAILED_PRECONDITION: InvalidRequestError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExistsError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.CANCELLED: RequestCancelledError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
    grpc.StatusCode.UNIMPLEMENTED: UnimplementedError,
}


def server_error(code: grpc.StatusCode, message: str, details: StatusDetails | None = None) -> ServerError:
    """The error of the tree for one status."""
    return _TYPES.get(code, InternalError)(message, code=code, details=details)


def from_rpc_error(error: grpc.RpcError) -> ServerError:
    """The error of the tree for what grpc raised, sync (a call is its own error) or aio."""
    code = error.code() if hasattr(error, "code") else None
    message = error.details() if hasattr(error, "details") else str(error)
    trailers = error.trailing_metadata() if hasattr(error, "trailing_metadata") else None
    return server_error(code or grpc.StatusCode.UNKNOWN, message or "", status_details(trailers))


def from_status(status: status_pb2.Status) -> ServerError:
    """The error of the tree for a google.rpc.Status inside a message."""
    code = next((code for code in grpc.StatusCode if code.value[0] == status.code), grpc.StatusCode.UNKNOWN)
    return server_error(code, status.message, _decode(status))


def invalid_field(name: str, description: str) -> InvalidRequestError:
    """The error for a field this side can already see is invalid; the same type a server's refusal has."""
    violation = FieldViolation(field=name, description=description)
    return InvalidRequestError(
        f"{name}: {description}",
        code=grpc.StatusCode.INVALID_ARGUMENT,
        details=StatusDetails(field_violations=(violation,)),
    )


def status_details(trailers: Iterable[Any] | None) -> StatusDetails:
    """Decodes the google.rpc details among trailing metadata; empty if there are none or they are broken."""
    for key, value in trailers or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            try:
                return _decode(status_pb2.Status.FromString(value))
            except DecodeError:
                break
    return StatusDetails()


def _decode(status: status_pb2.Status) -> StatusDetails:
    error_info = error_details_pb2.ErrorInfo()
    bad_request = error_details_pb2.BadRequest()
    retry_info = error_details_pb2.RetryInfo()
    retry_delay_seconds = None
    for detail in status.details:
        detail.Unpack(error_info)
        detail.Unpack(bad_request)
        if detail.Unpack(retry_info):
            retry_delay_seconds = retry_info.retry_delay.ToTimedelta().total_seconds()
    violations = bad_request.field_violations
    return StatusDetails(
        reason=error_info.reason,
        domain=error_info.domain,
        metadata=dict(error_info.metadata),
        field_violations=tuple(FieldViolation(field=v.field, description=v.description) for v in violations),
        retry_delay_seconds=retry_delay_seconds,
    )
