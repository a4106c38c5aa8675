"""The outermost interceptor: callers are admitted before their requests are read, and whatever is raised becomes
exactly one gRPC status.

Why it must exist: grpc.aio sends the text of unknown exceptions to the client, those of reading its request included,
and sends nothing at all when a handler raises CancelledError although nobody cancelled the call, so that the client
waits for ever.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, aclosing
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError
from grpc.aio import AbortError, ServicerContext

from scheduler_svc.front.caller import echo
from scheduler_svc.front.compression import unpacked
from scheduler_svc.front.errors import (
    FrontError,
    InternalError,
    InvalidRequestError,
    UnauthenticatedError,
    forget_frames,
)

log = structlog.get_logger("pagewire.front")

ABORT_SECONDS = 5.0
"""A client that reads nothing cannot take its status either; its call is dropped after so long."""

Handler = Callable[[Any, Any], Any]
Admit = Callable[[Any, str], AbstractContextManager[None]]
"""The duration of a call, of which it is given context and method; raises FrontError for one that may not be made."""
IsStranger = Callable[[Any, str], bool]
"""Whether a call with this metadata will be refused by `Admit`."""
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable["grpc.RpcMethodHandler[Any, Any] | None"]]


class StatusInterceptor(grpc.aio.ServerInterceptor):
    """Maps errors to statuses for every method of a server."""

    def __init__(self, admit: Admit, is_stranger: IsStranger | None = None) -> None:
        self._admit = admit
        self._is_stranger = is_stranger
        self._guarded: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        """By method; those of a server do not change."""

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        method = str(handler_call_details.method)
        if method not in self._guarded:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            self._guarded[method] = _wrapped(handler, method, self._admit)
        if self._is_stranger is not None and self._is_stranger(handler_call_details.invocation_metadata, method):
            return _unread(method, self._admit)
        return self._guarded[method]


def _unread(method: str, admit: Admit) -> "grpc.RpcMethodHandler[Any, Any]":
    """For a caller who will be refused.

    A handler of single requests is called when the whole request is there, of up to 16 MiB; one of streams, like this
    one, at once.
    """

    async def refuse(requests: Any, context: ServicerContext[Any, Any]) -> None:
        raise UnauthenticatedError("the token is not known or no longer valid")

    refused: grpc.RpcMethodHandler[Any, Any] = grpc.stream_unary_rpc_method_handler(
        _guarded_unary(refuse, method, admit)
    )
    return refused


def _wrapped(handler: Any, method: str, admit: Admit) -> "grpc.RpcMethodHandler[Any, Any]":
    """The same method with its handler guarded."""
    kinds = {
        (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
        (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
        (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
        (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
    }
    name, make = kinds[(bool(handler.request_streaming), bool(handler.response_streaming))]
    inner: Handler = getattr(handler, name)
    reader = _reader(handler.request_deserializer)
    # A single request is read inside the guard; those of a stream are, when the handler asks for them.
    inner = _closing(inner) if handler.request_streaming else _reading(inner, reader)
    guard = _guarded_stream if handler.response_streaming else _guarded_unary
    guarded = guard(inner, method, admit)
    make_any: Any = make
    wrapped: grpc.RpcMethodHandler[Any, Any] = make_any(
        guarded,
        request_deserializer=reader if handler.request_streaming else None,
        response_serializer=handler.response_serializer,
    )
    return wrapped


def _reader(deserializer: Callable[[bytes], Any] | None) -> Callable[[bytes], Any]:
    """Bytes to a request; bytes that are none are the caller's fault."""

    def read(content: bytes) -> Any:
        try:
            return content if deserializer is None else deserializer(unpacked(content))
        except DecodeError:
            raise InvalidRequestError.at("request", "the bytes are no message of this method's type") from None

    return read


def _reading(inner: Handler, read: Callable[[bytes], Any]) -> Handler:
    """The handler, given the bytes of its request."""
    return lambda content, context: inner(read(content), context)


def _closing(inner: Handler) -> Handler:
    """The handler of a stream of requests. Left in the middle, gRPC's iterator keeps its last request, and itself."""

    async def call(requests: Any, context: ServicerContext[Any, Any]) -> Any:
        async with aclosing(aiter(requests)) as given:
            return await _answer(inner, given, context)

    return call


async def _answer(inner: Handler, request: Any, context: ServicerContext[Any, Any]) -> Any:
    """What the handler returns; what it yields is written."""
    result = inner(request, context)
    if not hasattr(result, "__aiter__"):
        return await result
    async for response in result:
        await context.write(response)
    return None


def _guarded_unary(inner: Handler, method: str, admit: Admit) -> Handler:
    async def call(request: Any, context: ServicerContext[Any, Any]) -> Any:
        try:
            with admit(context, method):
                return await inner(request, context)
        except (Exception, asyncio.CancelledError) as error:
            del request
            await _end(error, context, method)

    return call


def _guarded_stream(inner: Handler, method: str, admit: Admit) -> Handler:
    async def call(request: Any, context: ServicerContext[Any, Any]) -> None:
        try:
            with admit(context, method):
                await _answer(inner, request, context)
        except (Exception, asyncio.CancelledError) as error:
            del request
            await _end(error, context, method)

    return call


async def _end(error: BaseException, context: ServicerContext[Any, Any], method: str) -> None:
    """Ends the call with the status of `error`.

    Nothing tells a handler whether a CancelledError came from the caller: only that a call whose caller is gone takes
    no status any more. Then the handler just ends.
    """
    if isinstance(error, AbortError):
        raise error
    place = _place(error)
    # What ends the call lives on in a cycle until the collector comes by; the request, of megabytes, must not.
    forget_frames(error)
    status = error if isinstance(error, FrontError) else InternalError()
    trailers = (*status.trailers(), *echo(context))
    try:
        await asyncio.wait_for(
            context.abort(status.code, status.to_status().message, trailing_metadata=trailers), ABORT_SECONDS
        )
    except AbortError:
        if not isinstance(error, FrontError):
            # The text of an unknown exception may hold parts of a prompt: its type and place must do.
            log.error("handler_failed", method=method, error=type(error).__name__, where=place)
        raise
    except Exception:
        raise asyncio.CancelledError from None


def _place(error: BaseException) -> str:
    """File and line where an exception was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""
