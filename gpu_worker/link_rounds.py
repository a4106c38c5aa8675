"""What is done with the link's socket, round by round, and what that means for the epoch.

An epoch goes idle -> greeting -> joined -> idle. The owner begins it with a ``Greet`` once everything of the epoch
before is dropped; rounds repeat the hello until it is welcomed, and end the epoch (``Left``) when the scheduler goes or
says so, is silent, or sends a plan that cannot be the next one. Frames of another session or epoch are dropped, and so
are results of an epoch that has ended. Whoever touches the socket holds the lock.
"""

import collections
import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import structlog
import zmq

from gpu_worker import codec
from gpu_worker.batch_plan import StepResult
from gpu_worker.curve import CurveKeys
from gpu_worker.errors import PlanRefusedError
from gpu_worker.link_events import Joined, Left, LinkEvent, Refused, Stop

HELLO_SECONDS = 0.5
SILENCE_SECONDS = 3.0
DEFAULT_HEARTBEAT_SECONDS = 0.5
HIGH_WATER_MARK = 1000
MAX_FRAME_BYTES = 256 << 20
CLOSE_LINGER_MS = 500
_RETRY_SECONDS = 0.01
LONGEST_WAIT = 1.0
_EVENTS, _NOBLOCK, _READABLE = int(zmq.EVENTS), int(zmq.NOBLOCK), int(zmq.POLLIN)
"""As plain numbers: the library's enums cost more than its calls."""


class State(Enum):
    """Of an epoch."""

    IDLE = "idle"
    GREETING = "greeting"
    JOINED = "joined"


@dataclass(frozen=True, slots=True, kw_only=True)
class Greet:
    """Begin an epoch with this hello."""

    hello: bytes
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """Say goodbye and end."""

    reason: str


class Rounds:
    """What is done with the socket, round by round. One thread waits, any may run rounds."""

    def __init__(
        self,
        endpoint: str,
        keys: CurveKeys | None,
        outgoing: "collections.deque[Greet | Close | StepResult]",
        wake_fd: int,
        emit: Callable[[LinkEvent], None],
    ) -> None:
        self._outgoing = outgoing
        self._wake_fd = wake_fd
        self._emit = emit
        self._log = structlog.get_logger()
        self._context = zmq.Context()
        self._socket = _connect(self._context, endpoint, keys)
        self._state = State.IDLE
        self._hello = b""
        self._session = 0
        self._epoch = 0
        self._last_completed = 0
        self._last_received = 0
        self._heartbeat_seconds = DEFAULT_HEARTBEAT_SECONDS
        self._next_beat = 0.0
        self._last_heard = 0.0
        self._unsent: collections.deque[bytes] = collections.deque()
        self._lock = threading.Lock()
        self._has_sent = False
        self._descriptors = select.poll()
        for descriptor in (self._socket.fileno(), wake_fd):
            self._descriptors.register(descriptor, select.POLLIN)
        self.is_open = True

    @property
    def seconds_to_beat(self) -> float:
        """When a round is due though nothing has happened."""
        if self._unsent:
            return _RETRY_SECONDS
        if self._state is State.IDLE:
            return LONGEST_WAIT
        return max(0.0, self._next_beat - time.monotonic())

    def wait(self, seconds: float) -> None:
        """Return once a round has something to do, at the latest after so many seconds."""
        if seconds > 0:
            milliseconds = int(min(seconds, self.seconds_to_beat) * 1000) + 1
            if (self._wake_fd, select.POLLIN) in self._descriptors.poll(milliseconds):
                os.eventfd_read(self._wake_fd)

    def run_one(self) -> None:
        """Send and receive what there is; results first, as somebody waits for them.

        ZeroMQ's descriptor tells once that something changed, and any call may take that notice: so a round ends with
        having asked in vain for more.
        """
        with self._lock:
            if not self.is_open:
                return
            try:
                self._take_outgoing()
                self._receive()
                self._beat(time.monotonic())
                while self._has_sent:
                    self._has_sent = False
                    self._receive()
            except BaseException:
                self.is_open = False
                raise
            finally:
                if not self.is_open:
                    self._socket.close(linger=CLOSE_LINGER_MS)
                    self._context.term()

    # Receiving

    def _receive(self) -> None:
        # To be told by an exception that there is nothing takes several times as long.
        while int(self._socket.getsockopt(_EVENTS)) & _READABLE:
            parts = self._socket.recv_multipart(_NOBLOCK)
            frame = codec.decode_frame(parts[0]) if len(parts) == 1 else None
            if frame is None:
                self._log.warning("frame dropped: not a scheduler frame")
            elif frame.epoch == self._epoch and self._state is not State.IDLE:
                self._last_heard = time.monotonic()
                self._handle(frame)

    def _handle(self, frame: codec.Frame) -> None:
        if frame.kind == "welcome":
            self._welcome(frame)
        elif frame.kind == "refusal":
            self._refusal(frame)
        elif frame.kind == "resync":
            self._leave(f"the scheduler asks for a new hello: {frame.body.reason}")
        elif self._state is State.JOINED and frame.session != self._session:
            self._log.info("frame dropped: another session", kind=frame.kind)
        elif self._state is State.JOINED and frame.kind == "plan":
            self._plan(frame)
        elif self._state is State.JOINED and frame.kind == "names":
            self._names(frame)
        elif self._state is State.JOINED and frame.kind == "goodbye":
            self._goodbye(frame.body)

    def _welcome(self, frame: codec.Frame) -> None:
        if (
            self._state is State.JOINED
            and frame.session == self._session
            and self._last_received >= frame.body.first_step_id
        ):
            return  # a late repetition: the epoch is under way
        self._state = State.JOINED
        self._session = frame.session
        self._last_received = self._last_completed = frame.body.first_step_id - 1
        self._heartbeat_seconds = (frame.body.heartbeat_ms or 500) / 1000
        self._next_beat = 0.0
        self._emit(
            Joined(
                epoch=self._epoch,
                worker_id=frame.body.worker_id,
                inventory_accepted=frame.body.inventory_accepted,
                cache_identity=frame.body.cache_identity,
            )
        )

    def _refusal(self, frame: codec.Frame) -> None:
        if frame.body.retryable:
            self._log.info("hello refused for now", reason=frame.body.reason)
            return  # the next hello goes out on its clock
        self._state = State.IDLE
        self._emit(Refused(reason=frame.body.reason))

    def _plan(self, frame: codec.Frame) -> None:
        expected = self._last_received + 1
        try:
            if frame.step_id != expected:
                raise PlanRefusedError(f"step {frame.step_id} came where {expected} was due")
            plan = codec.decode_plan(frame)
        except PlanRefusedError as error:
            self._send_result(StepResult(step_id=frame.step_id, epoch=self._epoch, refusal=str(error)))
            return
        self._last_received = frame.step_id
        self._emit(plan)

    def _names(self, frame: codec.Frame) -> None:
        try:
            self._emit(codec.decode_names(frame))
        except PlanRefusedError as error:
            self._leave(f"the scheduler tells names that are none: {error}")

    def _goodbye(self, goodbye: Any) -> None:
        if goodbye.for_good:
            self._state = State.IDLE
            self._emit(Stop(reason=f"the scheduler lets this worker go: {goodbye.reason}"))
        else:
            self._leave(f"the scheduler stops: {goodbye.reason}")

    def _leave(self, reason: str) -> None:
        self._state = State.IDLE
        self._unsent.clear()
        self._emit(Left(epoch=self._epoch, reason=reason))

    # Sending

    def _take_outgoing(self) -> None:
        while self._outgoing:
            item = self._outgoing.popleft()
            if isinstance(item, StepResult):
                if self._state is State.JOINED and item.epoch == self._epoch:
                    self._send_result(item)
            elif isinstance(item, Greet):
                self._state, self._hello, self._epoch, self._session = State.GREETING, item.hello, item.epoch, 0
                self._next_beat = 0.0
            else:
                if self._state is State.JOINED:
                    self._unsent.append(codec.encode_goodbye(self._session, self._epoch, item.reason))
                self.is_open = False
        self._flush()

    def _send_result(self, result: StepResult) -> None:
        self._unsent.append(codec.encode_result(self._session, result))
        self._flush()
        if result.refusal is not None:
            self._leave(f"step {result.step_id} was refused: {result.refusal}")
        else:
            self._last_completed = max(self._last_completed, result.step_id)

    def _beat(self, now: float) -> None:
        if self._state is State.JOINED and now - self._last_heard > SILENCE_SECONDS:
            self._leave(f"nothing heard of the scheduler for {SILENCE_SECONDS:g} s")
            return
        if self._state is State.IDLE or now < self._next_beat:
            return
        if self._state is State.GREETING:
            self._next_beat = now + HELLO_SECONDS
            if not self._unsent:
                self._unsent.append(self._hello)
        else:
            self._next_beat = now + self._heartbeat_seconds
            if not self._unsent:  # otherwise results wait already, which say more
                self._unsent.append(
                    codec.encode_heartbeat(self._session, self._epoch, self._last_completed, self._last_received)
                )
        self._flush()
        if self._state is State.GREETING:
            self._unsent.clear()  # no scheduler to take it: the next hello comes on its clock

    def _flush(self) -> None:
        while self._unsent:
            try:
                self._socket.send(self._unsent[0], _NOBLOCK)
            except zmq.Again:
                return
            self._has_sent = True
            self._unsent.popleft()


def _connect(context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, keys: CurveKeys | None) -> "zmq.Socket[bytes]":
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    socket.setsockopt(zmq.IMMEDIATE, 1)  # nothing is queued for a scheduler that is not there
    socket.setsockopt(zmq.RECONNECT_IVL, 100)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
    socket.setsockopt(zmq.IPV6, int("[" in endpoint))
    if keys is not None:
        keys.guard(socket)
    socket.connect(endpoint)
    return socket
