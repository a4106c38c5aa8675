"""The synchronous client. Safe to use from several threads; a child process made by fork needs a client of its own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import grpc
from pagewire.v1 import admin_pb2, cache_pb2, generation_pb2, model_pb2
from pagewire.v1.admin_pb2_grpc import AdminServiceStub
from pagewire.v1.cache_pb2_grpc import CacheServiceStub
from pagewire.v1.generation_pb2_grpc import GenerationServiceStub
from pagewire.v1.model_pb2_grpc import ModelServiceStub

from . import convert
from .channel import Tls, call_metadata, call_timeout, channel_options, health_number, health_request
from .errors import RequestCancelledError, ServerError, from_rpc_error
from .joining import Joiner
from .many import Many
from .options import (
    GenerateOptions,
    Messages,
    Prompt,
    chat_request,
    explain_prefix_request,
    fill_chat,
    pin_request,
    prompt_options,
    set_field,
    text_request,
)
from .options import request as any_request
from .results import Decision, Event, Generation, HealthStatus, Load, Model, PageExplanation, Pin, Quote
from .resuming import Resumption, response_of

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

DEFAULT_TARGET = "127.0.0.1:50051"
READ_TIMEOUT_SECONDS = 30.0

SINGLE_THREADED_STREAMS = "SingleThreadedUnaryStream"
"""grpc.experimental.ChannelOptions.SingleThreadedUnaryStream."""


class Stream:
    """The events of one request, as they come.

    Leaving its ``with`` block, ``cancel`` and dropping it cancel the request. With ``resume_grace_ms`` a stream that
    breaks is continued for so long, through any front, and one that is merely dropped runs on.
    """

    def __init__(self, client: Client, request: generation_pb2.GenerateRequest, timeout: float | None) -> None:
        self._client = client
        self._resumption = Resumption(request, timeout) if request.scheduling.resume_grace_ms else None
        self._call = client.open_stream(request, timeout)
        self._joiner = Joiner()
        self.request_id = ""

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        while True:
            message = self._next_message()
            self.request_id = message.request_id or self.request_id
            event = convert.event(message)
            if event is not None:
                self._joiner.add(event)
                return event

    def _next_message(self) -> generation_pb2.GenerateResponse:
        while True:
            try:
                message = response_of(next(self._call))
            except grpc.RpcError as error:
                self._resume_after(from_rpc_error(error))
                continue
            if self._resumption is not None:
                self._resumption.note(message)
            return message

    def _resume_after(self, error: ServerError) -> None:
        """Opens the stream anew. Raises: ServerError if it is not one that can be continued."""
        if self._resumption is None:
            raise error from None
        time.sleep(self._resumption.delay_after(error))
        self._call = self._client.open_stream(self._resumption.next_message(), self._resumption.timeout())

    def join(self) -> Generation:
        """Reads the rest and returns the whole, what was already iterated over included."""
        for _ in self:
            pass
        return self._joiner.result(self.request_id)

    def cancel(self) -> None:
        """Cancels the request; iterating further raises RequestCancelledError. Does nothing after the end."""
        self._call.cancel()
        if self._resumption is not None and not self._resumption.has_ended:
            self._resumption.has_ended = True
            with contextlib.suppress(ServerError):
                self._client.cancel(self._resumption.request_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.cancel()


class Client:
    """Calls one server.

    ``timeout`` (seconds) is the default deadline of every call; without one, generation has none and reads have 30 s.
    ``internal_target`` is where ``load`` and ``explain`` ask, without TLS (default: ``target``). ``token`` is sent as a
    bearer; use it with ``tls``. Every method raises the tree of ``errors``.
    """

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
        self._many = Many(self._channel)

    def generate(
        self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[GenerateOptions]
    ) -> Generation:
        """Continues a text or token ids; returns when all outputs have ended."""
        return self._generate_once(text_request(prompt, options), timeout)

    def chat(
        self, messages: Messages, *, timeout: float | None = None, **options: Unpack[GenerateOptions]
    ) -> Generation:
        """Answers a conversation; returns when all outputs have ended."""
        return self._generate_once(chat_request(messages, options), timeout)

    def stream(self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[GenerateOptions]) -> Stream:
        """Continues a text or token ids; yields events as they come."""
        return self._stream(text_request(prompt, options), timeout)

    def stream_chat(
        self, messages: Messages, *, timeout: float | None = None, **options: Unpack[GenerateOptions]
    ) -> Stream:
        """Answers a conversation; yields events as they come."""
        return self._stream(chat_request(messages, options), timeout)

    def run_many(
        self,
        requests: Iterable[generation_pb2.GenerateRequest],
        *,
        at_hand: bool | None = None,
        timeout: float | None = None,
    ) -> Iterator[tuple[str, Generation | ServerError]]:
        """Runs requests with ids of their own over one stream; yields (id, outcome) in the order in which they end.

        ``at_hand``: none of them must be waited for (default: whether it is a list), so they go out in few messages;
        otherwise each goes out when it comes. Either way requests are taken as they are sent, while those before them
        run; but for the first ones a thread of gRPC takes them.

        Raises: ServerError if the stream as a whole breaks, and what ``requests`` raises.
        """
        deadline = self._timeout if timeout is None else timeout
        is_at_hand = isinstance(requests, Sequence) if at_hand is None else at_hand
        return self._many.run(requests, at_hand=is_at_hand, timeout=call_timeout(deadline), metadata=self._metadata)

    def cancel(self, request_id: str, *, timeout: float | None = None) -> None:
        """Ends a request from elsewhere; its stream ends with CANCELLED outputs. Raises: NotFoundError."""
        message = generation_pb2.CancelRequestRequest(request_id=request_id)
        self._read(self._generation.CancelRequest, message, timeout)

    def tokenize(
        self, prompt: str | Messages, *, timeout: float | None = None, **options: Unpack[GenerateOptions]
    ) -> tuple[int, ...]:
        """Token ids the model would see for a text or a conversation."""
        message = tokenize_request(prompt, dict(options))
        return tuple(self._read(self._generation.Tokenize, message, timeout).token_ids)

    def detokenize(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool | None = None, timeout: float | None = None
    ) -> str:
        """Text of token ids."""
        message = generation_pb2.DetokenizeRequest(token_ids=token_ids, skip_special_tokens=skip_special_tokens)
        text: str = self._read(self._generation.Detokenize, message, timeout).text
        return text

    def models(self, *, timeout: float | None = None) -> tuple[Model, ...]:
        """The served models; empty until a worker has joined."""
        response = self._read(self._models.ListModels, model_pb2.ListModelsRequest(), timeout)
        return tuple(convert.model(model) for model in response.models)

    def model(self, name: str = "", *, timeout: float | None = None) -> Model:
        """One model; an empty name means the served one. Raises: NotFoundError."""
        return convert.model(self._read(self._models.GetModel, model_pb2.GetModelRequest(name=name), timeout).model)

    def health(self, service: str = "", *, timeout: float | None = None) -> HealthStatus:
        """Whether the server (or one of its services) can serve. Raises: UnavailableError when nothing answers."""
        check = self._channel.unary_unary(
            "/grpc.health.v1.Health/Check", request_serializer=health_request, response_deserializer=health_number
        )
        return HealthStatus(self._read(check, service, timeout))

    def load(self, *, timeout: float | None = None) -> Load:
        """Counts of requests, pages and tokens, from the internal port."""
        stub = AdminServiceStub(self._internal)
        return convert.load(self._read(stub.GetLoad, admin_pb2.GetLoadRequest(), timeout))

    def explain(self, request_id: str, *, timeout: float | None = None) -> tuple[Decision, ...]:
        """What the scheduler decided about a request and why, from the internal port. Raises: NotFoundError."""
        method = AdminServiceStub(self._internal).ExplainRequest
        message = admin_pb2.ExplainRequestRequest(request_id=request_id)
        return convert.decisions(self._read(method, message, timeout))

    def explain_prefix(
        self, prompt: Prompt | Messages, *, cache_salt: str = "", timeout: float | None = None
    ) -> tuple[PageExplanation, ...]:
        """Whether each page of a prompt (text, token ids or a conversation) is cached, and why not."""
        message = explain_prefix_request(prompt, cache_salt)
        return convert.pages(self._read(CacheServiceStub(self._channel).ExplainPrefix, message, timeout))

    def warm_prefix(self, prompt: Prompt | Messages, *, cache_salt: str = "", timeout: float | None = None) -> int:
        """Computes a prompt so that later requests find it cached; how many of its tokens are cached then."""
        message = cache_pb2.WarmPrefixRequest(prefix=explain_prefix_request(prompt, cache_salt).prefix)
        method = CacheServiceStub(self._channel).WarmPrefix
        return int(self._call(method, message, self._timeout if timeout is None else timeout).cached_tokens)

    def pin_prefix(
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
        return convert.pin(self._call(method, message, self._timeout if timeout is None else timeout).pin)

    def unpin_prefix(self, pin_id: str, *, timeout: float | None = None) -> None:
        """Ends a pin. Raises: NotFoundError."""
        message = cache_pb2.UnpinPrefixRequest(pin_id=pin_id)
        self._read(CacheServiceStub(self._channel).UnpinPrefix, message, timeout)

    def pins(self, *, timeout: float | None = None) -> tuple[Pin, ...]:
        """The caller's pins."""
        method = CacheServiceStub(self._channel).ListPins
        return tuple(map(convert.pin, self._read(method, cache_pb2.ListPinsRequest(), timeout).pins))

    def quote(
        self, prompt: Prompt | Messages, *, timeout: float | None = None, **options: Unpack[GenerateOptions]
    ) -> Quote:
        """What a request (a text, token ids or a conversation) would meet now; it does not run."""
        message = generation_pb2.QuoteRequest(request=any_request(prompt, options))
        return convert.quote(self._read(self._generation.Quote, message, timeout))

    def close(self) -> None:
        """Closes the connection; calls still running end with RequestCancelledError."""
        self._channel.close()
        if self._internal is not self._channel:
            self._internal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _generate_once(self, request: generation_pb2.GenerateRequest, timeout: float | None) -> Generation:
        message = generation_pb2.GenerateOnceRequest(request=request)
        deadline = self._timeout if timeout is None else timeout
        return convert.generation(self._call(self._generation.GenerateOnce, message, deadline))

    def _stream(self, request: generation_pb2.GenerateRequest, timeout: float | None) -> Stream:
        return Stream(self, request, self._timeout if timeout is None else timeout)

    def open_stream(
        self, message: generation_pb2.GenerateRequest | generation_pb2.ResumeGenerateRequest, timeout: float | None
    ) -> Any:
        """The call of a stream, begun or continued; ``stream`` is what most callers want."""
        is_new = isinstance(message, generation_pb2.GenerateRequest)
        method = self._generation.Generate if is_new else self._generation.ResumeGenerate
        return method(message, timeout=call_timeout(timeout), metadata=self._metadata)

    def _read(self, method: Callable[..., Any], message: Any, timeout: float | None) -> Any:
        return self._call(method, message, read_timeout(timeout, self._timeout))

    def _call(self, method: Any, message: Any, timeout: float | None) -> Any:
        """One unary call, cancelled when this thread is interrupted (Ctrl-C) while it waits."""
        call = method.future(message, timeout=call_timeout(timeout), metadata=self._metadata)
        try:
            return call.result()
        except grpc.FutureCancelledError:
            raise RequestCancelledError("the client was closed", code=grpc.StatusCode.CANCELLED) from None
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None
        except BaseException:
            call.cancel()
            raise


def read_timeout(timeout: float | None, default: float | None) -> float:
    """Deadline of a read: the call's, else the client's, else 30 s."""
    if timeout is not None:
        return timeout
    return READ_TIMEOUT_SECONDS if default is None else default


def tokenize_request(prompt: str | Messages, options: dict[str, Any]) -> generation_pb2.TokenizeRequest:
    """The message for ``tokenize``."""
    message = generation_pb2.TokenizeRequest(model=options.get("model") or "", prompt_options=prompt_options(options))
    if isinstance(prompt, str):
        set_field(message, "text", prompt, "text")
    else:
        fill_chat(message.chat, prompt, options)
    return message


def _open(target: str, tls: Tls | None) -> grpc.Channel:
    # A stream is read by the thread that iterates it. Read by grpc's own thread (its default), one whose retry finds
    # the server gone never ends, not even at its deadline (grpcio 1.81).
    options = [*channel_options(tls), (SINGLE_THREADED_STREAMS, 1)]
    if tls is None:
        return grpc.insecure_channel(target, options=options)
    return grpc.secure_channel(target, tls.credentials(), options=options)
