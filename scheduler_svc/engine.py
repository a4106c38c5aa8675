"""The one loop of the scheduler process: frames in, the core decides, plans and events out.

A round reads what waits (up to a limit, so that nobody starves another), lets time act, plans until each worker has its
steps in flight, and sends. Nothing in it blocks but the poll at its start. A fault while one thing is handled is logged
and ends the requests concerned; a broken rule of the core ends the process, because its books decide who owns a page.

Order inside a round: results before new requests, so that a worker waits least; tokens go out before the next plan is
made, as their readers have nothing while the worker has another plan; peers are judged only after all that waited was
read.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
import zmq

from scheduler_svc import exposition, replies
from scheduler_svc.core.errors import CoreError, InvariantViolation
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import Admitted, CoreConfig, EndReason, StepId, WorkerId
from scheduler_svc.curve import Doorman
from scheduler_svc.drain import Drain
from scheduler_svc.front_desk import FrontDesk
from scheduler_svc.front_link import FrontLink, FrontLinkEvent, FrontLost
from scheduler_svc.messages import Code, FrontMessage, Query, Service
from scheduler_svc.polling import Polling
from scheduler_svc.queries import Queries
from scheduler_svc.requests import Output
from scheduler_svc.router import Router
from scheduler_svc.stall import Stall
from scheduler_svc.traced_core import TracedCore, TraceFile
from scheduler_svc.worker_link import Answered, Joined, LinkEvent, Lost, WorkerLink

_FRAMES_A_ROUND = 256
_RETRY_SECONDS = 0.005
_MAX_REFUSED_PLANS = 3
_WORKER_HIGH_WATER = 16
_FRONT_HIGH_WATER = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Where the engine listens and how patient it is."""

    worker_endpoint: str
    front_endpoint: str
    hash_key: bytes = field(repr=False)
    core: CoreConfig
    worker_timeout_seconds: float = 3.0
    front_timeout_seconds: float = 3.0
    heartbeat_seconds: float = 0.5
    drain_seconds: float = 30.0
    """What running requests get in a drain."""
    drain_notice_seconds: float = 0.0
    """How long balancers are told of a drain before requests are refused."""
    polling_seconds: float = 0.0
    """How long the loop looks for more before it sleeps, when it had work for a request."""
    curve_dir: Path | None = None
    """Keys of the worker endpoint; None: it is not encrypted."""
    trace_file: TraceFile | None = None
    """Gets every call of the core; closed with the engine."""


class Engine:
    """``run`` until a condition holds; ``drain`` and ``watch`` from the same thread."""

    def __init__(self, settings: EngineSettings, clock: Callable[[], float] = time.monotonic) -> None:
        """Binds both endpoints.

        Raises: EndpointError.
        """
        self._settings = settings
        self._clock = clock
        self._log = structlog.get_logger()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        routers = self._bind()
        now = clock()
        patience: dict[str, float] = {"heartbeat_seconds": settings.heartbeat_seconds, "now": now}
        trace = settings.trace_file
        self.core = Scheduler(settings.core) if trace is None else TracedCore(settings.core, trace.write)
        self.workers = WorkerLink(
            routers[0],
            timeout_seconds=settings.worker_timeout_seconds,
            hash_key=settings.hash_key,
            takes_inventories=settings.core.enable_prefix_caching,
            **patience,
        )
        self.fronts = FrontLink(
            routers[1], session=self.workers.session, timeout_seconds=settings.front_timeout_seconds, **patience
        )
        retry_ms = max(1000, int(settings.core.worker_lost_seconds * 1000))
        self.desk = FrontDesk(self.core, self.fronts, unavailable_retry_ms=retry_ms)
        self._queries = Queries(self.core, self.desk, self.workers)
        self._retry_ms = retry_ms
        self._drain = Drain()
        self._stall = Stall(now)
        self._polling = Polling(settings.polling_seconds)
        self._more_waits = False
        self._max_request_tokens = 0
        self._admitted: dict[WorkerId, dict[StepId, list[Output]]] = {}
        self._watched: dict[int, Callable[[], None]] = {}
        self._poller = zmq.Poller()
        self._worker_sockets, self._front_sockets = (frozenset(router.poll_sockets) for router in routers)
        for socket in self._worker_sockets | self._front_sockets:
            self._poller.register(socket, zmq.POLLIN)
        self._tell_service()

    @property
    def is_drained(self) -> bool:
        """Draining was asked for and no request is left, nor anything to tell a front."""
        return self.desk.draining and not len(self.desk.requests) and not self.fronts.has_waiting()

    def metrics(self) -> bytes:
        """All metrics now, as text for Prometheus."""
        model = self.workers.model
        page_size = 0 if model is None else model.page_size
        unsettled = self.desk.num_unsettled_tokens()
        return exposition.render(self.desk.metrics.families(self.core.counts(), page_size, unsettled))

    @property
    def num_link_faults(self) -> int:
        return self.workers.num_faults + self.fronts.num_faults

    def run(self, until: Callable[[], bool]) -> None:
        while not until():
            self.run_round()

    def watch(self, descriptor: int, on_ready: Callable[[], None]) -> None:
        """Calls ``on_ready`` in the loop whenever the descriptor can be read."""
        self._watched[descriptor] = on_ready
        self._poller.register(descriptor, zmq.POLLIN)

    def unwatch(self, descriptor: int) -> None:
        if self._watched.pop(descriptor, None) is not None:
            self._poller.unregister(descriptor)

    def drain(self, seconds: float | None = None, notice_seconds: float | None = None) -> None:
        """Tells balancers, then takes no more requests; those that still run after ``seconds`` end.

        None: as configured. Asking again can only shorten it.
        """
        notice = self._settings.drain_notice_seconds if notice_seconds is None else notice_seconds
        self._drain.begin(self._clock(), notice, self._settings.drain_seconds if seconds is None else seconds)
        self._tell_service()

    @property
    def drain_until(self) -> float:
        """When running requests are ended; the beginning of time if nobody drains."""
        return self._drain.until or 0.0

    def close(self, reason: str) -> None:
        self.workers.close(reason)
        self.fronts.close()
        if self._settings.trace_file is not None:
            self._settings.trace_file.close()
        self._context.term()

    # One round.

    def run_round(self) -> None:
        sources = self._wait()
        has_requests = bool(self.desk.requests)
        for source in sources:
            if isinstance(source, int) and source in self._watched:
                self._watched[source]()
        now = self._clock()
        # To ask a socket in vain costs more than a message.
        caught_up = True
        if self._more_waits or not sources.isdisjoint(self._worker_sockets):
            caught_up &= self._read_workers(now)
        if self._more_waits or not sources.isdisjoint(self._front_sockets):
            caught_up &= self._read_fronts(now)
        self._pass_time(now, caught_up)
        self._plan(now)
        self._apply_worker_events(self.workers.flush(now), now)
        self.fronts.flush(now)
        self._tell_names(now)
        self._more_waits = not caught_up
        if sources and (has_requests or self.desk.requests):
            self._polling.had_work(now)

    def _wait(self) -> set[Any]:
        """What can be read; nothing once the round is due for other reasons."""
        now = self._clock()
        until = now + self._patience(now)
        while now < until and self._polling.looks_again(now):
            ready = self._poller.poll(0)
            if ready:
                return {source for source, _ in ready}
            now = self._clock()
        return {source for source, _ in self._poller.poll(max(0, int((until - now) * 1000 + 0.999)))}

    def _patience(self, now: float) -> float:
        """Seconds that the round may wait for something to happen."""
        if self._more_waits:
            return 0.0
        if self.workers.has_waiting() or self.fronts.has_waiting():
            return _RETRY_SECONDS
        due = [self._settings.heartbeat_seconds / 2]
        expiry = self.core.next_expiry()
        if expiry is not None:
            due.append(expiry - now)
        desk_expiry = self.desk.next_expiry()
        if desk_expiry is not None:
            due.append(desk_expiry - now)
        drain_due = self._drain.next_due(now)
        if drain_due is not None:
            due.append(max(_RETRY_SECONDS, drain_due - now))
        return max(0.0, min(due))

    def _read_workers(self, now: float) -> bool:
        events, num_frames = self.workers.receive(now, _FRAMES_A_ROUND)
        self._apply_worker_events(events, now)
        self.fronts.flush(now)
        return num_frames < _FRAMES_A_ROUND

    def _read_fronts(self, now: float) -> bool:
        events, num_frames = self.fronts.receive(now, _FRAMES_A_ROUND)
        self._apply_front_events(events, now)
        return num_frames < _FRAMES_A_ROUND

    def _pass_time(self, now: float, caught_up: bool) -> None:
        if caught_up:
            self._apply_worker_events(self.workers.check(now), now)
            self._apply_front_events(self.fronts.check(now), now)
        expiry = self.core.next_expiry()
        if expiry is not None and expiry <= now:
            self.desk.deliver(self.core.expire(now), now)
        self.desk.expire(now)
        if self._stall.is_due(now) and self._stall.changes(
            now, is_stuck=any(map(self._is_stuck, self.workers.worker_ids))
        ):
            self._log.error("stalled", is_stalled=self._stall.is_stalled)
            self._tell_service()
        if self._drain.refuses(now) and not self.desk.draining:
            self.desk.draining = True
            self._tell_service()
        if self._drain.is_over(now) and len(self.desk.requests):
            self.desk.cancel_all(EndReason.SHUTDOWN, now)

    def _is_stuck(self, worker_id: WorkerId) -> bool:
        """Whether a worker has requests and nothing is computed for them."""
        return not self.core.is_idle(worker_id) and not self.workers.is_busy(worker_id)

    # Workers.

    def _apply_worker_events(self, events: list[LinkEvent], now: float) -> None:
        for event in events:
            if isinstance(event, Answered):
                self._commit(event, now)
            elif isinstance(event, Joined):
                self._join(event, now)
            else:
                self._lose(event, now)

    def _commit(self, event: Answered, now: float) -> None:
        result = event.result
        if event.failure is not None:
            ids = {"worker_id": result.worker_id, "step_id": result.step_id}
            self._log.error("step_failed", failure=event.failure[:200], **ids)
        self._admitted.get(result.worker_id, {}).pop(result.step_id, None)
        try:
            committed = self.core.commit(result, now)
        except InvariantViolation:
            raise
        except Exception:
            self._fail_worker(result.worker_id, "commit", now)
            return
        self.desk.metrics.steps.committed(result, committed, event.elapsed_seconds, now)
        self.desk.deliver_tokens(committed)
        self.desk.deliver(committed.events, now)

    def _join(self, event: Joined, now: float) -> None:
        worker_id = event.card.worker_id
        self._admitted[worker_id] = {}
        try:
            events = self.core.add_worker(event.card, now)
        except InvariantViolation:
            raise
        except CoreError as error:
            self.workers.refuse(worker_id, str(error), now)
            return
        self.desk.vocab_size = event.hello.vocab_size
        self.desk.deliver(events, now)
        self._tell_service()

    def _lose(self, event: Lost, now: float) -> None:
        admitted = self._admitted.pop(event.worker_id, {})
        if event.refused_step_id is not None:
            self._count_refusal(event, admitted.get(event.refused_step_id, []), now)
        self.desk.deliver(self.core.remove_worker(event.worker_id, now), now)
        self.desk.metrics.steps.lost(event.worker_id, now)
        self._tell_service()

    def _count_refusal(self, event: Lost, admitted: list[Output], now: float) -> None:
        """A request whose plans are refused again and again ends, or it would take worker after worker with it."""
        suspects = admitted or self.desk.outputs_on(event.worker_id)
        for output in suspects:
            output.num_refused_plans += 1
        self.desk.fail([o for o in suspects if o.num_refused_plans >= _MAX_REFUSED_PLANS], now)

    def _fail_worker(self, worker_id: WorkerId, doing: str, now: float) -> None:
        """The core failed on a worker's work: that work ends, and the worker begins anew."""
        self._log.exception("core_failed", doing=doing, worker_id=worker_id)
        outputs = self.desk.outputs_on(worker_id)
        waiting = (o for request in self.desk.requests for o in request.outputs if not o.running)
        self.desk.fail(outputs or list(waiting), now)
        self._apply_worker_events(self.workers.give_up(worker_id, f"the scheduler failed to {doing}", now), now)

    def _plan(self, now: float) -> None:
        """Plans until the workers have their steps in flight or there is nothing to do."""
        for worker_id in self.workers.worker_ids:
            with self._guarded(worker_id, "plan", now):
                while self._plan_step(worker_id, now):
                    pass

    def _tell_names(self, now: float) -> None:
        """Of pages whose names no plan tells, as there is none: what nobody waits for comes last."""
        for worker_id in self.workers.worker_ids:
            with self._guarded(worker_id, "tell names", now):
                names = self.core.take_names(worker_id, now)
                if names is not None:
                    self.workers.send_names(names, now)

    @contextmanager
    def _guarded(self, worker_id: WorkerId, doing: str, now: float) -> Iterator[None]:
        """What fails in it fails the worker, unless it is a rule of the core that is broken."""
        try:
            yield
        except InvariantViolation:
            raise
        except Exception:
            self._fail_worker(worker_id, doing, now)

    def _plan_step(self, worker_id: WorkerId, now: float) -> bool:
        began = self._clock()
        plan, events = self.core.plan(worker_id, now)
        seconds = self._clock() - began
        if plan is not None:
            admitted = [self.desk.requests.output(each.key) for each in events if isinstance(each, Admitted)]
            if admitted:
                self._admitted[worker_id][plan.step_id] = [output for output in admitted if output is not None]
            self.workers.send_plan(plan, now)
            self.desk.metrics.steps.planned(plan, seconds, now)
        if events:
            self.desk.deliver(events, now)
        return plan is not None

    # Fronts.

    def _apply_front_events(self, events: list[FrontLinkEvent], now: float) -> None:
        for event in events:
            if isinstance(event, FrontLost):
                self.desk.lose_front(event.front_id, now)
                continue
            self.desk.apply(event.message, now)
            if event.message.figures is not None:
                self.desk.metrics.requests.front_said(event.message.front_id, event.message.figures)
            for query in event.message.queries:
                self._answer(event.message, query, now)

    def _answer(self, message: FrontMessage, query: Query, now: float) -> None:
        if query.kind in ("drain", "drain_ms"):
            self._log.info("drain_asked_for", milliseconds=query.milliseconds)
            self.drain(None if query.milliseconds is None else query.milliseconds / 1000)
            reply = replies.reply(query.query_id, replies.drain_response())
        elif query.kind == "remove_worker_id":
            reply = self._remove_worker(query, now)
        else:
            reply = self._queries.reply(query, self.num_link_faults, now)
            if query.limits is not None:
                self._tell_service()
        self.fronts.outbox(message.front_id).add_reply(reply)

    def _remove_worker(self, query: Query, now: float) -> Any:
        worker_id = WorkerId(query.worker_id)
        if worker_id not in self.workers.worker_ids:
            return replies.reply(query.query_id, code=Code.NOT_FOUND, message="there is no such worker")
        self._apply_worker_events(self.workers.dismiss(worker_id, "an operator removes it", now), now)
        return replies.reply(query.query_id, replies.remove_worker_response())

    def _tell_service(self) -> None:
        hellos, model = self.workers.hellos.values(), self.workers.model
        limit = self._settings.core.max_model_len
        sizes = [min(hello.max_model_len, hello.num_pages * hello.page_size) for hello in hellos]
        if sizes:
            self._max_request_tokens = min(max(sizes), limit or max(sizes))
        self.fronts.set_service(
            Service(
                model_card=b"" if model is None else model.model_card,
                num_workers=len(hellos),
                page_size=0 if model is None else model.page_size,
                hash_key=self._settings.hash_key,
                max_request_tokens=self._max_request_tokens,
                max_num_seqs=sum(min(self.core.limits.max_num_seqs, hello.max_num_seqs) for hello in hellos),
                leaving=self._drain.until is not None,
                draining=self.desk.draining,
                drain_ms=self._drain.ms_left(self._clock()),
                stalled=self._stall.is_stalled,
                retry_ms=0 if hellos else self._retry_ms,
            )
        )

    def _bind(self) -> tuple[Router, Router]:
        curve_dir = self._settings.curve_dir
        doorman = None if curve_dir is None else Doorman(self._context, curve_dir)
        worker_router = Router(self._context, self._settings.worker_endpoint, _WORKER_HIGH_WATER, doorman)
        try:
            front_router = Router(self._context, self._settings.front_endpoint, _FRONT_HIGH_WATER)
        except Exception:
            worker_router.close()
            raise
        return worker_router, front_router
