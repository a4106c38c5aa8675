"""The scheduler core: requests and step results in, batch plans and events out. No I/O, no clock, no randomness.

    submit ──▶ placement ──▶ a worker's queue ──▶ plan: a row, pages, chunks, decodes ──▶ step in flight
                                   ▲                                                          │
                                   ╰──preempted, worker lost──────  commit: tokens, names ◀───╯──▶ Ended, once

The same calls with the same arguments give the same plans and events, in any process. ``now`` is seconds on the
caller's monotonic clock. Who decides what: placement.py where a request waits, admission.py when it begins, batcher.py
what a step computes, supply.py who gives way when pages run out, results.py what a result changes, registry.py how a
request ends.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace

from scheduler_svc.core import invariants
from scheduler_svc.core.accounts import Account, Accounts
from scheduler_svc.core.batcher import plan_step
from scheduler_svc.core.errors import RejectCode, RequestRejected, WorkerRejected
from scheduler_svc.core.fairness import settle
from scheduler_svc.core.flight_recorder import Decision, FlightRecorder
from scheduler_svc.core.intake import check_deadline, check_hashes, check_queue, check_request
from scheduler_svc.core.pins import Pins
from scheduler_svc.core.placement import Placement
from scheduler_svc.core.policy import order_of, priority_of
from scheduler_svc.core.prefix_explanation import explain
from scheduler_svc.core.prefix_history import PrefixHistory
from scheduler_svc.core.quote import quote
from scheduler_svc.core.registry import Registry
from scheduler_svc.core.request import Request, State
from scheduler_svc.core.results import apply_result
from scheduler_svc.core.tally import Tally
from scheduler_svc.core.types import (
    MOST_ROWS,
    BatchPlan,
    Committed,
    CoreConfig,
    Counts,
    EndReason,
    Event,
    LiveLimits,
    NewPin,
    NewRequest,
    PageExplanation,
    PageNames,
    Pin,
    PinKey,
    Preempted,
    PrefixQuestion,
    Quote,
    RequestKey,
    StepResult,
    WorkerCard,
    WorkerId,
)
from scheduler_svc.core.worker import Worker


class Scheduler:
    """The facade. A call either does all it says or raises and does nothing."""

    def __init__(self, config: CoreConfig, placement: Placement | None = None) -> None:
        """``placement`` is another rule than the usual one, to compare it.

        Raises: ValueError: a limit that lets nothing run, or more rows than a plan can tell.
        """
        for name in ("max_num_batched_tokens", "max_num_seqs", "max_steps_in_flight"):
            if getattr(config, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if config.max_num_seqs > MOST_ROWS:
            raise ValueError(f"max_num_seqs must be at most {MOST_ROWS}")
        if config.long_prefill_token_threshold < 0:
            raise ValueError("long_prefill_token_threshold must be at least 0")
        self._config = self._started = config
        self._tally = Tally()
        self._accounts = Accounts(config.tenant_weights, config.tenant_fairness)
        self._placement = placement or Placement()
        self._history = PrefixHistory()
        self._pins = Pins(config.pin_share)
        self._registry = Registry(self._placement, self._tally, self._history)
        self._recorder = FlightRecorder()
        self._num_arrived = 0

    def submit(self, request: NewRequest, now: float) -> list[Event]:
        """Takes a request; it waits for a worker.

        Raises:
            RequestRejected: it can never be served, or the queue is full. Nothing of it is kept.
        """
        if self._registry.get(request.key) is not None:
            raise RequestRejected(RejectCode.DUPLICATE, "key", f"a request with key {request.key} is live")
        check_request(request, self._placement)
        account = self._accounts.of(request.tenant)
        first = None if request.fork_of is None else self._registry.get(request.fork_of)
        num_siblings = 0 if first is None else len(first.family or (first,))
        check_queue(len(request.prompt), num_siblings, account, self._accounts, self._config)
        self._num_arrived += 1
        num_waiting = self.num_waiting
        taken = self._read(request, account, now)
        if request.deadline is not None and request.fork_of is None:
            check_deadline(taken, self._placement.choose(taken), now)
        self._recorder.note_submitted(taken, num_waiting, now)
        self._registry.add(taken)
        self._place([taken], now)
        return []

    def quote(self, request: NewRequest, now: float) -> Quote:
        """What a request would meet if it were submitted now; nothing of it is kept.

        Raises:
            RequestRejected: it can never be served.
        """
        check_request(request, self._placement)
        return quote(self._read(request, self._accounts.like(request.tenant), now), self._placement, now)

    def cancel(self, key: RequestKey, reason: EndReason, now: float) -> list[Event]:
        """Ends a request at once, in whatever state it is. An unknown or ended key changes nothing."""
        request = self._registry.get(key)
        return [] if request is None else self._note([self._registry.end(request, reason, now)], now)

    def stop(self, key: RequestKey, num_output_tokens: int, now: float) -> list[Event]:
        """Ends a request by a stop string that was complete with its output token number ``num_output_tokens``."""
        request = self._registry.get(key)
        return [] if request is None else self._note([self._registry.stop_at(request, num_output_tokens, now)], now)

    def scanned(self, key: RequestKey, now: float) -> list[Event]:
        """Confirms a held ending: no stop string was found up to it."""
        request = self._registry.get(key)
        return [] if request is None else self._note(self._registry.confirm(request, now), now)

    def add_worker(self, card: WorkerCard, now: float) -> list[Event]:
        """A worker joins; one that is known by this id is lost first. Waiting requests are placed anew.

        Raises:
            WorkerRejected: its pages have another size than those of the others, or its inventory cannot be true.
        """
        page_size = self._placement.page_size
        if page_size and card.page_size != page_size:
            raise WorkerRejected(f"page size is {card.page_size}, the other workers have {page_size}")
        worker = Worker(card, self._started)
        worker.limit(self.limits)
        self._pins.hold(worker)
        events = self._remove(card.worker_id, now)
        self._placement.join(worker, now)
        return events

    def remove_worker(self, worker_id: WorkerId, now: float) -> list[Event]:
        """A worker is gone with all its pages and steps in flight; its requests wait for any worker. Unknown:
        nothing."""
        return self._remove(worker_id, now)

    def plan(self, worker_id: WorkerId, now: float) -> tuple[BatchPlan | None, list[Event]]:
        """The worker's next step, which is then in flight.

        None if there is nothing to do for it, if so many steps as may be are in flight, or if all its requests have to
        wait for a result. Requests that have run out of time are ended first, so that nothing is computed for them.
        """
        worker = self._placement.workers.get(worker_id)
        if worker is None or self.is_full(worker_id):
            return None, []
        events = self._expire(now)
        if self.num_waiting and len(self._placement.workers) > 1:
            for request in self._placement.rebalance(worker):
                self._recorder.note_placed(request, True, now)
        return plan_step(worker, self._config, self._tally, self._recorder, events, now), events

    def take_names(self, worker_id: WorkerId, now: float) -> PageNames | None:
        """What a worker with nothing to do has not been told yet of its pages' names, so that it can bring them to
        another scheduler; None if there is nothing of the kind. The next plan would tell it otherwise."""
        worker = self._placement.workers.get(worker_id)
        if worker is None or not worker.pool.has_changes or not worker.is_idle():
            return None
        published, parent_pages, evicted = worker.pool.take_changes()
        return PageNames(worker_id=worker_id, published=published, parent_pages=parent_pages, evicted_pages=evicted)

    def commit(self, result: StepResult, now: float) -> Committed:
        """Applies the result of the worker's oldest step in flight; any other result is late or unknown and changes
        nothing."""
        worker = self._placement.workers.get(result.worker_id)
        if worker is None or not worker.in_flight or worker.in_flight[0].step_id != result.step_id:
            return Committed()
        committed = apply_result(worker, result, self._registry, self._tally, now)
        self._recorder.note_events(committed.events, now, result.step_id)
        return committed

    def expire(self, now: float) -> list[Event]:
        """Ends requests that have run out of time, or have waited too long without any worker that can hold them, and
        pins whose time is over."""
        return self._note(self._expire(now), now)

    def next_expiry(self) -> float | None:
        """The earliest ``now`` at which ``expire`` would do something."""
        times = [self._registry.next_expiry(), self._pins.next_expiry()]
        if (waiter := self._longest_unplaced()) is not None:
            times.append(self._lost_at(waiter))
        return min((time for time in times if time is not None), default=None)

    def num_output_tokens(self, key: RequestKey) -> int:
        """Tokens that a live request has got so far; 0 if there is none of this key."""
        request = self._registry.get(key)
        if request is None:
            return 0
        self._placement.collect(request)
        return len(request.output)

    def decisions(self, key: RequestKey) -> Sequence[Decision]:
        """What was decided about a request, in order; nothing if it is unknown or ended too long ago."""
        return self._recorder.decisions(key)

    def standing(self, key: RequestKey, now: float) -> Sequence[Decision]:
        """Where a request stands in its queue, and what the first there waits for; nothing if it does not wait behind
        another."""
        request = self._registry.get(key)
        if request is None or request.state is not State.WAITING or key in self._placement.unplaced:
            return ()
        return self._recorder.standing(request, self._placement.worker_of(request), now)

    def explain_prefix(self, question: PrefixQuestion) -> list[PageExplanation]:
        """For each page of a prompt whether it is cached, and why not, as far as its tenant may know.

        Raises:
            RequestRejected: the hashes are not those of the prompt's full pages, or no worker has joined yet.
        """
        page_size = self._placement.page_size
        if not page_size:
            raise RequestRejected(RejectCode.NO_WORKER, "", "no worker has joined yet")
        check_hashes(len(question.page_hashes), len(question.prompt), page_size)
        sent = self._history.of(question.tenant, self._registry.newest_first())
        return explain(question, list(self._placement.workers.values()), sent, page_size)

    @property
    def started(self) -> CoreConfig:
        """What it began with."""
        return self._started

    @property
    def limits(self) -> LiveLimits:
        """Those in force."""
        config = self._config
        return LiveLimits(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_queued_requests=config.max_queued_requests,
            max_queued_tokens=config.max_queued_tokens,
        )

    def update_limits(self, limits: LiveLimits, now: float) -> list[Event]:
        """From now on these hold. Requests that run or wait already stay, however many they are.

        Raises: ValueError: a limit that lets nothing run, or more rows or tokens than the core began with.
        """
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            if not 1 <= getattr(limits, name) <= getattr(self._started, name):
                raise ValueError(f"{name} must lie in 1..{getattr(self._started, name)}")
        self._config = replace(self._config, **asdict(limits))
        for worker in self._placement.workers.values():
            worker.limit(limits)
        return []

    def pin(self, pin: NewPin, now: float) -> Pin:
        """Keeps a prefix's pages cached from when they are; tells how many are now.

        Raises:
            RequestRejected: it cannot be kept. Nothing of it is.
        """
        if not self._config.enable_prefix_caching:
            raise RequestRejected(RejectCode.INVALID, "prefix", "prefix caching is off")
        self._pins.expire(now, self._placement.workers.values())
        return self._pins.add(pin, list(self._placement.workers.values()))

    def unpin(self, key: PinKey, now: float) -> bool:
        """Ends a pin; False if there is none of this key."""
        return self._pins.remove(key, self._placement.workers.values())

    def pins(self, tenant: str) -> list[Pin]:
        """A tenant's pins, in the order in which they were made."""
        return self._pins.of(tenant, list(self._placement.workers.values()))

    def reset_prefix_cache(self, now: float) -> int:
        """Frees every cached page that nobody uses or pinned, on all workers; returns how many there were."""
        return sum(worker.pool.forget() for worker in self._placement.workers.values())

    @property
    def num_waiting(self) -> int:
        """Requests that wait."""
        return self._accounts.num_waiting

    def counts(self) -> Counts:
        """A snapshot. Costs the number of workers and of their rows."""
        workers, tally = self._placement.workers, self._tally
        pages = {worker_id: worker.counts() for worker_id, worker in workers.items()}
        num_held_slots = sum(each.num_held for each in pages.values()) * self._placement.page_size
        num_dead_slots = sum(each.num_dead_slots for each in pages.values())
        return Counts(
            num_running=self._num_running(),
            num_waiting=self.num_waiting,
            num_unplaced=len(self._placement.unplaced),
            num_parked=sum(worker.claims.num_parked() for worker in workers.values()),
            num_workers=len(workers),
            pages=pages,
            num_preemptions=tally.num_preemptions,
            num_computed_tokens=tally.num_computed_tokens,
            num_output_tokens=tally.num_output_tokens,
            num_cached_tokens=tally.num_cached_tokens,
            num_wasted_tokens=tally.num_wasted_tokens,
            num_cut_tokens=tally.num_cut_tokens,
            num_page_evictions=tally.num_page_evictions + sum(each.pool.num_evicted for each in workers.values()),
            num_steps=tally.num_steps,
            num_asked_pages=tally.hits.num_asked,
            num_hit_pages=tally.hits.num_hit,
            num_evicted_pages=tally.hits.num_evicted,
            num_diverged_pages=tally.hits.num_diverged,
            num_salted_pages=tally.hits.num_salted,
            num_tail_pages=tally.hits.num_tails,
            page_waste_ratio=num_dead_slots / num_held_slots if num_held_slots else 0.0,
        )

    def charges(self) -> dict[str, float]:
        """Tokens that each tenant was charged, as fairness.py counts them. Costs the number of tenants."""
        return self._accounts.charges()

    def is_full(self, worker_id: WorkerId) -> bool:
        """Whether a worker has as many steps in flight as it may have; an unknown one has."""
        worker = self._placement.workers.get(worker_id)
        return worker is None or len(worker.in_flight) >= self._config.max_steps_in_flight

    def is_idle(self, worker_id: WorkerId) -> bool:
        """Whether a worker has nothing in flight, running or waiting; an unknown one has not."""
        worker = self._placement.workers.get(worker_id)
        return worker is None or worker.is_idle()

    def check_invariants(self) -> None:
        """Checks every rule of the core's books. Costs their whole size: for tests.

        Raises:
            InvariantViolation: a rule is broken.
        """
        invariants.check(self._placement, self._registry, self._accounts, self._pins)

    def _remove(self, worker_id: WorkerId, now: float) -> list[Event]:
        worker = self._placement.workers.get(worker_id)
        if worker is None:
            return []
        events: list[Event] = []
        for residence in list(worker.rows.values()):
            worker.collect(residence.request)
            worker.vacate(residence)
            residence.request.move(State.WAITING)
            events.append(self._lost(residence.request))
        for request in worker.landing():
            worker.collect(request)
            if request.state is State.LANDING:
                request.move(State.WAITING)
                events.append(self._lost(request))
        mine = [
            request for request in self._registry if request.worker_id == worker_id and request.state is State.WAITING
        ]
        worker.forget_steps()
        self._tally.num_page_evictions += worker.pool.num_evicted
        self._placement.leave(worker)
        self._note(events, now)
        self._place(mine, now)
        return events

    def _expire(self, now: float) -> list[Event]:
        self._pins.expire(now, self._placement.workers.values())
        events = self._registry.expire(now)
        while (waiter := self._longest_unplaced()) is not None and self._lost_at(waiter) <= now:
            events.append(self._registry.end(waiter, EndReason.WORKER_LOST, now))
        return events

    def _place(self, requests: Sequence[Request], now: float) -> None:
        self._placement.place_all(requests, now)
        for request in requests:
            self._recorder.note_placed(request, request.key not in self._placement.unplaced, now)

    def _note(self, events: list[Event], now: float) -> list[Event]:
        self._recorder.note_events(events, now)
        return events

    def _read(self, new: NewRequest, account: Account, now: float) -> Request:
        order = order_of(new, self._config, self._placement.capacity, self._num_arrived, now)
        priority, use_cache = priority_of(new, self._config), self._config.enable_prefix_caching
        return Request(new, order, account, priority=priority, use_cache=use_cache, now=now)

    def _num_running(self) -> int:
        return len(self._registry) - self._registry.num_held - self.num_waiting

    def _lost(self, request: Request) -> Event:
        settle(request, len(request.output))
        request.num_preemptions += 1
        self._tally.num_preemptions += 1
        return Preempted(key=request.key, reason="worker lost")

    def _longest_unplaced(self) -> Request | None:
        return next(iter(self._placement.unplaced.values()), None)

    def _lost_at(self, request: Request) -> float:
        return request.unplaced_since + self._config.worker_lost_seconds
