"""Writes a live request's events to its caller, each message as soon as the one before has gone.

The first token goes out at once; while a write is under way everything new merges in the request's slots. A caller
that does not read blocks a write: after `slow_reader_seconds`, or with too much unread, the request ends
RESOURCE_EXHAUSTED.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from pagewire.v1 import generation_pb2

from scheduler_svc.front.endings import slow_reader_error
from scheduler_svc.front.errors import FrontError
from scheduler_svc.front.figures import LEAST_STALL_SECONDS, Figures
from scheduler_svc.front.live_request import LiveRequest

HEARTBEAT_SECONDS = 5.0
HEADERS_SECONDS = 5.0
"""A connection that takes not even headers for so long takes no status either."""

Write = Callable[[Any], Awaitable[None]]


class HeadersFirst:
    """Writes a call's messages; its headers go out with the first one, but by themselves.

    grpc.aio puts both into one operation. If that is given up because the request failed meanwhile, the status finds
    the headers neither sent nor free to send, is refused, and the caller waits for ever. Headers alone never wait for
    a reader; an interruption waits until they are out.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._headers: asyncio.Future[None] | None = None
        self._are_sent = False

    def begin(self) -> None:
        """Sends the headers before there is a message, after which nobody repeats the call for its caller any more.

        Whoever begins waits for `sent` before the call may end.
        """
        if self._headers is None:
            self._headers = asyncio.ensure_future(self._context.send_initial_metadata(()))
            self._headers.add_done_callback(_look_at)

    async def write(self, message: Any) -> None:
        """Writes one message."""
        if not self._are_sent:
            await self._send_headers()
        await self._context.write(message)

    async def sent(self) -> None:
        """Returns once headers that have begun are out, or cannot be sent."""
        if self._headers is not None:
            await asyncio.wait((self._headers,), timeout=HEADERS_SECONDS)

    async def _send_headers(self) -> None:
        self.begin()
        if self._headers is None:
            return
        try:
            await (self._headers if self._headers.done() else asyncio.shield(self._headers))
        except asyncio.CancelledError:
            await self.sent()
            raise
        self._are_sent = True


def _look_at(headers: "asyncio.Future[None]") -> None:
    """Nobody waits any more for headers of a call that was given up: that they failed is no news."""
    if not headers.cancelled():
        headers.exception()


class SlowReaderGuard:
    """Bounds how long one write may take, without a task, a wrapper or a timer a message: it cancels the writing task.

    The interruption is told from the caller's own cancellation by `error`. A timer looks after the write under way;
    one that fires early for it is set anew, so that most writes set none.
    """

    def __init__(self, seconds: float, figures: Figures) -> None:
        self._seconds = seconds
        self._figures = figures
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        self._began: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.error: FrontError | None = None

    async def write(self, write: Write, message: Any) -> None:
        """Writes one message.

        Raises: FrontError if the caller does not take it in time, or `interrupt` was called meanwhile.
        """
        began = self._began = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_at(began + self._seconds, self._look)
        try:
            await write(message)
        except asyncio.CancelledError:
            if self.error is None:
                raise
            raise self.error from None
        finally:
            self._began = None
            seconds = self._loop.time() - began
            if seconds >= LEAST_STALL_SECONDS:
                self._figures.stalled(seconds)

    def close(self) -> None:
        """Nothing more is written."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        if self._began is None:
            return
        due = self._began + self._seconds
        if self._loop.time() >= due:
            self.interrupt(slow_reader_error())
        else:
            self._timer = self._loop.call_at(due, self._look)

    def interrupt(self, error: FrontError) -> None:
        """Ends the write under way with an error."""
        if self.error is None and self._task is not None:
            self.error = error
            self._task.cancel()


class StreamWriter:
    """Streams one request."""

    def __init__(self, live: LiveRequest, write: Write, *, guard: SlowReaderGuard, heartbeats: bool) -> None:
        self._live = live
        self._write = write
        self._guard = guard
        self._heartbeats = heartbeats
        self._last_write = 0.0

    async def run(self) -> None:
        """Returns when the summary is written.

        Raises: FrontError if the request ended with one.
        """
        self._live.on_failure = self._on_failure
        try:
            await self._write_all()
        finally:
            self._guard.close()
            self._live.on_failure = None  # a cycle, which would keep the request until the collector comes by

    async def _write_all(self) -> None:
        live, loop = self._live, asyncio.get_running_loop()
        while not live.is_taken:
            until = loop.time() + HEARTBEAT_SECONDS if self._heartbeats else None
            if not await live.wait(until):
                await self._send(generation_pb2.GenerateResponse(request_id=live.request_id, heartbeat={}))
                continue
            if live.max_delay_seconds:
                await self._hold_back()
            for event in live.take():
                await self._send(event)

    async def _hold_back(self) -> None:
        """Waits until as much time has passed since the last message as the caller allows."""
        live = self._live
        until = self._last_write + live.max_delay_seconds
        if self._last_write and asyncio.get_running_loop().time() < until:
            await live.pause(until)

    async def _send(self, message: Any) -> None:
        self._live.reader.is_blocked = True
        try:
            await self._guard.write(self._write, message)
        finally:
            self._live.reader.is_blocked = False
        if self._live.max_delay_seconds:
            self._last_write = asyncio.get_running_loop().time()

    def _on_failure(self, error: FrontError) -> None:
        """The request failed: a write that waits for its reader must not hold the status back."""
        if self._live.reader.is_blocked:
            self._guard.interrupt(error)
