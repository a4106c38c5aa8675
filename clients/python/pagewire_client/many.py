"""Many requests over one GenerateMany stream: what became of each, as they end.

Invariants: every request yields once, a whole Generation or the error that it ended with; a failing request touches no
other; leaving the iteration early, however, cancels what still runs.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain, islice
from typing import Any

import grpc
from pagewire.v1 import generation_pb2 as pb

from . import convert
from .errors import InternalError, ServerError, from_rpc_error, from_status
from .joining import Joiner
from .results import Generation, Summary

FIRST_BATCH_BYTES, MAX_BATCH_BYTES = 64 * 1024, 1024 * 1024
"""Requests of one message: the first message is short, so that the server begins while the next, twice as long, is
made. A larger request goes alone."""

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

    def run(self, requests: Iterable[pb.GenerateRequest], **call: Any) -> Outcomes:
        """Sends requests, each with an id of its own, and yields (id, outcome) in the order in which they end.

        ``call`` are timeout and metadata. Raises: ServerError if the stream breaks.
        """
        joiners: dict[str, Joiner] = {}
        if not isinstance(requests, Sequence):
            # They may come one by one, and each goes out when it does.
            yield from _outcomes(self._method((_message([each], joiners) for each in requests), **call), joiners)
            return
        messages = (_message(some, joiners) for some in _batches(requests))
        first, second = next(messages, None), next(messages, None)
        if first is None:
            return
        if second is None:
            stream = self._method_of_one_message(first, **call)
        else:
            stream = self._method(chain((first, second), messages), **call)
        with closing(_outcomes(stream, joiners)) as outcomes:
            yield from islice(outcomes, len(requests))  # no need to wait for the status


def _batches(requests: Sequence[pb.GenerateRequest]) -> Iterator[list[pb.GenerateRequest]]:
    """Requests that go out in one message, which costs both sides more than a request of some hundred tokens."""
    some: list[pb.GenerateRequest] = []
    num_bytes, most = 0, FIRST_BATCH_BYTES
    for request in requests:
        size = request.ByteSize()
        if some and num_bytes + size > most:
            yield some
            some, num_bytes, most = [], 0, min(2 * most, MAX_BATCH_BYTES)
        some.append(request)
        num_bytes += size
    if some:
        yield some


def _message(requests: Sequence[pb.GenerateRequest], joiners: dict[str, Joiner]) -> pb.GenerateManyRequest:
    """The message that starts these requests; their answers are going to be joined."""
    joiners.update((request.request_id, Joiner()) for request in requests)
    if len(requests) == 1:
        return pb.GenerateManyRequest(start=requests[0])
    return pb.GenerateManyRequest(starts=[request.SerializeToString() for request in requests])


def _outcomes(stream: Any, joiners: dict[str, Joiner]) -> Outcomes:
    """What a stream tells of the requests in ``joiners``, which ends with it."""
    try:
        for message in stream:
            for event in message.events:
                ended = _take(joiners, event)
                if ended is not None:
                    yield ended
    except grpc.RpcError as error:
        raise from_rpc_error(error) from None
    finally:
        stream.cancel()
    if joiners:
        raise InternalError(f"{len(joiners)} requests never ended", code=grpc.StatusCode.DATA_LOSS)


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
