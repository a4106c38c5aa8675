"""The worker's link to the scheduler: a socket, and a thread that keeps it alive.

The thread reads plans ahead while a step runs, sends results as they are put in its queue, and beats on its own clock,
so that a long step never looks like a dead worker. Others append to a queue and wake it through an event descriptor.

Of an attended link all of this is done by whoever calls ``attend``, often enough to need no waking, which saves the way
from thread to thread; the link's own thread then only beats, should the other one be busy for long. Whoever touches the
socket holds the lock.

An epoch goes idle -> greeting -> joined -> idle. The owner begins it with ``greet`` once everything of the epoch
before is dropped; the thread repeats the hello until it is welcomed, and ends the epoch (``Left``) when the scheduler
goes or says so, is silent, or sends a plan that cannot be the next one. Frames of another session or epoch are
dropped, and so are results of an epoch that has ended.
"""

import collections
import os
import queue
import secrets
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
from gpu_worker.batch_plan import BatchPlan, PageNames, StepResult
from gpu_worker.curve import CurveKeys
from gpu_worker.errors import PlanRefusedError
from gpu_worker.published_pages import Inventory
from gpu_worker.worker_card import WorkerCard

HELLO_SECONDS = 0.5
SILENCE_SECONDS = 3.0
DEFAULT_HEARTBEAT_SECONDS = 0.5
HIGH_WATER_MARK = 1000
MAX_FRAME_BYTES = 256 << 20
CLOSE_LINGER_MS = 500
_RETRY_SECONDS = 0.01
_LONGEST_WAIT = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The scheduler took the hello; plans of this epoch follow."""

    epoch: int
    worker_id: str
    inventory_accepted: bool
    cache_identity: bytes
    """Comes back with the next inventory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The epoch is over: rows are worth nothing, and it is time to greet again."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The scheduler does not take this worker, for good."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Leave: asked for by a signal, or because the device or a thread is gone (``failure``)."""

    reason: str
    failure: bool = False


LinkEvent = Joined | Left | Refused | Stop | BatchPlan | PageNames


class _State(Enum):
    IDLE = "idle"
    GREETING = "greeting"
    JOINED = "joined"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Greet:
    hello: bytes
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Close:
    reason: str


class SchedulerLink:
    """Events come out of ``events`` in the order they happened; all methods may be called from any thread."""

    def __init__(
        self,
        endpoint: str,
        card: WorkerCard,
        events: "queue.SimpleQueue[LinkEvent]",
        keys: CurveKeys | None = None,
        *,
        is_attended: bool = False,
    ) -> None:
        """``is_attended``: somebody calls ``attend`` all the time."""
        self._endpoint = endpoint
        self._keys = keys
        self._card = card
        self._events = events
        self._outgoing: collections.deque[_Greet | _Close | StepResult] = collections.deque()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_attended = is_attended
        self._closing = threading.Event()
        self._rounds: _Rounds | None = None
        self._thread = threading.Thread(target=self._run, name="scheduler-link", daemon=True)

    def start(self) -> None:
        """Connect; nothing is said before ``greet``."""
        self._rounds = _Rounds(self._endpoint, self._keys, self._outgoing, self._wake_fd, self._events.put)
        self._thread.start()

    def attend(self, seconds: float) -> None:
        """Receive and send what there is; wait so long for it, or until a beat is due or ``wake`` is called."""
        if self._rounds is not None:
            self._rounds.wait(seconds)
            self._rounds.run_one()

    def wake(self) -> None:
        """Have ``attend`` return soon."""
        os.eventfd_write(self._wake_fd, 1)

    def greet(self, inventory: Inventory) -> int:
        """Begin a new epoch; returns it."""
        epoch = secrets.randbits(63) + 1
        self._put(_Greet(hello=codec.encode_hello(epoch, self._card, inventory), epoch=epoch))
        return epoch

    def send(self, result: StepResult) -> None:
        """Send a result; one that refuses its plan ends the epoch. Never blocks."""
        self._put(result)

    def close(self, reason: str) -> None:
        """Say goodbye and end the thread; what is queued goes out for at most half a second."""
        if not self._thread.is_alive():
            return
        self._put(_Close(reason=reason))
        self._closing.set()
        self._thread.join(timeout=5)

    def _put(self, item: "_Greet | _Close | StepResult") -> None:
        self._outgoing.append(item)
        self.wake()

    def _run(self) -> None:
        rounds = self._rounds
        try:
            while rounds is not None and rounds.is_open:
                if self._is_attended:
                    self._closing.wait(rounds.seconds_to_beat)
                else:
                    rounds.wait(_LONGEST_WAIT)
                rounds.run_one()
        except Exception as error:
            structlog.get_logger().exception("scheduler link failed")
            self._events.put(Stop(reason=f"the link's thread failed: {error}", failure=True))


class _Rounds:
    """What is done with the socket, round by round. One thread waits, any may run rounds."""

    def __init__(
        self,
        endpoint: str,
        keys: CurveKeys | None,
        outgoing: "collections.deque[_Greet | _Close | StepResult]",
        wake_fd: int,
        emit: Callable[[LinkEvent], None],
    ) -> None:
        self._outgoing = outgoing
        self._wake_fd = wake_fd
        self._emit = emit
        self._log = structlog.get_logger()
        self._context = zmq.Context()
        self._socket = _connect(self._context, endpoint, keys)
        self._state = _State.IDLE
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
        if self._state is _State.IDLE:
            return _LONGEST_WAIT
        return max(0.0, self._next_beat - time.monotonic())

    def wait(self, seconds: float) -> None:
        """Return once a round has something to do, at the latest after so many seconds."""
        if seconds > 0:
            milliseconds = int(min(seconds, self.seconds_to_beat) * 1000) + 1
            if (self._wake_fd, select.POLLIN) in self._descriptors.poll(milliseconds):
                os.eventfd_read(self._wake_fd)

    def run_one(self) -> None:
        """Receive and send what there is.

        ZeroMQ's descriptor tells once that something changed, and any call may take that notice: so a round ends with
        having asked in vain for more.
        """
        with self._lock:
            if not self.is_open:
                return
            try:
                self._receive()
                self._take_outgoing()
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
        while True:
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            frame = codec.decode_frame(parts[0]) if len(parts) == 1 else None
            if frame is None:
                self._log.warning("frame dropped: not a scheduler frame")
            elif frame.epoch == self._epoch and self._state is not _State.IDLE:
                self._last_heard = time.monotonic()
                self._handle(frame)

    def _handle(self, frame: codec.Frame) -> None:
        if frame.kind == "welcome":
            self._welcome(frame)
        elif frame.kind == "refusal":
            self._refusal(frame)
        elif frame.kind == "resync":
            self._leave(f"the scheduler asks for a new hello: {frame.body.reason}")
        elif self._state is _State.JOINED and frame.session != self._session:
            self._log.info("frame dropped: another session", kind=frame.kind)
        elif self._state is _State.JOINED and frame.kind == "plan":
            self._plan(frame)
        elif self._state is _State.JOINED and frame.kind == "names":
            self._names(frame)
        elif self._state is _State.JOINED and frame.kind == "goodbye":
            self._goodbye(frame.body)

    def _welcome(self, frame: codec.Frame) -> None:
        if (
            self._state is _State.JOINED
            and frame.session == self._session
            and self._last_received >= frame.body.first_step_id
        ):
            return  # a late repetition: the epoch is under way
        self._state = _State.JOINED
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
        self._state = _State.IDLE
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
            self._state = _State.IDLE
            self._emit(Stop(reason=f"the scheduler lets this worker go: {goodbye.reason}"))
        else:
            self._leave(f"the scheduler stops: {goodbye.reason}")

    def _leave(self, reason: str) -> None:
        self._state = _State.IDLE
        self._unsent.clear()
        self._emit(Left(epoch=self._epoch, reason=reason))

    # Sending

    def _take_outgoing(self) -> None:
        while self._outgoing:
            item = self._outgoing.popleft()
            if isinstance(item, StepResult):
                if self._state is _State.JOINED and item.epoch == self._epoch:
                    self._send_result(item)
            elif isinstance(item, _Greet):
                self._state, self._hello, self._epoch, self._session = _State.GREETING, item.hello, item.epoch, 0
                self._next_beat = 0.0
            else:
                if self._state is _State.JOINED:
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
        if self._state is _State.JOINED and now - self._last_heard > SILENCE_SECONDS:
            self._leave(f"nothing heard of the scheduler for {SILENCE_SECONDS:g} s")
            return
        if self._state is _State.IDLE or now < self._next_beat:
            return
        if self._state is _State.GREETING:
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
        if self._state is _State.GREETING:
            self._unsent.clear()  # no scheduler to take it: the next hello comes on its clock

    def _flush(self) -> None:
        while self._unsent:
            try:
                self._socket.send(self._unsent[0], zmq.NOBLOCK)
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
