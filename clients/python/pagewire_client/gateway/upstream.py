"""The server behind the gateway: one channel, and calls that carry what the HTTP caller showed.

A caller's bearer token, request id and trace context go on as metadata, so the server knows the caller as if it had
called itself; the gateway's own token is shown where a caller brings none.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import grpc
from pagewire.v1 import generation_pb2, model_pb2
from pagewire.v1.generation_pb2_grpc import GenerationServiceStub
from pagewire.v1.model_pb2_grpc import ModelServiceStub

from ..channel import Tls, call_metadata, channel_options, health_number, health_request
from ..errors import from_rpc_error
from .failures import BadRequestError

FORWARDED = ("authorization", "x-request-id", "traceparent", "tracestate")
MAX_TEXTS = 50_000
"""Texts of token ids remembered, for log probabilities."""
READ_SECONDS = 10.0

Metadata = tuple[tuple[str, str], ...]


class Upstream:
    """Belongs to the event loop it was made in."""

    def __init__(
        self, target: str, *, tls: Tls | None = None, token: str | None = None, metadata: Metadata = ()
    ) -> None:
        options = channel_options(tls)
        self._channel = (
            grpc.aio.insecure_channel(target, options=options)
            if tls is None
            else grpc.aio.secure_channel(target, tls.credentials(), options=options)
        )
        self._own, self._token = metadata, token
        self._generation = GenerationServiceStub(self._channel)
        self._models = ModelServiceStub(self._channel)
        self._texts: OrderedDict[int, str] = OrderedDict()

    def metadata(self, headers: Mapping[str, str]) -> Metadata:
        """What of an HTTP request's headers goes on. Raises: BadRequestError: gRPC has no metadata like one of them."""
        shown = tuple((name, headers[name]) for name in FORWARDED if name in headers)
        for name, value in shown:
            if not (value.isascii() and value.isprintable()):
                raise BadRequestError(name, "must be printable ASCII")
        has_token = "authorization" in headers
        return (*call_metadata(None if has_token else self._token, self._own), *shown)

    def generate(self, message: generation_pb2.GenerateRequest, metadata: Metadata) -> Any:
        """The running call; `read` and `cancel` are for the caller."""
        return self._generation.Generate(message, metadata=metadata)

    async def once(self, message: generation_pb2.GenerateRequest, metadata: Metadata) -> Any:
        """A GenerateOnceResponse. Cancelling the task cancels the request. Raises: ServerError."""
        request = generation_pb2.GenerateOnceRequest(request=message)
        return await _answered(self._generation.GenerateOnce(request, metadata=metadata))

    async def models(self, metadata: Metadata) -> list[Any]:
        """The served models. Raises: ServerError."""
        call = self._models.ListModels(model_pb2.ListModelsRequest(), metadata=metadata, timeout=READ_SECONDS)
        return list((await _answered(call)).models)

    async def model(self, name: str, metadata: Metadata) -> Any:
        """One of them. Raises: ServerError."""
        call = self._models.GetModel(model_pb2.GetModelRequest(name=name), metadata=metadata, timeout=READ_SECONDS)
        return (await _answered(call)).model

    async def is_serving(self) -> bool:
        """Raises: ServerError."""
        check = self._channel.unary_unary(
            "/grpc.health.v1.Health/Check", request_serializer=health_request, response_deserializer=health_number
        )
        return bool(await _answered(check("", timeout=READ_SECONDS)) == 1)

    async def text_of(self, token_id: int, metadata: Metadata) -> str:
        """A token by itself; of part of a character U+FFFD. Raises: ServerError."""
        if token_id in self._texts:
            self._texts.move_to_end(token_id)
            return self._texts[token_id]
        message = generation_pb2.DetokenizeRequest(token_ids=[token_id], skip_special_tokens=False)
        answer = await _answered(self._generation.Detokenize(message, metadata=metadata, timeout=READ_SECONDS))
        self._texts[token_id] = text = str(answer.text)
        if len(self._texts) > MAX_TEXTS:
            self._texts.popitem(last=False)
        return text

    async def close(self) -> None:
        """Ends the calls that still run."""
        await self._channel.close()


async def _answered(call: Any) -> Any:
    try:
        return await call
    except grpc.RpcError as error:
        raise from_rpc_error(error) from None
