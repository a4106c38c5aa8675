"""Many requests over one GenerateMany stream: what became of each, as they end.

Requests are taken as they are sent, by gRPC's thread but for the first ones: the server begins with them while the
others are made.

Invariants: every request yields once, a whole Generation or the error that it ended with; a failing request touches no
other; leaving the iteration early, however, cancels what still runs, and so does an error of the iterable, which is
raised.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import grpc
from pagewire.v1 import generation_pb2 as pb

from . import convert
from .errors import InternalError, ServerError, from_rpc_error, from_status
from .joining import Joiner
from .results import Generation, Summary

FIRST_BATCH_BYTES, GROWTH, MAX_BATCH_BYTES = 16 * 1024, 4, 1024 * 1024
"""Requests of one message: the first message is short, so that the server begins while the next, longer by this factor,
is made. A larger request goes alone."""

Outcomes = Generator[tuple[str, Generation | ServerError], None, None]


class Many:
    """GenerateMany of one channel."""

    def __init__(self, channel: grpc.Channel) -> None:
        name = "/pagewire.v1.GenerationService/GenerateMany"
        kinds: dict[str, Any] = {
            "request_serializer": pb.GenerateManyRequest.SerializeToString,
            "response_deserializer": pb.GenerateManyResponse.FromString,
        }
        self._method: Any = channel.stream_stream(name, **kinds)
        # On the wire the same call. gRPC gives one with a stream of messages two threads, and this one none: it takes a
        # third of a millisecond less to begin.
        self._method_of_one_message: Any = channel.unary_stream(name, **kinds)

    def run(self, requests: Iterable[pb.GenerateRequest], *, at_hand: bool, **call: Any) -> Outcomes:
        """Sends requests, each with an id of its own, and yields (id, outcome) in the order in which they end.

        ``at_hand``: none has to be waited for, so they may share messages; otherwise each goes out when it comes.
        ``call`` are timeout and metadata. Raises: ServerError if the stream breaks, and what ``requests`` raises.
        """
        batches = _batches(requests) if at_hand else _alone(requests)
        some, are_all = next(batches)
        if not some:
            return
        sent = _Sent()
        first = sent.message(some, are_all)
        if are_all:
            stream = self._method_of_one_message(first, **call)
        else:
            stream = self._method(chain((first,), sent.messages(batches)), **call)
        yield from _outcomes(stream, sent)


Batches = Iterator[tuple[list[pb.GenerateRequest], bool]]
"""Requests of each message, and whether it is the last."""


def _alone(requests: Iterable[pb.GenerateRequest]) -> Batches:
    """A message each, as they come; which one is the last is not known before there is no other."""
    for request in requests:
        yield [request], False
    yield [], True


def _batches(requests: Iterable[pb.GenerateRequest]) -> Batches:
    """Requests that go out in one message, which costs both sides more than a request of some hundred tokens."""
    some: list[pb.GenerateRequest] = []
    num_bytes, most = 0, FIRST_BATCH_BYTES
    for request in requests:
        size = request.ByteSize()
        if some and num_bytes + size > most:
            yield some, False
            some, num_bytes, most = [], 0, min(GROWTH * most, MAX_BATCH_BYTES)
        some.append(request)
        num_bytes += size
    yield some, True


class _Sent:
    """What became of the requests so far: written by the thread that sends them, read by the one that hears of them."""

    def __init__(self) -> None:
        self.joiners: dict[str, Joiner] = {}
        """Of requests that have not ended."""
        self.are_all = False
        self.error: BaseException | None = None
        """What the iterable of requests raised."""

    def message(self, requests: Sequence[pb.GenerateRequest], are_all: bool) -> pb.GenerateManyRequest:
        """The message that starts these requests; their answers are going to be joined."""
        self.joiners.update((request.request_id, Joiner()) for request in requests)
        self.are_all = are_all
        if len(requests) == 1:
            return pb.GenerateManyRequest(start=requests[0])
        return pb.GenerateManyRequest(starts=[request.SerializeToString() for request in requests])

    def messages(self, batches: Batches) -> Iterator[pb.GenerateManyRequest]:
        """The others."""
        while not self.are_all:
            try:
                requests, are_all = next(batches)
            except BaseException as error:
                # Whatever it is goes to the caller; gRPC ends the call for an Exception alone.
                self.error = error
                raise RuntimeError("the requests broke off") from error
            if requests:
                yield self.message(requests, are_all)
            self.are_all = are_all


def _outcomes(stream: Any, sent: _Sent) -> Outcomes:
    """What a stream tells of the requests in ``sent``, which end with it."""
    try:
        for message in stream:
            for event in message.events:
                ended = _take(sent.joiners, event)
                if ended is not None:
                    yield ended
            if sent.are_all and not sent.joiners:
                return  # no need to wait for the status
    except grpc.RpcError as error:
        if sent.error is not None:
            raise sent.error from None
        raise from_rpc_error(error) from None
    finally:
        stream.cancel()
    if sent.joiners:
        raise InternalError(f"{len(sent.joiners)} requests never ended", code=grpc.StatusCode.DATA_LOSS)


def _take(joiners: dict[str, Joiner], message: pb.GenerateManyEvent) -> tuple[str, Generation | ServerError] | None:
    """What an event ends, if it ends one."""
    if message.HasField("failure"):
        request_id = message.failure.request_id
        joiners.pop(request_id, None)
        return request_id, from_status(message.failure.status)
    request_id = message.response.request_id
    event = convert.event(message.response)
    if event is None or request_id not in joiners:
        return None
    joiners[request_id].add(event)
    if not isinstance(event, Summary):
        return None
    return request_id, joiners.pop(request_id).result(request_id)
