"""The asynchronous client: the same calls as ``Client``, awaited. Belongs to the event loop it was made in."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from pagewire.v1 import admin_pb2, cache_pb2, generation_pb2, model_pb2
from pagewire.v1.admin_pb2_grpc import AdminServiceStub
from pagewire.v1.cache_pb2_grpc import CacheServiceStub
from pagewire.v1.generation_pb2_grpc import GenerationServiceStub
from pagewire.v1.model_pb2_grpc import ModelServiceStub

from . import convert
from .channel import Tls, call_metadata, call_timeout, channel_options, health_number, health_request
from .client import DEFAULT_TARGET, read_timeout, tokenize_request
from .errors import RequestCancelledError, ServerError, from_rpc_error
from .joining import Joiner
from .options import GenerateOptions, Messages, Prompt, chat_request, explain_prefix_request, pin_request, text_request
from .options import request as any_request
from .results import Decision, Event, Generation, HealthStatus, Load, Model, PageExplanation, Pin, Quote
from .resuming import Resumption, response_of

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class AsyncStream:
    """The events of one request, as they come.

    Leaving its ``async with`` block, ``cancel`` and cancelling the task that iterates cancel the request. With
    ``resume_grace_ms`` a stream that breaks is continued for so long, through any front; only leaving its block ends
    such a request for good.
    """

    def __init__(self, client: AsyncClient, request: generation_pb2.GenerateRequest, timeout: float | None) -> None:
        self._client = client
        self._resumption = Resumption(request, timeout) if request.scheduling.resume_grace_ms else None
        self._call = client.open_stream(request, timeout)
        self._joiner = Joiner()
        self._is_cancelled = False
        self.request_id = ""

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        try:
            while True:
                message = await self._next_message()
                self.request_id = message.request_id or self.request_id
                event = convert.event(message)
                if event is not None:
                    self._joiner.add(event)
                    return event
        except asyncio.CancelledError:
            # grpc.aio raises this also when the call, not the task, was cancelled.
            if not self._is_cancelled:
                raise
            raise RequestCancelledError("the request was cancelled", code=grpc.StatusCode.CANCELLED) from None

    async def _next_message(self) -> generation_pb2.GenerateResponse:
        while True:
            try:
                message = await self._call.read()
            except grpc.RpcError as error:
                await self._resume_after(from_rpc_error(error))
                continue
            if message is grpc.aio.EOF:
                # An error status is raised by read(), an OK one ends the iteration.
                raise StopAsyncIteration
            response = response_of(message)
            if self._resumption is not None:
                self._resumption.note(response)
            return response

    async def _resume_after(self, error: ServerError) -> None:
        """Opens the stream anew. Raises: ServerError if it is not one that can be continued."""
        if self._resumption is None:
            raise error from None
        await asyncio.sleep(self._resumption.delay_after(error))
        self._call = self._client.open_stream(self._resumption.next_message(), self._resumption.timeout())

    async def join(self) -> Generation:
        """Reads the rest and returns the whole, what was already iterated over included."""
        async for _ in self:
            pass
        return self._joiner.result(self.request_id)

    def cancel(self) -> None:
        """Cancels the request; iterating further raises RequestCancelledError. Does nothing after the end."""
        self._is_cancelled = True
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None
    ) -> None:
        self.cancel()
        if self._resumption is not None and not self._resumption.has_ended:
            self._resumption.has_ended = True
            with contextlib.suppress(ServerError):
                await self._client.cancel(self._resumption.request_id)


class AsyncClient:
    """Calls one server from an event loop; arguments, deadlines and errors as for ``Client``."""

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        internal_target: str | None = None,
        timeout: float | None = None,
        tls: Tls | None = None,
        token: str | None = None,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.target = target
        self._timeout = timeout
        self._metadata = call_metadata(token, metadata)
        self._channel = _open(target, tls)
        self._internal = self._channel if internal_target is None else _open(internal_target, None)
        self._generation = GenerationServiceStub(self._channel)
        self._models = ModelServiceStub(self._channel)

    async def generate(
        self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[GenerateOptions]
    ) -> Generation:
        """Continues a text or token ids; returns when all outputs have ended."""
        return await self._generate_once(text_request(prompt, options), timeout)

    async def chat(
        self, messages: Messages, *, timeout: float | None = None, **options: Unpack[GenerateOptions]
    ) -> Generation:
        """Answers a conversation; returns when all outputs have ended."""
        return await self._generate_once(chat_request(messages, options), timeout)

    def stream(
        self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[GenerateOptions]
    ) -> AsyncStream:
        """Continues a text or token ids; yields events as they come."""
        return self._stream(text_request(prompt, options), timeout)

    def stream_chat(
        self, messages: Messages, *, timeout: float | None = None, **options: Unpack[GenerateOptions]
    ) -> AsyncStream:
        """Answers a conversation; yields events as they come."""
        return self._stream(chat_request(messages, options), timeout)

    async def cancel(self, request_id: str, *, timeout: float | None = None) -> None:
        """Ends a request from elsewhere; its stream ends with CANCELLED outputs. Raises: NotFoundError."""
        message = generation_pb2.CancelRequestRequest(request_id=request_id)
        await self._read(self._generation.CancelRequest, message, timeout)

    async def tokenize(
        self, prompt: str | Messages, *, timeout: float | None = None, **options: Unpack[GenerateOptions]
    ) -> tuple[int, ...]:
        """Token ids the model would see for a text or a conversation."""
        response = await self._read(self._generation.Tokenize, tokenize_request(prompt, dict(options)), timeout)
        return tuple(response.token_ids)

    async def detokenize(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool | None = None, timeout: float | None = None
    ) -> str:
        """Text of token ids."""
        message = generation_pb2.DetokenizeRequest(token_ids=token_ids, skip_special_tokens=skip_special_tokens)
        text: str = (await self._read(self._generation.Detokenize, message, timeout)).text
        return text

    async def models(self, *, timeout: float | None = None) -> tuple[Model, ...]:
        """The served models; empty until a worker has joined."""
        response = await self._read(self._models.ListModels, model_pb2.ListModelsRequest(), timeout)
        return tuple(convert.model(model) for model in response.models)

    async def model(self, name: str = "", *, timeout: float | None = None) -> Model:
        """One model; an empty name means the served one. Raises: NotFoundError."""
        response = await self._read(self._models.GetModel, model_pb2.GetModelRequest(name=name), timeout)
        return convert.model(response.model)

    async def health(self, service: str = "", *, timeout: float | None = None) -> HealthStatus:
        """Whether the server (or one of its services) can serve. Raises: UnavailableError when nothing answers."""
        check = self._channel.unary_unary(
            "/grpc.health.v1.Health/Check", request_serializer=health_request, response_deserializer=health_number
        )
        return HealthStatus(await self._read(check, service, timeout))

    async def load(self, *, timeout: float | None = None) -> Load:
        """Counts of requests, pages and tokens, from the internal port."""
        stub = AdminServiceStub(self._internal)
        return convert.load(await self._read(stub.GetLoad, admin_pb2.GetLoadRequest(), timeout))

    async def explain(self, request_id: str, *, timeout: float | None = None) -> tuple[Decision, ...]:
        """What the scheduler decided about a request and why, from the internal port. Raises: NotFoundError."""
        method = AdminServiceStub(self._internal).ExplainRequest
        message = admin_pb2.ExplainRequestRequest(request_id=request_id)
        return convert.decisions(await self._read(method, message, timeout))

    async def explain_prefix(
        self, prompt: Prompt | Messages, *, cache_salt: str = "", timeout: float | None = None
    ) -> tuple[PageExplanation, ...]:
        """Whether each page of a prompt (text, token ids or a conversation) is cached, and why not."""
        message = explain_prefix_request(prompt, cache_salt)
        return convert.pages(await self._read(CacheServiceStub(self._channel).ExplainPrefix, message, timeout))

    async def warm_prefix(
        self, prompt: Prompt | Messages, *, cache_salt: str = "", timeout: float | None = None
    ) -> int:
        """Computes a prompt so that later requests find it cached; how many of its tokens are cached then."""
        message = cache_pb2.WarmPrefixRequest(prefix=explain_prefix_request(prompt, cache_salt).prefix)
        method = CacheServiceStub(self._channel).WarmPrefix
        return int((await self._call(method, message, self._timeout if timeout is None else timeout)).cached_tokens)

    async def pin_prefix(
        self,
        prompt: Prompt | Messages,
        *,
        ttl_seconds: float,
        cache_salt: str = "",
        timeout: float | None = None,
    ) -> Pin:
        """Keeps the full pages of a prompt cached for so long; they are computed if they are not there.

        Raises: InvalidRequestError; OverloadedError where pins may keep no more.
        """
        message = pin_request(prompt, ttl_seconds, cache_salt)
        method = CacheServiceStub(self._channel).PinPrefix
        return convert.pin((await self._call(method, message, self._timeout if timeout is None else timeout)).pin)

    async def unpin_prefix(self, pin_id: str, *, timeout: float | None = None) -> None:
        """Ends a pin. Raises: NotFoundError."""
        message = cache_pb2.UnpinPrefixRequest(pin_id=pin_id)
        await self._read(CacheServiceStub(self._channel).UnpinPrefix, message, timeout)

    async def pins(self, *, timeout: float | None = None) -> tuple[Pin, ...]:
        """The caller's pins."""
        method = CacheServiceStub(self._channel).ListPins
        return tuple(map(convert.pin, (await self._read(method, cache_pb2.ListPinsRequest(), timeout)).pins))

    async def quote(
        self, prompt: Prompt | Messages, *, timeout: float | None = None, **options: Unpack[GenerateOptions]
    ) -> Quote:
        """What a request (a text, token ids or a conversation) would meet now; it does not run."""
        message = generation_pb2.QuoteRequest(request=any_request(prompt, options))
        return convert.quote(await self._read(self._generation.Quote, message, timeout))

    async def close(self) -> None:
        """Closes the connection; calls still running end with RequestCancelledError."""
        await self._channel.close()
        if self._internal is not self._channel:
            await self._internal.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def _generate_once(self, request: generation_pb2.GenerateRequest, timeout: float | None) -> Generation:
        message = generation_pb2.GenerateOnceRequest(request=request)
        deadline = self._timeout if timeout is None else timeout
        return convert.generation(await self._call(self._generation.GenerateOnce, message, deadline))

    def _stream(self, request: generation_pb2.GenerateRequest, timeout: float | None) -> AsyncStream:
        return AsyncStream(self, request, self._timeout if timeout is None else timeout)

    def open_stream(
        self, message: generation_pb2.GenerateRequest | generation_pb2.ResumeGenerateRequest, timeout: float | None
    ) -> Any:
        """The call of a stream, begun or continued; ``stream`` is what most callers want."""
        is_new = isinstance(message, generation_pb2.GenerateRequest)
        method = self._generation.Generate if is_new else self._generation.ResumeGenerate
        return method(message, timeout=call_timeout(timeout), metadata=self._metadata)

    async def _read(self, method: Any, message: Any, timeout: float | None) -> Any:
        return await self._call(method, message, read_timeout(timeout, self._timeout))

    async def _call(self, method: Any, message: Any, timeout: float | None) -> Any:
        """One unary call; cancelling the awaiting task cancels it."""
        try:
            return await method(message, timeout=call_timeout(timeout), metadata=self._metadata)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None


def _open(target: str, tls: Tls | None) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(target, options=channel_options(None))
    return grpc.aio.secure_channel(target, tls.credentials(), options=channel_options(tls))
