"""The gateway's HTTP routes."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import ServerError
from .answer import streamed, whole
from .bodies import ChatBody, CompletionBody, Sampled
from .conversion import chat_message, completion_message
from .dialects import Chat, Completion, Dialect
from .failures import BadRequestError, bad_body, bad_request, body_of, http_failure, own_failure, server_failure
from .upstream import Upstream

MAX_BODY_BYTES = 16 * 1024 * 1024
REQUEST_ID = "x-request-id"


def make_app(connect: Callable[[], Upstream]) -> FastAPI:
    """The application; `connect` is called in its event loop."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.upstream = connect()
        yield
        await app.state.upstream.close()

    app = FastAPI(title="Pagewire gateway", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.add_middleware(_Bounded)
    app.add_exception_handler(ServerError, _handler(server_failure))
    app.add_exception_handler(BadRequestError, _handler(bad_request))
    app.add_exception_handler(RequestValidationError, _handler(bad_body))
    app.add_exception_handler(HTTPException, _handler(http_failure))
    app.add_exception_handler(Exception, _handler(own_failure))
    app.add_api_route("/v1/models", _models)
    app.add_api_route("/v1/models/{name:path}", _model)
    app.add_api_route("/v1/chat/completions", _chat, methods=["POST"], response_model=None)
    app.add_api_route("/v1/completions", _complete, methods=["POST"], response_model=None)
    app.add_api_route("/health", _health, response_model=None)
    return app


async def _chat(body: ChatBody, request: Request) -> Response:
    upstream, metadata = _upstream(request)
    dialect = Chat(upstream=upstream, metadata=metadata, model=body.model, num_top=body.top_logprobs)
    return await _answer(request, body, dialect, [chat_message(body)])


async def _complete(body: CompletionBody, request: Request) -> Response:
    upstream, metadata = _upstream(request)
    dialect = Completion(upstream=upstream, metadata=metadata, model=body.model, num_top=body.logprobs or 0)
    return await _answer(request, body, dialect, [completion_message(body, prompt) for prompt in body.prompts])


async def _answer(request: Request, body: Sampled, dialect: Dialect, messages: list[Any]) -> Response:
    request_id = request.state.request_id = request.headers.get(REQUEST_ID) or uuid.uuid4().hex
    for index, message in enumerate(messages):
        message.request_id = f"{request_id}-{index}" if index else request_id
    if body.stream:
        with_usage = body.stream_options is not None and body.stream_options.include_usage
        response = await streamed(dialect, messages, with_usage=with_usage)
    else:
        response = await whole(request, dialect, messages)
    return _named(request, response)


async def _models(request: Request) -> dict[str, Any]:
    upstream, metadata = _upstream(request)
    return {"object": "list", "data": [_described(model) for model in await upstream.models(metadata)]}


async def _model(name: str, request: Request) -> dict[str, Any]:
    upstream, metadata = _upstream(request)
    return _described(await upstream.model(name, metadata))


def _described(model: Any) -> dict[str, Any]:
    limit = model.max_model_len
    return {"id": model.name, "object": "model", "created": 0, "owned_by": "pagewire", "max_model_len": limit}


async def _health(request: Request) -> Response:
    """200 while the server can serve, else 503."""
    upstream: Upstream = request.app.state.upstream
    return Response(status_code=200 if await upstream.is_serving() else 503)


def _upstream(request: Request) -> tuple[Upstream, tuple[tuple[str, str], ...]]:
    upstream: Upstream = request.app.state.upstream
    return upstream, upstream.metadata(request.headers)


def _handler(answer: Callable[[Any], Response]) -> Callable[[Request, Exception], Response]:
    return lambda request, error: _named(request, answer(error))


def _named(request: Request, response: Response) -> Response:
    """An answer that tells the request's id, if it has one."""
    request_id = getattr(request.state, "request_id", None)
    if request_id is not None:
        response.headers[REQUEST_ID] = request_id
    return response


class _Bounded:
    """Reads no body that is larger than what the server would take."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = dict(scope["headers"]).get(b"content-length", b"0")
        message = f"the body has more than {MAX_BODY_BYTES} bytes"
        if not length.isdigit() or int(length) > MAX_BODY_BYTES:
            await JSONResponse(body_of(message, "invalid_request_error"), 413)(scope, receive, send)
            return
        num_received = 0

        async def bounded() -> Any:
            nonlocal num_received
            part = await receive()
            num_received += len(part.get("body", b""))
            if num_received > MAX_BODY_BYTES:
                raise HTTPException(413, message)
            return part

        await self._app(scope, bounded, send)
