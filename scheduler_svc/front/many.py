"""One GenerateMany stream: many requests, one writer.

Entries are prepared and run independently; whatever they have to say merges until the write before has gone, then
goes out in one message; an entry's `max_delay_ms` holds its text back for larger messages. A failing entry is an
event; the stream itself fails only when its caller leaves, does not read, or its deadline passes. At most `WINDOW`
entries are in flight: further ones are not read from the stream until one ends.

Invariants: events of one entry keep their order; after an entry's summary or failure nothing of it follows; when the
stream is over, none of its requests runs on.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import structlog
from google.protobuf.message import DecodeError
from pagewire.v1 import generation_pb2

from scheduler_svc.front.errors import FrontError, InternalError, InvalidRequestError, forget_frames
from scheduler_svc.front.live_request import LiveRequest, Reader
from scheduler_svc.front.preparation import Preparation
from scheduler_svc.front.prepared_request import PreparedRequest
from scheduler_svc.front.scheduler_link import SchedulerLink
from scheduler_svc.front.stream import HEARTBEAT_SECONDS, SlowReaderGuard, Write
from scheduler_svc.front.validation import LONGEST_MS

log = structlog.get_logger("pagewire.front")

WINDOW = 1024
TURN_BYTES, LEAST_BYTES = 64 * 1024, 4096
"""Requests of one message that are started before others on the loop have their turn, the link to the scheduler too;
none counts for less."""
MAX_MESSAGE_BYTES = 256 * 1024
"""A message is closed once it is larger."""
EARLY_SHARE = 0.25
"""Text may go out by so much of its delay before it is due."""


class _Entry:
    """One request of the stream."""

    __slots__ = ("beats", "is_cancelled", "live", "request_id", "task", "told_at")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.live: LiveRequest | None = None
        self.task: asyncio.Task[None] | None = None
        self.is_cancelled = False
        self.told_at = 0.0
        """When something of it was last taken to be written."""
        self.beats = False
        """It has been silent for so long that it says at least that it is alive."""


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
        on_submitted: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_submitted` is called for each entry that the scheduler is to run: what goes wrong with it from then on is
        told in the stream."""
        self._preparation = preparation
        self._link = link
        self._figures = link.figures
        self._write = write
        self._on_submitted = on_submitted
        self._deadline = deadline
        self._slow_reader_seconds = slow_reader_seconds
        self._loop = asyncio.get_running_loop()
        """Kept: to ask for it is a system call in Python 3.11."""
        self._reader_state = Reader()
        self._entries: set[_Entry] = set()
        self._news: dict[_Entry, FrontError | None] = {}
        self._held: dict[_Entry, float] = {}
        """Entries with text that is held back, and when it is due."""
        self._timer: asyncio.TimerHandle | None = None
        self._woken = asyncio.Event()
        self._room = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None

    async def run(self, requests: AsyncIterator[Any]) -> None:
        """Returns when the caller has half-closed and every entry has ended."""
        self._reading = self._loop.create_task(self._read(requests))
        self._reading.add_done_callback(lambda _: self._woken.set())
        self._beating = self._loop.create_task(self._beat())
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
            elif action == "start":
                await self._start(message.start, message)
            elif not message.starts:
                await self._room_for_one()
                error = InvalidRequestError.at("action", "one of start and cancel_request_id must be set")
                self._note(self._enter(message.start), error)
            num_bytes = 0
            for content in message.starts:
                await self._start(_request(content), message)
                num_bytes += max(len(content), LEAST_BYTES)
                if num_bytes >= TURN_BYTES:
                    num_bytes = 0
                    await asyncio.sleep(0)

    async def _room_for_one(self) -> None:
        while len(self._entries) >= WINDOW:
            self._room.clear()
            await self._room.wait()

    def _enter(self, request: Any) -> _Entry:
        entry = _Entry(request.request_id)
        self._entries.add(entry)
        return entry

    async def _start(self, request: Any, message: Any) -> None:
        """Prepares and submits an entry of this message, in a task of its own if it may have to wait for something."""
        await self._room_for_one()
        entry = self._enter(request)
        deadline = self._deadline
        if message.HasField("timeout_ms"):
            own = self._loop.time() + min(message.timeout_ms, LONGEST_MS) / 1000
            deadline = own if deadline is None else min(own, deadline)
        try:
            prepared = self._preparation.prepare_at_once(request, deadline=deadline)
            if prepared is None:
                entry.task = self._loop.create_task(self._start_later(entry, request, deadline))
            else:
                self._submit(entry, prepared, deadline)
        except Exception as error:
            self._fail(entry, error)

    async def _start_later(self, entry: _Entry, request: Any, deadline: float | None) -> None:
        try:
            self._submit(entry, await self._preparation.prepare(request, deadline=deadline), deadline)
        except Exception as error:
            self._fail(entry, error)

    def _submit(self, entry: _Entry, prepared: PreparedRequest, deadline: float | None) -> None:
        entry.request_id = prepared.request_id
        entry.live = LiveRequest(
            prepared, self._link, deadline=deadline, reader=self._reader_state, on_news=lambda: self._hear(entry)
        )
        self._on_submitted()
        entry.told_at = -prepared.max_delay_seconds  # the first token is never held back
        if entry.is_cancelled:
            entry.live.cancel()

    def _fail(self, entry: _Entry, error: Exception) -> None:
        """An entry ends before it was submitted."""
        if not isinstance(error, FrontError):
            log.error("entry_failed", error=type(error).__name__)
            error = InternalError()
        self._note(entry, error)

    def _cancel(self, request_id: str) -> None:
        """Ends the entries of an id: two may have it while one reads on what the other began. An unknown id is no
        fault, it may just have ended; those without an id have none to be cancelled by until they are told one."""
        for entry in self._entries if request_id else ():
            if entry.request_id == request_id:
                entry.is_cancelled = True
                if entry.live is not None:
                    entry.live.cancel()

    def _hear(self, entry: _Entry) -> None:
        """An entry has news: written at once, unless its caller wants larger messages less often."""
        live = entry.live
        if live is not None and live.max_delay_seconds and not live.is_over:
            due = entry.told_at + live.max_delay_seconds
            if due > self._loop.time():
                live.is_quiet = True
                self._held[entry] = due
                self._set_timer(due)
                return
        self._note(entry, None)

    def _set_timer(self, due: float) -> None:
        """One timer for all that is held back."""
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._let_go)

    def _let_go(self) -> None:
        """Has entries speak that are due, and those that are nearly so: together they make larger messages."""
        self._timer = None
        now = self._loop.time()
        for entry, due in list(self._held.items()):
            if entry.live is None or due <= now + entry.live.max_delay_seconds * EARLY_SHARE:
                del self._held[entry]
                self._note(entry, None)
        if self._held:
            self._set_timer(min(self._held.values()))

    def _note(self, entry: _Entry, error: FrontError | None) -> None:
        if error is not None:
            forget_frames(error)
        if entry in self._entries:
            self._news[entry] = error
            self._woken.set()

    # Writing

    async def _write_all(self) -> None:
        guard = SlowReaderGuard(self._slow_reader_seconds, self._figures)
        try:
            while not self._is_read() or self._entries:
                await self._woken.wait()
                self._woken.clear()
                while self._news:
                    self._reader_state.is_blocked = True
                    try:
                        await guard.write(self._write, self._next_message())
                    finally:
                        self._reader_state.is_blocked = False
        finally:
            guard.close()

    def _is_read(self) -> bool:
        """Whether the caller has half-closed. Raises what broke the reading."""
        if self._reading is None or not self._reading.done():
            return False
        self._reading.result()
        return True

    def _next_message(self) -> Any:
        """What entries have to say now."""
        message = generation_pb2.GenerateManyResponse()
        events = message.events
        now = self._loop.time()
        size = 0
        while self._news and size < MAX_MESSAGE_BYTES:
            entry = next(iter(self._news))
            error = self._news.pop(entry)
            first = len(events)
            self._add_events(events, entry, error, now)
            if self._news:
                size += sum(map(_num_bytes, events[first:]))
        return message

    def _add_events(self, events: Any, entry: _Entry, error: FrontError | None, now: float) -> None:
        live = entry.live
        try:
            if error is not None or live is None:
                raise error or InternalError()
            entry.told_at = now
            self._held.pop(entry, None)
            live.is_quiet = False
            num_events = len(events)
            live.take_into(lambda: events.add().response)
            if entry.beats and len(events) == num_events:
                events.add(response={"request_id": entry.request_id, "heartbeat": {}})
            entry.beats = False
            if live.is_taken:
                self._remove(entry)
        except FrontError as failed:
            forget_frames(failed)
            failure = generation_pb2.GenerateManyFailure(request_id=entry.request_id, status=failed.to_status())
            events.add(failure=failure)
            self._remove(entry)

    async def _beat(self) -> None:
        """Has entries that want to know say that they are alive when they have said nothing for long."""
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS / 2)
            silent_since = self._loop.time() - HEARTBEAT_SECONDS
            for entry in self._entries:
                if entry.live is not None and entry.live.progress_events and entry.told_at <= silent_since:
                    entry.beats = True
                    self._note(entry, None)

    def _remove(self, entry: _Entry) -> None:
        self._held.pop(entry, None)
        self._entries.discard(entry)
        self._news.pop(entry, None)
        if entry.live is not None:
            entry.live.close()
            # It knows the way back: a cycle, which would wait for the collector with all that the request held.
            entry.live = None
        self._room.set()

    async def _close(self) -> None:
        """Ends whatever still runs."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = [entry.task for entry in self._entries if entry.task is not None]
        tasks += [task for task in (self._reading, self._beating) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # What broke them off knows the message that was read, and this: a cycle, which would wait for the collector.
        self._reading = self._beating = None
        for entry in list(self._entries):
            self._remove(entry)


def _request(content: bytes) -> Any:
    """Raises: InvalidRequestError."""
    try:
        return generation_pb2.GenerateRequest.FromString(content)
    except DecodeError:
        raise InvalidRequestError.at("starts", "the bytes are no GenerateRequest") from None


def _num_bytes(message: Any) -> int:
    return int(message.ByteSize())
