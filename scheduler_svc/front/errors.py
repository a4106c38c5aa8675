"""What can go wrong with a call, and the gRPC status each becomes.

    FrontError
    +-- InvalidRequestError      INVALID_ARGUMENT    every violation at once, as BadRequest
    +-- NotFoundError            NOT_FOUND
    +-- AlreadyExistsError       ALREADY_EXISTS
    +-- ExhaustedError           RESOURCE_EXHAUSTED  with RetryInfo where waiting helps
    +-- UnavailableError         UNAVAILABLE         with RetryInfo
    +-- DeadlinePassedError      DEADLINE_EXCEEDED   stage and usage in the ErrorInfo
    +-- UnauthenticatedError     UNAUTHENTICATED     the text names no part of a credential
    +-- NotAllowedError          PERMISSION_DENIED
    +-- UnsupportedError         UNIMPLEMENTED
    +-- InternalError              INTERNAL            fixed text, never the cause

Invariants: a status carries an ErrorInfo of domain `pagewire.dev` whose reason is one of `Reason`; its trailers stay
below `MAX_DETAILS_BYTES`, because clients refuse larger ones without telling why; nothing of a prompt is in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

DOMAIN = "pagewire.dev"
MAX_DETAILS_BYTES = 5000
MAX_MESSAGE_CHARS = 400
MAX_VIOLATIONS = 32
MAX_DESCRIPTION_CHARS = 300
STATUS_KEY = "grpc-status-details-bin"
PUSHBACK_KEY = "grpc-retry-pushback-ms"

INTERNAL_MESSAGE = "internal error; the server's log has the details"


class Reason(str, Enum):
    """Reasons of ErrorInfo, documented in docs/api.md."""

    INVALID_FIELD = "INVALID_FIELD"
    MODEL_NOT_FOUND = "MODEL_NOT_FOUND"
    REQUEST_NOT_FOUND = "REQUEST_NOT_FOUND"
    WORKER_NOT_FOUND = "WORKER_NOT_FOUND"
    PIN_NOT_FOUND = "PIN_NOT_FOUND"
    REQUEST_EXISTS = "REQUEST_EXISTS"
    QUEUE_FULL = "QUEUE_FULL"
    TENANT_QUOTA = "TENANT_QUOTA"
    PIN_QUOTA = "PIN_QUOTA"
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
    SLOW_READER = "SLOW_READER"
    NO_WORKER = "NO_WORKER"
    WORKER_LOST = "WORKER_LOST"
    DRAINING = "DRAINING"
    SCHEDULER_LOST = "SCHEDULER_LOST"
    SHUTDOWN = "SHUTDOWN"
    DEADLINE = "DEADLINE"
    CANCELLED = "CANCELLED"
    NO_CREDENTIALS = "NO_CREDENTIALS"
    BAD_CREDENTIALS = "BAD_CREDENTIALS"
    NOT_ALLOWED = "NOT_ALLOWED"
    RESUMED_ELSEWHERE = "RESUMED_ELSEWHERE"
    NOT_SUPPORTED = "NOT_SUPPORTED"
    NAN_LOGITS = "NAN_LOGITS"
    STEP_FAILED = "STEP_FAILED"
    INTERNAL = "INTERNAL"


@dataclass(frozen=True, slots=True)
class Violation:
    """One field at fault: its path inside GenerateRequest (or the call's own request) and one sentence."""

    field: str
    description: str


class FrontError(Exception):
    """A call ends with this status."""

    code: grpc.StatusCode = grpc.StatusCode.INTERNAL

    def __init__(
        self,
        message: str,
        *,
        reason: str,
        metadata: Mapping[str, str] | None = None,
        retry_ms: int = 0,
        violations: Sequence[Violation] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.metadata = dict(metadata or {})
        self.retry_ms = retry_ms
        self.violations = tuple(violations)

    def to_status(self) -> status_pb2.Status:
        """The status with its details, small enough for any client."""
        status = status_pb2.Status(code=self.code.value[0], message=_shortened(self.message, MAX_MESSAGE_CHARS))
        info = error_details_pb2.ErrorInfo(reason=self.reason, domain=DOMAIN, metadata=self.metadata)
        status.details.append(_packed(info))
        if self.retry_ms > 0:
            delay = duration_pb2.Duration(seconds=self.retry_ms // 1000, nanos=self.retry_ms % 1000 * 1_000_000)
            status.details.append(_packed(error_details_pb2.RetryInfo(retry_delay=delay)))
        if self.violations:
            status.details.append(_packed(_bad_request(self.violations, MAX_DETAILS_BYTES - status.ByteSize())))
        return status

    def trailers(self) -> tuple[tuple[str, str | bytes], ...]:
        """Trailing metadata that carries the status' details."""
        trailers: list[tuple[str, str | bytes]] = [(STATUS_KEY, self.to_status().SerializeToString())]
        if self.retry_ms > 0:
            trailers.append((PUSHBACK_KEY, str(self.retry_ms)))
        return tuple(trailers)


class InvalidRequestError(FrontError):
    """Fields are at fault; the request can never run like this."""

    code = grpc.StatusCode.INVALID_ARGUMENT

    def __init__(self, violations: Sequence[Violation]) -> None:
        first = violations[0]
        more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
        super().__init__(
            f"{first.field}: {first.description}{more}", reason=Reason.INVALID_FIELD.value, violations=violations
        )

    @classmethod
    def at(cls, field: str, description: str) -> "InvalidRequestError":
        """One field is at fault."""
        return cls([Violation(field, description)])


class NotFoundError(FrontError):
    """There is no such model or request."""

    code = grpc.StatusCode.NOT_FOUND


class AlreadyExistsError(FrontError):
    """A live request has this id."""

    code = grpc.StatusCode.ALREADY_EXISTS


class ExhaustedError(FrontError):
    """A limit is reached."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class UnavailableError(FrontError):
    """Nobody can serve it now; trying again helps."""

    code = grpc.StatusCode.UNAVAILABLE


class DeadlinePassedError(FrontError):
    """The caller's deadline passed."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class CancelledError(FrontError):
    """The request was ended on the caller's behalf while the call still stands."""

    code = grpc.StatusCode.CANCELLED


class UnauthenticatedError(FrontError):
    """The caller is not known."""

    code = grpc.StatusCode.UNAUTHENTICATED

    def __init__(self, message: str, reason: Reason = Reason.BAD_CREDENTIALS) -> None:
        super().__init__(message, reason=reason.value)


class NotAllowedError(FrontError):
    """The caller is known and may not do that."""

    code = grpc.StatusCode.PERMISSION_DENIED

    def __init__(self, message: str) -> None:
        super().__init__(message, reason=Reason.NOT_ALLOWED.value)


class UnsupportedError(FrontError):
    """The method is part of the contract and not built yet."""

    code = grpc.StatusCode.UNIMPLEMENTED

    def __init__(self, method: str) -> None:
        super().__init__(f"{method} is not supported by this server yet", reason=Reason.NOT_SUPPORTED.value)


class InternalError(FrontError):
    """The server is at fault; the text is fixed."""

    code = grpc.StatusCode.INTERNAL

    def __init__(self, reason: str = Reason.INTERNAL.value, message: str = INTERNAL_MESSAGE) -> None:
        super().__init__(message, reason=reason)


def forget_frames(error: BaseException) -> None:
    """Lets go of the frames that an error came through, and of all they hold."""
    error.__traceback__ = error.__context__ = None


_CLASSES: dict[int, type[FrontError]] = {
    5: NotFoundError,
    6: AlreadyExistsError,
    8: ExhaustedError,
    14: UnavailableError,
    4: DeadlinePassedError,
    1: CancelledError,
}


def error_of_code(code: int, *, reason: str, message: str, field: str = "", retry_ms: int = 0) -> FrontError:
    """The error for a google.rpc.Code the scheduler answered with; unknown codes are failures."""
    if code == 3:
        return InvalidRequestError.at(field or "request", message)
    if code == 12:
        return UnsupportedError("this")
    found = _CLASSES.get(code)
    if found is None:
        return InternalError(reason or Reason.INTERNAL.value)
    return found(message, reason=reason or found.__name__.upper(), retry_ms=retry_ms)


def _bad_request(violations: Sequence[Violation], room: int) -> error_details_pb2.BadRequest:
    """As many violations as fit; a last one tells how many are left out."""
    bad = error_details_pb2.BadRequest()
    for position, violation in enumerate(violations):
        entry = error_details_pb2.BadRequest.FieldViolation(
            field=_shortened(violation.field, 100), description=_shortened(violation.description, MAX_DESCRIPTION_CHARS)
        )
        if position >= MAX_VIOLATIONS or bad.ByteSize() + entry.ByteSize() > room - 200:
            left = len(violations) - position
            bad.field_violations.add(field="", description=f"{left} more violations are left out")
            break
        bad.field_violations.append(entry)
    return bad


def _packed(
    detail: error_details_pb2.BadRequest | error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo,
) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed


def _shortened(text: str, limit: int) -> str:
    """What a status can carry: callers' JSON names fields with halves of surrogate pairs, which UTF-8 cannot write."""
    short = text if len(text) <= limit else text[: limit - 3] + "..."
    return short.encode(errors="replace").decode()
