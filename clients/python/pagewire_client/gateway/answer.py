"""Runs the requests of one HTTP call and tells their answers, whole or as server-sent events.

A caller that goes away ends them: a stream by its generator being closed, a whole answer by watching for the hang-up.
An error before the first event is an HTTP status; after it, an event with the error in OpenAI's shape ends the stream.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from pagewire.v1 import generation_pb2
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from ..errors import ServerError, from_rpc_error
from .dialects import Dialect, usage_of
from .failures import server_body

DONE = "data: [DONE]\n\n"
GONE = 499
"""No standard status says that the caller went away; this is nginx's."""


async def whole(request: Request, dialect: Dialect, messages: Sequence[generation_pb2.GenerateRequest]) -> Response:
    """All answers at once. Raises: ServerError."""
    calls = [asyncio.ensure_future(dialect.upstream.once(message, dialect.metadata)) for message in messages]
    answered, hang_up = asyncio.ensure_future(_all(calls)), asyncio.ensure_future(_hang_up(request))
    try:
        await asyncio.wait((answered, hang_up), return_when=asyncio.FIRST_COMPLETED)
        if not answered.done():
            return Response(status_code=GONE)
        answers = await answered
    finally:
        # Each by itself: of calls gathered, one that fails leaves the others running.
        for each in (answered, hang_up, *calls):
            each.cancel()
    outputs = [output for answer in answers for output in answer.outputs]
    choices = [await dialect.choice(output, index) for index, output in enumerate(outputs)]
    usage = usage_of([answer.summary for answer in answers])
    return JSONResponse(dialect.envelope(dialect.whole, answers[0].request_id, choices, usage))


async def _all(calls: Sequence[asyncio.Task[Any]]) -> list[Any]:
    """A task of its own: calls gathered without one log that nobody awaited them when they are cancelled."""
    return await asyncio.gather(*calls)


async def _hang_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def streamed(
    dialect: Dialect, messages: Sequence[generation_pb2.GenerateRequest], *, with_usage: bool
) -> Response:
    """The answers as they come. Raises: ServerError: a request failed before its first event."""
    events = _Events(dialect, messages)
    try:
        await events.begin()
    except BaseException:
        events.close()
        raise
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(events.told(with_usage), media_type="text/event-stream", headers=headers)


class _Events:
    """The events of some calls, merged."""

    def __init__(self, dialect: Dialect, messages: Sequence[generation_pb2.GenerateRequest]) -> None:
        self._dialect = dialect
        self._calls = [dialect.upstream.generate(message, dialect.metadata) for message in messages]
        self._num_outputs = messages[0].output.n
        self._summaries: list[Any] = []
        self._lengths: dict[int, int] = {}
        self._request_id = ""
        self._first: list[Any] = []

    async def begin(self) -> None:
        """Waits for each call's first event. Raises: ServerError."""
        self._first = await asyncio.gather(*(_read(call) for call in self._calls))
        self._request_id = self._first[0].request_id

    async def told(self, with_usage: bool) -> AsyncIterator[str]:
        """Everything, as server-sent events."""
        try:
            async for number, event in self._merged():
                for choice in await self._choices(number, event):
                    yield self._line([choice])
            if with_usage:
                yield self._line([], usage_of(self._summaries))
            yield DONE
        except ServerError as error:
            yield f"data: {json.dumps(server_body(error))}\n\n"
        finally:
            self.close()

    def close(self) -> None:
        """Ends what still runs."""
        for call in self._calls:
            call.cancel()

    async def _merged(self) -> AsyncIterator[tuple[int, Any]]:
        """Events of all calls, with the call's number, as they come."""
        if len(self._calls) == 1:
            event: Any = self._first[0]
            while event is not None:
                yield 0, event
                event = await _read(self._calls[0])
            return
        for number, first in enumerate(self._first):
            yield number, first
        reads = {asyncio.ensure_future(_read(call)): number for number, call in enumerate(self._calls)}
        try:
            while reads:
                done, _ = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
                for read in done:
                    number, event = reads.pop(read), read.result()
                    if event is not None:
                        yield number, event
                        reads[asyncio.ensure_future(_read(self._calls[number]))] = number
        finally:
            for read in reads:
                read.cancel()

    async def _choices(self, number: int, event: Any) -> list[Any]:
        """What an event of a call comes to."""
        kind = event.WhichOneof("event")
        if kind == "summary":
            self._summaries.append(event.summary)
        if kind not in ("delta", "finished"):
            return []
        part = getattr(event, kind)
        index = number * self._num_outputs + part.index
        told = []
        if index not in self._lengths:
            self._lengths[index] = 0
            told.append(self._dialect.begin(index))
        if kind == "finished":
            told.append(self._dialect.end(part, index))
        else:
            told.append(await self._dialect.delta(part, index, self._lengths[index]))
            self._lengths[index] += len(part.text)
        return [choice for choice in told if choice is not None]

    def _line(self, choices: list[Any], usage: Any = None) -> str:
        envelope = self._dialect.envelope(self._dialect.part, self._request_id, choices, usage)
        return f"data: {json.dumps(envelope, ensure_ascii=False)}\n\n"


async def _read(call: Any) -> Any:
    """The next event; None at the end. Raises: ServerError."""
    try:
        event = await call.read()
    except grpc.RpcError as error:
        raise from_rpc_error(error) from None
    return None if event is grpc.aio.EOF else event
