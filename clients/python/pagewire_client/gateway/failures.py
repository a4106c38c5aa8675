"""Errors in OpenAI's shape: {"error": {"message", "type", "param", "code"}}, with the HTTP status that fits.

gRPC status           HTTP   type
INVALID_ARGUMENT      400    invalid_request_error, param: the field at fault
UNAUTHENTICATED       401    authentication_error
PERMISSION_DENIED     403    permission_error
NOT_FOUND             404    invalid_request_error, code model_not_found
ALREADY_EXISTS        409    invalid_request_error
RESOURCE_EXHAUSTED    429    rate_limit_error, Retry-After
UNIMPLEMENTED         501    invalid_request_error
UNAVAILABLE           503    service_unavailable, Retry-After
DEADLINE_EXCEEDED     504    timeout
others                500    server_error
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import grpc
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from ..errors import ServerError

Code = grpc.StatusCode
_SHAPES: Mapping[grpc.StatusCode, tuple[int, str]] = {
    Code.INVALID_ARGUMENT: (400, "invalid_request_error"),
    Code.UNAUTHENTICATED: (401, "authentication_error"),
    Code.PERMISSION_DENIED: (403, "permission_error"),
    Code.NOT_FOUND: (404, "invalid_request_error"),
    Code.ALREADY_EXISTS: (409, "invalid_request_error"),
    Code.RESOURCE_EXHAUSTED: (429, "rate_limit_error"),
    Code.UNIMPLEMENTED: (501, "invalid_request_error"),
    Code.UNAVAILABLE: (503, "service_unavailable"),
    Code.DEADLINE_EXCEEDED: (504, "timeout"),
}
_NAMES = {"chat": "messages", "text": "prompt", "token_ids": "prompt"}


class BadRequestError(Exception):
    """A field that cannot even be sent."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(f"{param}: {message}")
        self.param = param


def body_of(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """The JSON of an error."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def server_body(error: ServerError) -> dict[str, Any]:
    """The JSON of what the server said."""
    _, kind = _SHAPES.get(error.code, (500, "server_error"))
    fields = [violation.field for violation in error.field_violations]
    param = _NAMES.get(fields[0], fields[0].rpartition(".")[2]) if fields else None
    code = error.reason.lower() or None
    return body_of(error.message, kind, param, code)


def server_failure(error: ServerError) -> JSONResponse:
    """The answer to a call that failed."""
    status, _ = _SHAPES.get(error.code, (500, "server_error"))
    headers = {}
    if error.retry_delay_seconds is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_delay_seconds)))
    return JSONResponse(server_body(error), status, headers)


def bad_request(error: BadRequestError) -> JSONResponse:
    """The answer to a body that cannot be sent on."""
    return JSONResponse(body_of(str(error), "invalid_request_error", error.param), 400)


def http_failure(error: HTTPException) -> JSONResponse:
    """The answer to a route or a method that does not exist, or a body that cannot be parsed."""
    return JSONResponse(body_of(error.detail, "invalid_request_error"), error.status_code, error.headers)


def own_failure(error: Exception) -> JSONResponse:
    """The answer where the gateway itself is at fault; the log says more."""
    return JSONResponse(body_of("the gateway failed", "server_error", code="internal"), 500)


def bad_body(error: RequestValidationError) -> JSONResponse:
    """The answer to a body of the wrong shape; what was sent is not repeated."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return JSONResponse(body_of("the body is no JSON", "invalid_request_error"), 400)
    if first["type"] == "model_attributes_type" and first["loc"] == ("body",):
        return JSONResponse(
            body_of("the body is no JSON object sent with Content-Type: application/json", "invalid_request_error"), 400
        )
    path = [str(part) for part in first["loc"] if part != "body"]
    message = str(first["msg"]).removeprefix("Value error, ")
    return JSONResponse(
        body_of(
            f"{'.'.join(path)}: {message}" if path else message, "invalid_request_error", path[0] if path else None
        ),
        400,
    )
