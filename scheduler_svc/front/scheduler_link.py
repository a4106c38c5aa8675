"""The front's link to the scheduler.

Tokens and events are handed to the requests by key in the turn of the loop in which their frame came; nothing is queued
per token. Whatever was queued for the scheduler in one turn of the loop goes out as one frame; only a request that is
alone here does not wait for others. What a request does with its tokens is its own matter (`Sink`).

Sessions: a frame of another session than the known one means that the scheduler restarted: every live request fails,
the front says hello again. Silence is counted in heartbeats of our own, so that a stopped or starved front does not
blame the scheduler.
"""

import asyncio
import os
import secrets
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import structlog
from google.protobuf.message import DecodeError
from pagewire.internal.v1 import front_pb2

from scheduler_svc.columns import ColumnError, read_ints, read_longs
from scheduler_svc.front.errors import FrontError, Reason, UnavailableError, error_of_code
from scheduler_svc.front.figures import Figures
from scheduler_svc.front.link_socket import LinkSocket
from scheduler_svc.front.polling import Polling
from scheduler_svc.messages import PROTOCOL_VERSION
from scheduler_svc.output_key import front_key_and_index

log = structlog.get_logger("pagewire.front")

HEARTBEAT_SECONDS = 0.5
MAX_SILENT_HEARTBEATS = 10
TOLD_FRAMES = 32
"""Sinks whose tokens nobody takes hear of every so many frames that there are more."""
MAX_FRAME_BYTES = 4 * 1024 * 1024
"""A frame is closed once it is larger; a single prompt may make it larger still."""
QUERY_SECONDS = 5.0
NOT_FOUND = 5
"""Of google.rpc.Code."""


class Sink(Protocol):
    """A live request, as the link sees it. None of the calls may block or raise."""

    def adder(self, index: int) -> Callable[[int], None]:
        """What takes a token id of one output."""

    def slot(self, index: int) -> "array[int] | None":
        """Where token ids of one output wait. While some do the link appends others itself: then `adder` is called for
        the first of them and now and then. None: it is called for all."""

    def add_logprobs(self, index: int, found: Any) -> None:
        """A pagewire.internal.v1.RowLogprobs of one output's next token, or of the prompt."""

    def apply(self, event: Any) -> None:
        """A pagewire.internal.v1.RequestEvent."""

    def fail(self, error: FrontError) -> None:
        """The request ends with this error."""


class SchedulerLink:
    """Connects to the scheduler and keeps the requests that wait for it, by key."""

    def __init__(
        self,
        endpoint: str,
        *,
        on_service: Callable[[Any], None],
        on_lost: Callable[[], None],
        on_refusal: Callable[[str], None],
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        polling_seconds: float = 0.0,
    ) -> None:
        self._on_service, self._on_lost, self._on_refusal = on_service, on_lost, on_refusal
        self._heartbeat_seconds = heartbeat_seconds
        self._polling = Polling(polling_seconds)
        self._front_id = secrets.randbits(64) or 1
        self.figures = Figures()
        self._session = 0
        self._silent = 0
        self._says_hello = True
        self._orphans: tuple[int, list[int]] = (0, [])
        self._next_key = 0
        self._next_query = 0
        self._sinks: dict[int, Sink] = {}
        self._adders: dict[int, Callable[[int], None]] = {}
        """By output key, of the outputs that got tokens."""
        self._slots: dict[int, array[int]] = {}
        """The same."""
        self._names: dict[int, list[int]] = {}
        """The output keys of each request in `_adders`."""
        self._num_frames = 0
        self._queries: dict[int, asyncio.Future[Any]] = {}
        self._outgoing: deque[tuple[str, Any, int]] = deque()
        self._socket = LinkSocket(
            endpoint, b"F" + self._front_id.to_bytes(8, "little"), on_frame=self._read, on_room=self._write
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writes_soon = False
        self._beating: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Reads and writes from now on; says hello at once."""
        self._loop = asyncio.get_running_loop()
        self._beating = self._loop.create_task(self._beat())
        self._socket.start()
        self._write_soon()

    async def close(self) -> None:
        """Ends the link; live requests fail."""
        self.fail_all(self._gone())
        self._loop = None
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        self._socket.close()

    @property
    def num_live(self) -> int:
        """Requests that have not ended."""
        return len(self._sinks)

    @property
    def is_connected(self) -> bool:
        """Whether the scheduler answered and is heard."""
        return self._session != 0

    # Requests

    def submit(self, submit: Any, sink: Sink) -> int:
        """Sends a new request and returns its key; `sink` hears of it until `forget`."""
        self._next_key += 1
        submit.key = self._next_key
        self._sinks[submit.key] = sink
        self._outgoing.append(("submits", submit, submit.ByteSize()))
        if len(self._sinks) == 1:
            self._write()
        else:
            self._write_soon()
        self._polling.had_work()
        return self._next_key

    def resume(self, request_id: str, sink: Sink, tenant: str = "") -> int:
        """Asks for an earlier request under a new key; `sink` hears of it from its beginning."""
        self._next_key += 1
        self._sinks[self._next_key] = sink
        self._queue("resumes", front_pb2.Resume(key=self._next_key, request_id=request_id, tenant=tenant), 300)
        return self._next_key

    def hand_over(self, key: int, sink: Sink) -> int:
        """From now on another sink hears of the key."""
        self.forget(key)
        self._sinks[key] = sink
        return key

    def forget(self, key: int) -> None:
        """Nothing more is wanted for the key."""
        self._sinks.pop(key, None)
        for name in self._names.pop(key, ()):
            del self._adders[name]
            self._slots.pop(name, None)

    def cancel(self, key: int, *, deadline: bool = False, broken: bool = False, code: int = 0) -> None:
        """Asks the scheduler to end a request; if its stream is `broken`, only unless it can be resumed. `code` is what
        its caller is told, if that is not plain."""
        self._queue("cancels", front_pb2.Cancel(key=key, deadline=deadline, broken=broken, code=code), 18)

    def stop(self, key: int, index: int, num_output_tokens: int) -> None:
        """Tells that a stop string was completed by that output token."""
        self._queue("stops", front_pb2.Stop(key=key, index=index, num_output_tokens=num_output_tokens), 24)

    def scanned(self, key: int, index: int) -> None:
        """Tells that a held ending stands."""
        self._queue("scanned", front_pb2.Scanned(key=key, index=index), 16)

    async def query(self, tenant: str = "", *, missing: Reason = Reason.REQUEST_NOT_FOUND, **question: Any) -> bytes:
        """Asks the scheduler on a tenant's behalf; returns the serialized answer. `missing` is the reason of NOT_FOUND.

        Raises: FrontError as the scheduler says, or UnavailableError if it does not answer.
        """
        if not self.is_connected:
            raise self._gone()
        self._next_query += 1
        query_id = self._next_query
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._queries[query_id] = future
        # Not wait_for: cancelled in the turn in which the answer comes, it forgets the cancellation (Python 3.11).
        timer = loop.call_later(QUERY_SECONDS, self._unanswered, future)
        message = front_pb2.Query(query_id=query_id, tenant=tenant, **question)
        self._queue("queries", message, message.ByteSize())
        try:
            reply = await future
        finally:
            timer.cancel()
            self._queries.pop(query_id, None)
        if reply.code:
            reason = reply.reason or (missing.value if reply.code == NOT_FOUND else "")
            raise error_of_code(reply.code, reason=reason, message=reply.message, field=reply.field)
        return bytes(reply.response)

    def _unanswered(self, future: "asyncio.Future[Any]") -> None:
        if not future.done():
            future.set_exception(self._gone())

    # Sending

    def _queue(self, field: str, message: Any, size: int) -> None:
        self._outgoing.append((field, message, size))
        self._write_soon()

    def _write_soon(self) -> None:
        """Writes when all that this turn of the loop has to say is queued."""
        if self._loop is not None and not self._writes_soon:
            self._writes_soon = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._writes_soon = False
        while self._loop is not None and self._has_something() and self._socket.has_room():
            self._socket.send(self._next_frame())

    def _has_something(self) -> bool:
        """Whether a frame could be made of what waits."""
        return self._says_hello or bool(self._outgoing and self._session)

    def _next_frame(self) -> bytes:
        """One frame of what is queued."""
        if self._says_hello:
            self._says_hello = False
            hello = front_pb2.FrontHello(protocol_version=PROTOCOL_VERSION, pid=os.getpid())
            return front_pb2.FrontFrame(front_id=self._front_id, hello=hello).SerializeToString()
        frame = front_pb2.FrontFrame(session=self._session, front_id=self._front_id)
        size = 0
        while self._outgoing and size < MAX_FRAME_BYTES:
            field, message, message_size = self._outgoing.popleft()
            getattr(frame, field).append(message)
            size += message_size
        return frame.SerializeToString()

    async def _beat(self) -> None:
        """Says that we live, and counts how long nothing was heard."""
        while True:
            await asyncio.sleep(self._heartbeat_seconds)
            self._silent += 1
            if not self._session:
                self._says_hello = True
                self._write_soon()
            elif self._silent > MAX_SILENT_HEARTBEATS:
                log.error("scheduler_silent")
                self._lose()
            # Never waits: a scheduler that takes no frames hears of us by those that wait already.
            elif not self._outgoing and self._socket.has_room():
                frame = front_pb2.FrontFrame(session=self._session, front_id=self._front_id, heartbeat=True)
                frame.MergeFrom(front_pb2.FrontFrame(figures=self.figures.take()))
                self._socket.send(frame.SerializeToString())

    # Receiving

    def _read(self, content: bytes) -> None:
        self._silent = 0
        try:
            self._apply(front_pb2.SchedulerToFrontFrame.FromString(content))
        except (DecodeError, ColumnError) as error:
            log.error("frame_unreadable", error=type(error).__name__)

    def _apply(self, frame: Any) -> None:
        if frame.HasField("refusal"):
            self._on_refusal(frame.refusal)
            return
        if frame.session != self._session and not self._adopt(frame):
            return
        if frame.HasField("service"):
            self._on_service(frame.service)
        if frame.HasField("tokens"):
            self._apply_tokens(frame.tokens)
            self._polling.had_work()
        for each in frame.logprobs:
            key, index = front_key_and_index(each.key)
            sink = self._sinks.get(key)
            if sink is not None:
                sink.add_logprobs(index, each.logprobs)
        for event in frame.events:
            sink = self._sinks.get(event.key)
            if sink is not None:
                sink.apply(event)
        for reply in frame.replies:
            future = self._queries.get(reply.query_id)
            if future is not None and not future.done():
                future.set_result(reply)

    def _adopt(self, frame: Any) -> bool:
        """Takes the session of a frame that answers our hello; says hello to any other."""
        if self._session:
            log.warning("scheduler_session_changed")
            self._lose()
        if not frame.HasField("service"):
            self._says_hello = True
            self._write_soon()
            return False
        self._session = frame.session
        session, keys = self._orphans
        if session == frame.session:
            # It was only silent: it still runs the requests that failed here.
            for key in keys:
                self.cancel(key, broken=True)
        self._write_soon()
        return True

    def _apply_tokens(self, tokens: Any) -> None:
        keys = read_longs(tokens.keys, "keys")
        token_ids = read_ints(tokens.token_ids, "token_ids")
        if len(keys) != len(token_ids):
            raise ColumnError("the columns of tokens do not fit one another")
        self._num_frames += 1
        slots = self._slots if self._num_frames % TOLD_FRAMES else {}
        for output, token_id in zip(keys, token_ids):  # noqa: B905 (compared above)
            slot = slots.get(output)
            if slot:
                slot.append(token_id)
            else:
                self._tell(output, token_id)

    def _tell(self, output: int, token_id: int) -> None:
        """Has a sink take a token, unless nobody waits for it."""
        add = self._adders.get(output)
        if add is None:
            key, index = front_key_and_index(output)
            sink = self._sinks.get(key)
            if sink is None:
                return
            add = self._adders[output] = sink.adder(index)
            slot = sink.slot(index)
            if slot is not None:
                self._slots[output] = slot
            self._names.setdefault(key, []).append(output)
        add(token_id)

    def _lose(self) -> None:
        """Forgets the session: live requests fail, the front says hello again."""
        self._orphans = (self._session, list(self._sinks))
        self._session = 0
        self._silent = 0
        self._on_lost()
        self.fail_all(self._gone())
        # What the failed requests queued belongs to the old session too.
        self._outgoing.clear()
        self._says_hello = True
        self._write_soon()

    def fail_all(self, error: FrontError) -> None:
        """Every live request and question ends with this error."""
        for sink in list(self._sinks.values()):
            sink.fail(error)
        for future in self._queries.values():
            if not future.done():
                future.set_exception(error)

    def _gone(self) -> FrontError:
        return UnavailableError("the scheduler cannot be reached", reason=Reason.SCHEDULER_LOST.value, retry_ms=1000)
