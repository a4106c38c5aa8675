"""One GenerateMany stream: many requests, one writer.

Entries are prepared and run independently; whatever they have to say merges until the write before has gone, then
goes out in one message. A failing entry is an event; the stream itself fails only when its caller leaves, does not
read, or its deadline passes. At most `WINDOW` entries are in flight: further ones are not read from the stream until
one ends.

Invariants: events of one entry keep their order; after an entry's summary or failure nothing of it follows; when the
stream is over, none of its requests runs on.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import structlog
from pagewire.v1 import generation_pb2

from scheduler_svc.front.errors import FrontError, InternalError, InvalidRequestError, forget_frames
from scheduler_svc.front.live_request import LiveRequest, Reader
from scheduler_svc.front.preparation import Preparation
from scheduler_svc.front.scheduler_link import SchedulerLink
from scheduler_svc.front.stream import SlowReaderGuard, Write

log = structlog.get_logger("pagewire.front")

WINDOW = 1024
MAX_MESSAGE_BYTES = 256 * 1024
"""A message is closed once it is larger."""


class _Entry:
    """One request of the stream."""

    __slots__ = ("is_cancelled", "live", "request_id", "task")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.live: LiveRequest | None = None
        self.task: asyncio.Task[None] | None = None
        self.is_cancelled = False


class ManyStream:
    """Runs one stream."""

    def __init__(
        self,
        preparation: Preparation,
        link: SchedulerLink,
        write: Write,
        *,
        deadline: float | None,
        slow_reader_seconds: float,
    ) -> None:
        self._preparation = preparation
        self._link = link
        self._write = write
        self._deadline = deadline
        self._slow_reader_seconds = slow_reader_seconds
        self._reader_state = Reader()
        self._entries: set[_Entry] = set()
        self._by_id: dict[str, _Entry] = {}
        self._news: dict[_Entry, FrontError | None] = {}
        self._woken = asyncio.Event()
        self._room = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    async def run(self, requests: AsyncIterator[Any]) -> None:
        """Returns when the caller has half-closed and every entry has ended."""
        self._reading = asyncio.get_running_loop().create_task(self._read(requests))
        self._reading.add_done_callback(lambda _: self._woken.set())
        try:
            await self._write_all()
        finally:
            await self._close()

    # Reading

    async def _read(self, requests: AsyncIterator[Any]) -> None:
        async for message in requests:
            action = message.WhichOneof("action")
            if action == "cancel_request_id":
                self._cancel(message.cancel_request_id)
                continue
            while len(self._entries) >= WINDOW:
                self._room.clear()
                await self._room.wait()
            entry = _Entry(message.start.request_id)
            self._entries.add(entry)
            self._by_id.setdefault(entry.request_id, entry)
            if action is None:
                self._note(entry, InvalidRequestError.at("action", "one of start and cancel_request_id must be set"))
            else:
                entry.task = asyncio.get_running_loop().create_task(self._start(entry, message))

    async def _start(self, entry: _Entry, message: Any) -> None:
        """Prepares and submits an entry."""
        loop = asyncio.get_running_loop()
        deadline = self._deadline
        if message.HasField("timeout_ms"):
            own = loop.time() + message.timeout_ms / 1000
            deadline = own if deadline is None else min(own, deadline)
        try:
            prepared = await self._preparation.prepare(message.start, deadline=deadline)
            self._name(entry, prepared.request_id)
            entry.live = LiveRequest(
                prepared,
                self._link,
                deadline=deadline,
                reader=self._reader_state,
                on_news=lambda: self._note(entry, None),
            )
            if entry.is_cancelled:
                entry.live.cancel()
        except FrontError as error:
            self._note(entry, error)
        except Exception as error:
            log.error("entry_failed", error=type(error).__name__)
            self._note(entry, InternalError())

    def _name(self, entry: _Entry, request_id: str) -> None:
        """Gives an entry that came without an id the one that the server made, by which it can be cancelled."""
        if not entry.request_id:
            if self._by_id.get("") is entry:
                del self._by_id[""]
            entry.request_id = request_id
            self._by_id[request_id] = entry

    def _cancel(self, request_id: str) -> None:
        """Ends an entry; an unknown id is no fault, it may just have ended."""
        entry = self._by_id.get(request_id)
        if entry is not None:
            entry.is_cancelled = True
            if entry.live is not None:
                entry.live.cancel()

    def _note(self, entry: _Entry, error: FrontError | None) -> None:
        if error is not None:
            forget_frames(error)
        if entry in self._entries:
            self._news[entry] = error
            self._woken.set()

    # Writing

    async def _write_all(self) -> None:
        guard = SlowReaderGuard(self._slow_reader_seconds)
        while self._entries or not self._is_read():
            await self._woken.wait()
            self._woken.clear()
            while self._news:
                self._reader_state.is_blocked = True
                try:
                    await guard.write(self._write, self._next_message())
                finally:
                    self._reader_state.is_blocked = False

    def _is_read(self) -> bool:
        """Whether the caller has half-closed. Raises what broke the reading."""
        if self._reading is None or not self._reading.done():
            return False
        self._reading.result()
        return True

    def _next_message(self) -> Any:
        """What entries have to say now."""
        message = generation_pb2.GenerateManyResponse()
        size = 0
        while self._news and size < MAX_MESSAGE_BYTES:
            entry = next(iter(self._news))
            error = self._news.pop(entry)
            first = len(message.events)
            self._add_events(message, entry, error)
            size += sum(event.ByteSize() for event in message.events[first:])
        return message

    def _add_events(self, message: Any, entry: _Entry, error: FrontError | None) -> None:
        try:
            if error is not None or entry.live is None:
                raise error or InternalError()
            for event in entry.live.take():
                message.events.add(response=event)
            if entry.live.is_taken:
                self._remove(entry)
        except FrontError as failed:
            forget_frames(failed)
            failure = generation_pb2.GenerateManyFailure(request_id=entry.request_id, status=failed.to_status())
            message.events.add(failure=failure)
            self._remove(entry)

    def _remove(self, entry: _Entry) -> None:
        self._entries.discard(entry)
        self._news.pop(entry, None)
        if self._by_id.get(entry.request_id) is entry:
            del self._by_id[entry.request_id]
        if entry.live is not None:
            entry.live.close()
        self._room.set()

    async def _close(self) -> None:
        """Ends whatever still runs."""
        tasks = [entry.task for entry in self._entries if entry.task is not None]
        if self._reading is not None:
            tasks.append(self._reading)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for entry in list(self._entries):
            self._remove(entry)
