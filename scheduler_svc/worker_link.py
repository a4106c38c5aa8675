"""The link to the workers: who is joined, what each is sent and what comes of its answers.

Each joined worker has an epoch. A result is handed on only if it is believed (``joined_worker.py``). A repeated one is
dropped; anything else out of order or out of shape gives the worker up: it is told to say hello again and its requests
go elsewhere, so a wrong token never passes. A worker is also given up when its connection ends, when it is silent, when
its step takes much too long, and when its heartbeats show that a plan or a result was lost on the way.

A worker joins anew with each hello, on the terms of ``join_terms.py``. One that is lost right after joining again and
again has to wait (``join_pace.py``).
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler_svc import worker_codec
from scheduler_svc.core.errors import WorkerRejected
from scheduler_svc.core.types import BatchPlan, PageNames, Published, StepId, StepResult, WorkerCard, WorkerId
from scheduler_svc.core.value import value
from scheduler_svc.join_pace import JoinPace
from scheduler_svc.join_terms import JoinTerms
from scheduler_svc.joined_worker import JoinedWorker, PlanInFlight
from scheduler_svc.liveness import OwnStalls
from scheduler_svc.log import MOST_COMINGS, SparseLog
from scheduler_svc.messages import (
    FrameError,
    WorkerGoodbye,
    WorkerHeartbeat,
    WorkerHello,
    WorkerMessage,
    WorkerRefusal,
    WorkerResult,
    only_part,
)
from scheduler_svc.router import Peer, Router, Sent

_RESYNC_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A worker was welcomed."""

    card: WorkerCard
    hello: WorkerHello


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A worker is gone; its requests go elsewhere."""

    worker_id: WorkerId
    reason: str
    refused_step_id: StepId | None = None
    """The worker refused this plan, though it was the one that was due."""


@value(frozen=True, slots=True, kw_only=True)
class Answered:
    """A result that is believed."""

    result: StepResult
    failure: str | None
    elapsed_seconds: float
    """Since the worker could begin with the step."""


LinkEvent = Joined | Lost | Answered


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
        self._terms = JoinTerms(hash_key, takes_inventories)
        self._stalls = OwnStalls(now)
        self._by_peer: dict[Peer, JoinedWorker] = {}
        self._by_id: dict[WorkerId, JoinedWorker] = {}
        self._resyncs: dict[Peer, float] = {}
        self._pace = JoinPace()
        self._events: list[LinkEvent] = []
        self._sparse = SparseLog()
        self._comings = SparseLog(MOST_COMINGS)

    @property
    def model(self) -> WorkerHello | None:
        """The model of the deployment: that of the first worker."""
        return self._terms.model

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
            delay = worker.delay(now, self._timeout_seconds)
            if delay:
                self._resync_joined(worker, delay, now)
        return self._take_events()

    def send_plan(self, plan: BatchPlan, now: float) -> None:
        """Sends a plan, or keeps it until the worker's queue has room.

        Raises: PlanError: it contradicts the plans before it; nothing was sent.
        """
        worker = self._by_id.get(plan.worker_id)
        if worker is None:
            return  # it was lost a moment ago, as the next events say
        expected = worker.expected_rows.apply(plan)
        in_flight = PlanInFlight(
            step_id=plan.step_id, expected=expected, num_tokens=plan.num_scheduled_tokens, since=now
        )
        worker.in_flight.append(in_flight)
        worker.outgoing.append(worker_codec.plan(self.session, worker.epoch, plan))
        self._send_waiting(worker, now)

    def send_names(self, names: PageNames, now: float) -> None:
        """Tells names of pages behind all plans so far, and before those to come."""
        worker = self._by_id.get(names.worker_id)
        if worker is not None:
            worker.names.append(worker_codec.names(self.session, worker.epoch, names))
            self._send_waiting(worker, now)

    def flush(self, now: float) -> list[LinkEvent]:
        """Sends what had to wait, and heartbeats where nothing was sent for a while."""
        for worker in list(self._by_id.values()):
            if worker.outgoing or worker.names:
                self._send_waiting(worker, now)
            elif now - worker.last_sent >= self._heartbeat_seconds:
                self._send(worker, worker_codec.heartbeat(self.session, worker.epoch), now)
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
            self._router.send(worker.peer, worker_codec.refusal(self.session, worker.epoch, reason, retryable=False))
            self._lose(worker, reason, now)

    def dismiss(self, worker_id: WorkerId, reason: str, now: float) -> list[LinkEvent]:
        """Tells a worker to end, and forgets it. Nothing for an unknown one."""
        worker = self._by_id.get(worker_id)
        if worker is not None:
            self._router.send(worker.peer, worker_codec.goodbye(self.session, worker.epoch, reason, for_good=True))
            self._lose(worker, reason, now)
        return self._take_events()

    def close(self, reason: str) -> None:
        for worker in self._by_id.values():
            self._router.send(worker.peer, worker_codec.goodbye(self.session, worker.epoch, reason))
        self._router.close()

    def _take_events(self) -> list[LinkEvent]:
        events, self._events = self._events, []
        return events

    # Reading.

    def _read(self, peer: Peer, parts: list[bytes], now: float) -> None:
        try:
            message = worker_codec.read_worker_frame(only_part(parts))
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
            self._router.send(peer, worker_codec.resync(self.session, message.epoch, "this epoch is not known"))

    def _read_body(self, worker: JoinedWorker, message: WorkerMessage, now: float) -> None:
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
            loss = worker.loss(message.step_id, body.last_received_step_id, now, self._timeout_seconds)
            if loss:
                self._resync_joined(worker, loss, now)

    def _read_result(self, worker: JoinedWorker, step_id: StepId, body: WorkerResult, now: float) -> None:
        if step_id < worker.next_step_id:
            self.num_faults += 1
            self._sparse.warning("repeated_result_dropped", now, worker_id=worker.worker_id, step_id=step_id)
            return
        fault = worker.fault(step_id, body)
        if fault:
            self._resync_joined(worker, fault, now)
            return
        done = worker.in_flight.popleft()
        worker.next_step_id = step_id + 1
        if step_id == worker.first_step_id:
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

    # Joining and leaving.

    def _read_hello(
        self, peer: Peer, worker: JoinedWorker | None, message: WorkerMessage, hello: WorkerHello, now: float
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
        refusal = self._terms.refusal(hello, message.epoch)
        if refusal:
            self.num_faults += 1
            self._comings.warning("worker_refused", now, device=hello.device, pid=hello.pid, reason=refusal)
            self._router.send(peer, worker_codec.refusal(self.session, message.epoch, refusal, retryable=False))
            return
        self._welcome(peer, message.epoch, hello, now)

    def _read_hello_again(self, worker: JoinedWorker, now: float) -> None:
        """A hello of an epoch that is welcome already: our welcome is late or was lost."""
        if worker.confirmed:
            return
        if worker.in_flight:
            self._resync_joined(worker, "the welcome was lost", now)
        else:
            self._send(worker, self._welcome_frame(worker), now)

    def _welcome(self, peer: Peer, epoch: int, hello: WorkerHello, now: float) -> None:
        card = self._terms.card(hello, self._inventory(hello, now))
        worker = JoinedWorker(
            worker_id=card.worker_id,
            peer=peer,
            epoch=epoch,
            hello=replace(hello, inventory=()),
            last_heard=now,
            last_sent=now,
            first_step_id=card.first_step_id,
            next_step_id=card.first_step_id,
            is_warm=bool(card.inventory),
        )
        self._by_peer[peer] = self._by_id[card.worker_id] = worker
        self._resyncs.pop(peer, None)
        self._pace.joined(peer, now)
        ids = {"worker_id": card.worker_id, "device": hello.device, "pid": hello.pid}
        self._comings.info("worker_joined", now, **ids, pages=hello.num_pages, cached=len(card.inventory))
        self._events.append(Joined(card=card, hello=hello))
        self._send(worker, self._welcome_frame(worker), now)

    def _inventory(self, hello: WorkerHello, now: float) -> Sequence[Published]:
        try:
            return self._terms.inventory(hello)
        except WorkerRejected as error:
            self.num_faults += 1
            self._sparse.warning("inventory_refused", now, pid=hello.pid, reason=str(error))
            return ()

    def _welcome_frame(self, worker: JoinedWorker) -> bytes:
        heartbeat_ms = int(self._heartbeat_seconds * 1000)
        identity = self._terms.identity(worker.hello)
        return worker_codec.welcome(
            self.session, worker.epoch, worker.worker_id, worker.first_step_id, heartbeat_ms, worker.is_warm, identity
        )

    def _resync_joined(self, worker: JoinedWorker, reason: str, now: float) -> None:
        self.num_faults += 1
        self._router.send(worker.peer, worker_codec.resync(self.session, worker.epoch, reason))
        self._lose(worker, reason, now)

    def _lose(self, worker: JoinedWorker, reason: str, now: float, refused_step_id: StepId | None = None) -> None:
        if self._by_id.pop(worker.worker_id, None) is None:
            return
        del self._by_peer[worker.peer]
        self._comings.warning("worker_lost", now, worker_id=worker.worker_id, pid=worker.hello.pid, reason=reason)
        self._events.append(Lost(worker_id=worker.worker_id, reason=reason, refused_step_id=refused_step_id))

    # Sending.

    def _send_waiting(self, worker: JoinedWorker, now: float) -> None:
        while worker.names:
            if self._send(worker, worker.names[0], now) is not Sent.SENT:
                return
            worker.names.popleft()
        while worker.outgoing and self._send(worker, worker.outgoing[0], now) is Sent.SENT:
            worker.outgoing.popleft()
            sent = worker.in_flight[len(worker.in_flight) - len(worker.outgoing) - 1]
            sent.since = now

    def _send(self, worker: JoinedWorker, content: bytes, now: float) -> Sent:
        sent = self._router.send(worker.peer, content)
        if sent is Sent.SENT:
            worker.last_sent = now
        elif sent is Sent.GONE:
            self._lose(worker, "its connection ended", now)
        return sent
