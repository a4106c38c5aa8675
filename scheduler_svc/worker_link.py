"""The link to the workers: who is joined, what each may be sent and what of their answers is believed.

Each joined worker has an epoch and contiguous step ids. A result is handed on only if it is the next one and names the
rows its plan made sample, with ids of the vocabulary. A repeated one is dropped; anything else out of order or out of
shape gives the worker up: it is told to say hello again and its requests go elsewhere, so a wrong token never passes.
A worker is also given up when its connection ends, when it is silent, when its step takes much too long, and when its
heartbeats show that a plan or a result was lost on the way.

A worker joins anew with each hello: worker ids are never used twice. One that is lost right after joining again and
again has to wait (``join_pace.py``).
"""

import secrets
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from scheduler_svc import codec
from scheduler_svc.codec import FrameError
from scheduler_svc.columns import ids_are_below
from scheduler_svc.core.errors import WorkerRejected
from scheduler_svc.core.inventory import in_order
from scheduler_svc.core.page_hash import cache_identity
from scheduler_svc.core.types import BatchPlan, PageNames, Published, StepId, StepResult, WorkerCard, WorkerId
from scheduler_svc.core.value import value
from scheduler_svc.expected_rows import ExpectedRows
from scheduler_svc.join_pace import JoinPace
from scheduler_svc.liveness import OwnStalls, StepClock
from scheduler_svc.log import MOST_COMINGS, SparseLog
from scheduler_svc.messages import (
    PROTOCOL_VERSION,
    WorkerGoodbye,
    WorkerHeartbeat,
    WorkerHello,
    WorkerMessage,
    WorkerRefusal,
    WorkerResult,
)
from scheduler_svc.router import Peer, Router, Sent

FIRST_STEP_ID = StepId(1)
GPU_STEP_SECONDS = 0.05
"""How long a step keeps running streams waiting on a GPU, if nothing else is said: readers do not notice."""
_STATUS_FINE = 0
_LAST_STATUS = 2
_RESYNC_SECONDS = 0.2
_MAX_PAGES = 2**23
"""The books of more pages would take so long to make that every stream stalls meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    card: WorkerCard
    hello: WorkerHello


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    worker_id: WorkerId
    reason: str
    refused_step_id: StepId | None = None
    """The worker refused this plan, though it was the one that was due."""


@value(frozen=True, slots=True, kw_only=True)
class Answered:
    result: StepResult
    failure: str | None
    elapsed_seconds: float
    """Since the worker could begin with the step."""


LinkEvent = Joined | Lost | Answered


@dataclass(slots=True, kw_only=True)
class _PlanInFlight:
    step_id: StepId
    expected: "array[int]"
    num_tokens: int
    since: float
    """When the worker could begin with it."""
    said_done: bool = False
    """A heartbeat called it done."""


@dataclass(slots=True, kw_only=True)
class _Worker:
    worker_id: WorkerId
    peer: Peer
    epoch: int
    hello: WorkerHello
    last_heard: float
    last_sent: float
    is_warm: bool = False
    """Its inventory was taken."""
    confirmed: bool = False
    """It has spoken as this worker: it knows that it is welcome."""
    next_step_id: int = FIRST_STEP_ID
    in_flight: "deque[_PlanInFlight]" = field(default_factory=deque)
    outgoing: "deque[bytes]" = field(default_factory=deque)
    names: "deque[bytes]" = field(default_factory=deque)
    """They belong before all that is outgoing: a worker has all its plans when it has nothing to do."""
    expected_rows: ExpectedRows = field(default_factory=ExpectedRows)
    steps: StepClock = field(default_factory=StepClock)


class WorkerLink:
    """``receive`` and ``check`` return what happened, in order; apply it before asking for more."""

    def __init__(
        self,
        router: Router,
        *,
        heartbeat_seconds: float,
        timeout_seconds: float,
        now: float,
        hash_key: bytes = b"",
        takes_inventories: bool = False,
    ) -> None:
        """``takes_inventories``: workers may bring pages that were named under ``hash_key``."""
        self.session = secrets.randbits(64) | 1
        self.num_faults = 0
        """Frames dropped and workers given up."""
        self._router = router
        self._heartbeat_seconds = heartbeat_seconds
        self._timeout_seconds = timeout_seconds
        self._hash_key = hash_key
        self._takes_inventories = takes_inventories
        self._stalls = OwnStalls(now)
        self._model: WorkerHello | None = None
        self._by_peer: dict[Peer, _Worker] = {}
        self._by_id: dict[WorkerId, _Worker] = {}
        self._resyncs: dict[Peer, float] = {}
        self._pace = JoinPace()
        self._num_joined = 0
        self._events: list[LinkEvent] = []
        self._sparse = SparseLog()
        self._comings = SparseLog(MOST_COMINGS)

    @property
    def model(self) -> WorkerHello | None:
        """The model of the deployment: that of the first worker."""
        return self._model

    @property
    def worker_ids(self) -> list[WorkerId]:
        return list(self._by_id)

    @property
    def hellos(self) -> dict[WorkerId, WorkerHello]:
        return {worker_id: worker.hello for worker_id, worker in self._by_id.items()}

    def receive(self, now: float, limit: int) -> tuple[list[LinkEvent], int]:
        """What up to ``limit`` waiting frames say, and how many frames there were."""
        num_frames = 0
        for peer, parts in self._router.receive(limit):
            if parts is not None:
                num_frames += 1
                self._read(peer, parts, now)
                continue
            self._resyncs.pop(peer, None)
            self._pace.forgive(peer)
            if peer in self._by_peer:
                self._lose(self._by_peer[peer], "its connection ended", now)
        return self._take_events(), num_frames

    def check(self, now: float) -> list[LinkEvent]:
        """Gives up silent and stuck workers; call it when nothing waits to be received."""
        lost = self._stalls.lost(now)
        for worker in list(self._by_id.values()):
            worker.last_heard = min(now, worker.last_heard + lost)
            if worker.in_flight:
                worker.in_flight[0].since = min(now, worker.in_flight[0].since + lost)
            self._judge(worker, now)
        return self._take_events()

    def send_plan(self, plan: BatchPlan, now: float) -> None:
        """Sends a plan, or keeps it until the worker's queue has room.

        Raises: PlanError: it contradicts the plans before it; nothing was sent.
        """
        worker = self._by_id.get(plan.worker_id)
        if worker is None:
            return  # it was lost a moment ago, as the next events say
        expected = worker.expected_rows.apply(plan)
        in_flight = _PlanInFlight(
            step_id=plan.step_id, expected=expected, num_tokens=plan.num_scheduled_tokens, since=now
        )
        worker.in_flight.append(in_flight)
        worker.outgoing.append(codec.plan(self.session, worker.epoch, plan))
        self._send_waiting(worker, now)

    def send_names(self, names: PageNames, now: float) -> None:
        """Tells names of pages behind all plans so far, and before those to come."""
        worker = self._by_id.get(names.worker_id)
        if worker is not None:
            worker.names.append(codec.names(self.session, worker.epoch, names))
            self._send_waiting(worker, now)

    def flush(self, now: float) -> list[LinkEvent]:
        """Sends what had to wait, and heartbeats where nothing was sent for a while."""
        for worker in list(self._by_id.values()):
            if worker.outgoing or worker.names:
                self._send_waiting(worker, now)
            elif now - worker.last_sent >= self._heartbeat_seconds:
                self._send(worker, codec.heartbeat(self.session, worker.epoch), now)
        return self._take_events()

    def has_waiting(self) -> bool:
        """Whether plans or names wait for room in a worker's queue."""
        return any(worker.outgoing or worker.names for worker in self._by_id.values())

    def is_busy(self, worker_id: WorkerId) -> bool:
        """Whether a worker has a step to do."""
        worker = self._by_id.get(worker_id)
        return worker is not None and bool(worker.in_flight)

    def give_up(self, worker_id: WorkerId, reason: str, now: float) -> list[LinkEvent]:
        """Tells a worker to say hello again and forgets it."""
        worker = self._by_id.get(worker_id)
        if worker is not None:
            self._resync_joined(worker, reason, now)
        return self._take_events()

    def refuse(self, worker_id: WorkerId, reason: str, now: float) -> None:
        """Tells a worker that has just joined to stop, and forgets it."""
        worker = self._by_id.get(worker_id)
        if worker is not None:
            self.num_faults += 1
            self._router.send(worker.peer, codec.refusal(self.session, worker.epoch, reason, retryable=False))
            self._lose(worker, reason, now)

    def dismiss(self, worker_id: WorkerId, reason: str, now: float) -> list[LinkEvent]:
        """Tells a worker to end, and forgets it. Nothing for an unknown one."""
        worker = self._by_id.get(worker_id)
        if worker is not None:
            self._router.send(worker.peer, codec.goodbye(self.session, worker.epoch, reason, for_good=True))
            self._lose(worker, reason, now)
        return self._take_events()

    def close(self, reason: str) -> None:
        for worker in self._by_id.values():
            self._router.send(worker.peer, codec.goodbye(self.session, worker.epoch, reason))
        self._router.close()

    def _take_events(self) -> list[LinkEvent]:
        events, self._events = self._events, []
        return events

    # Reading.

    def _read(self, peer: Peer, parts: list[bytes], now: float) -> None:
        try:
            message = codec.read_worker_frame(codec.only_part(parts))
        except FrameError as error:
            self._read_garbage(peer, sum(map(len, parts)), str(error), now)
            return
        worker = self._by_peer.get(peer)
        if isinstance(message.body, WorkerHello):
            self._read_hello(peer, worker, message, message.body, now)
        elif worker is not None and (message.session, message.epoch) == (self.session, worker.epoch):
            worker.last_heard, worker.confirmed = now, True
            self._read_body(worker, message, now)
        else:
            self._read_stale(peer, message, now)

    def _read_garbage(self, peer: Peer, size: int, reason: str, now: float) -> None:
        self.num_faults += 1
        self._sparse.warning("worker_frame_dropped", now, peer=peer.hex(), num_bytes=size, reason=reason)
        if peer in self._by_peer:
            # It may have been a result: waiting for it would take its requests much longer than starting again.
            self._resync_joined(self._by_peer[peer], f"a frame of {size} bytes was not understood", now)

    def _read_stale(self, peer: Peer, message: WorkerMessage, now: float) -> None:
        self.num_faults += 1
        self._sparse.warning("stale_worker_frame_dropped", now, peer=peer.hex(), step_id=message.step_id)
        if peer in self._by_peer:
            return
        if now - self._resyncs.get(peer, -_RESYNC_SECONDS) >= _RESYNC_SECONDS:
            self._resyncs[peer] = now
            self._router.send(peer, codec.resync(self.session, message.epoch, "this epoch is not known"))

    def _read_body(self, worker: _Worker, message: WorkerMessage, now: float) -> None:
        body = message.body
        if isinstance(body, WorkerResult):
            self._read_result(worker, StepId(message.step_id), body, now)
        elif isinstance(body, WorkerRefusal):
            self.num_faults += 1
            # A later plan is refused because one before it was lost; that says nothing of its content.
            was_due = message.step_id == worker.next_step_id
            refused = StepId(message.step_id) if was_due else None
            self._lose(worker, f"it refused step {message.step_id}: {body.reason}", now, refused)
        elif isinstance(body, WorkerGoodbye):
            self._lose(worker, f"it left: {body.reason}", now)
        elif isinstance(body, WorkerHeartbeat):
            self._read_progress(worker, message.step_id, body.last_received_step_id, now)

    def _read_progress(self, worker: _Worker, done: int, received: int, now: float) -> None:
        """A worker sends a result before it calls the step done: if the result is not here by the next heartbeat, it
        was lost. A worker that is idle receives at once: if it has not seen the plan for long, that was lost."""
        num_sent = len(worker.in_flight) - len(worker.outgoing)
        if max(done, received) >= worker.next_step_id + num_sent:
            self._resync_joined(worker, f"it speaks of step {max(done, received)}, which was never sent", now)
        elif num_sent:
            head = worker.in_flight[0]
            if done >= head.step_id and head.said_done:
                self._resync_joined(worker, f"the result of step {head.step_id} was lost", now)
            elif received < head.step_id and now - head.since > self._timeout_seconds:
                self._resync_joined(worker, f"the plan of step {head.step_id} was lost", now)
            head.said_done = done >= head.step_id

    def _read_result(self, worker: _Worker, step_id: StepId, body: WorkerResult, now: float) -> None:
        if step_id < worker.next_step_id:
            self.num_faults += 1
            self._sparse.warning("repeated_result_dropped", now, worker_id=worker.worker_id, step_id=step_id)
            return
        fault = self._fault(worker, step_id, body)
        if fault:
            self._resync_joined(worker, fault, now)
            return
        done = worker.in_flight.popleft()
        worker.next_step_id = step_id + 1
        if step_id == FIRST_STEP_ID:
            self._pace.forgive(worker.peer)
        elapsed_seconds = now - done.since
        worker.steps.observe(done.num_tokens, elapsed_seconds)
        if worker.in_flight:
            worker.in_flight[0].since = now
        result = StepResult(
            worker_id=worker.worker_id,
            step_id=step_id,
            rows=body.rows,
            token_ids=body.token_ids,
            statuses=body.statuses,
            attachments=body.logprobs,
            failed=body.failure is not None,
            seconds=body.step_seconds,
        )
        self._events.append(Answered(result=result, failure=body.failure, elapsed_seconds=elapsed_seconds))

    def _fault(self, worker: _Worker, step_id: StepId, body: WorkerResult) -> str:
        """Why the result cannot be believed; empty if it can."""
        if step_id != worker.next_step_id:
            return f"the result of step {worker.next_step_id} is missing, {step_id} came"
        if len(worker.in_flight) <= len(worker.outgoing):
            return f"a result of step {step_id}, which was never sent"
        if body.failure is not None:
            return f"step {step_id} failed and has rows" if body.rows else ""
        if body.rows != worker.in_flight[0].expected:
            return f"the rows of step {step_id} are not those that were planned"
        if body.statuses and max(body.statuses) > _LAST_STATUS:
            return f"a status of step {step_id} has no meaning"
        if not ids_exist(body, worker.hello.vocab_size):
            return f"a token id of step {step_id} is not in the vocabulary"
        return ""

    # Joining and leaving.

    def _read_hello(
        self, peer: Peer, worker: _Worker | None, message: WorkerMessage, hello: WorkerHello, now: float
    ) -> None:
        if worker is not None and worker.epoch == message.epoch:
            self._read_hello_again(worker, now)
            return
        if worker is not None:
            self._lose(worker, "it said hello again", now)
        wait_seconds = self._pace.wait(peer, now)
        if wait_seconds > 0:
            self._sparse.warning(
                "worker_waits", now, device=hello.device, pid=hello.pid, seconds=round(wait_seconds, 3)
            )
            return
        refusal = self._refusal(hello, message.epoch)
        if refusal:
            self.num_faults += 1
            self._comings.warning("worker_refused", now, device=hello.device, pid=hello.pid, reason=refusal)
            self._router.send(peer, codec.refusal(self.session, message.epoch, refusal, retryable=False))
            return
        self._welcome(peer, message.epoch, hello, now)

    def _read_hello_again(self, worker: _Worker, now: float) -> None:
        """A hello of an epoch that is welcome already: our welcome is late or was lost."""
        if worker.confirmed:
            return
        if worker.in_flight:
            self._resync_joined(worker, "the welcome was lost", now)
        else:
            self._send(worker, self._welcome_frame(worker), now)

    def _refusal(self, hello: WorkerHello, epoch: int) -> str:
        """Why the worker cannot join; empty if it can."""
        if hello.protocol_version != PROTOCOL_VERSION:
            return f"protocol version {hello.protocol_version}; this scheduler speaks {PROTOCOL_VERSION}"
        limits = (hello.page_size, hello.num_pages, hello.max_num_seqs, hello.max_num_batched_tokens)
        if not (epoch and all(limits) and hello.max_model_len and hello.vocab_size):
            return "the hello holds a zero where a limit must be"
        if hello.num_pages > _MAX_PAGES:
            return f"{hello.num_pages} pages; this scheduler keeps books of at most {_MAX_PAGES}, use larger pages"
        if hello.rank:
            return f"rank {hello.rank} of a worker; rank 0 alone speaks for it"
        model = self._model
        if model is None:
            return ""
        if hello.digest != model.digest:
            return f"model digest {hello.digest} ({hello.model_name}); {model.digest} ({model.model_name}) is served"
        if hello.vocab_size != model.vocab_size:
            return f"vocabulary of {hello.vocab_size}; the served model has {model.vocab_size}"
        if hello.page_size != model.page_size:
            return f"page size {hello.page_size}; this deployment uses {model.page_size}"
        return ""

    def _welcome(self, peer: Peer, epoch: int, hello: WorkerHello, now: float) -> None:
        self._model = self._model or hello
        self._num_joined += 1
        worker_id = WorkerId(f"worker-{self._num_joined}")
        inventory = self._inventory(hello, now)
        worker = _Worker(
            worker_id=worker_id,
            peer=peer,
            epoch=epoch,
            hello=replace(hello, inventory=()),
            last_heard=now,
            last_sent=now,
            is_warm=bool(inventory),
        )
        self._by_peer[peer] = self._by_id[worker_id] = worker
        self._resyncs.pop(peer, None)
        self._pace.joined(peer, now)
        card = WorkerCard(
            worker_id=worker_id,
            num_pages=hello.num_pages,
            page_size=hello.page_size,
            max_num_seqs=hello.max_num_seqs,
            max_num_batched_tokens=hello.max_num_batched_tokens,
            max_model_len=hello.max_model_len,
            target_step_seconds=GPU_STEP_SECONDS if hello.device.startswith("cuda") else 0.0,
            first_step_id=FIRST_STEP_ID,
            inventory=inventory,
        )
        ids = {"worker_id": worker_id, "device": hello.device, "pid": hello.pid}
        self._comings.info("worker_joined", now, **ids, pages=hello.num_pages, cached=len(inventory))
        self._events.append(Joined(card=card, hello=hello))
        self._send(worker, self._welcome_frame(worker), now)

    def _inventory(self, hello: WorkerHello, now: float) -> Sequence[Published]:
        """What of a worker's inventory is taken: all or nothing."""
        if not hello.inventory or hello.inventory_identity != self._identity(hello) or not self._takes_inventories:
            return ()
        try:
            return in_order(hello.inventory, hello.num_pages)
        except WorkerRejected as error:
            self.num_faults += 1
            self._sparse.warning("inventory_refused", now, pid=hello.pid, reason=str(error))
            return ()

    def _identity(self, hello: WorkerHello) -> bytes:
        return cache_identity(self._hash_key, hello.cache_fingerprint, hello.page_size)

    def _welcome_frame(self, worker: _Worker) -> bytes:
        heartbeat_ms = int(self._heartbeat_seconds * 1000)
        identity = self._identity(worker.hello)
        return codec.welcome(
            self.session, worker.epoch, worker.worker_id, FIRST_STEP_ID, heartbeat_ms, worker.is_warm, identity
        )

    def _judge(self, worker: _Worker, now: float) -> None:
        if now - worker.last_heard > self._timeout_seconds:
            self._resync_joined(worker, f"nothing heard for {now - worker.last_heard:.1f} s", now)
        elif worker.in_flight and not worker.outgoing:
            head = worker.in_flight[0]
            if now - head.since > worker.steps.allowed(head.num_tokens):
                self._resync_joined(worker, f"step {head.step_id} takes longer than {now - head.since:.1f} s", now)

    def _resync_joined(self, worker: _Worker, reason: str, now: float) -> None:
        self.num_faults += 1
        self._router.send(worker.peer, codec.resync(self.session, worker.epoch, reason))
        self._lose(worker, reason, now)

    def _lose(self, worker: _Worker, reason: str, now: float, refused_step_id: StepId | None = None) -> None:
        if self._by_id.pop(worker.worker_id, None) is None:
            return
        del self._by_peer[worker.peer]
        self._comings.warning("worker_lost", now, worker_id=worker.worker_id, pid=worker.hello.pid, reason=reason)
        self._events.append(Lost(worker_id=worker.worker_id, reason=reason, refused_step_id=refused_step_id))

    # Sending.

    def _send_waiting(self, worker: _Worker, now: float) -> None:
        while worker.names:
            if self._send(worker, worker.names[0], now) is not Sent.SENT:
                return
            worker.names.popleft()
        while worker.outgoing and self._send(worker, worker.outgoing[0], now) is Sent.SENT:
            worker.outgoing.popleft()
            sent = worker.in_flight[len(worker.in_flight) - len(worker.outgoing) - 1]
            sent.since = now

    def _send(self, worker: _Worker, content: bytes, now: float) -> Sent:
        sent = self._router.send(worker.peer, content)
        if sent is Sent.SENT:
            worker.last_sent = now
        elif sent is Sent.GONE:
            self._lose(worker, "its connection ended", now)
        return sent


def ids_exist(body: WorkerResult, vocab_size: int) -> bool:
    """Whether the ids of rows without a fault are ids of the vocabulary."""
    token_ids = body.token_ids
    if ids_are_below(token_ids, vocab_size):
        return True
    if not body.statuses:
        return False
    pairs = zip(token_ids, body.statuses, strict=True)
    return all(status != _STATUS_FINE or 0 <= token_id < vocab_size for token_id, status in pairs)
