"""Fills one step of one worker: decoding rows first, then prompts, begun or new, within the token budget.

One rule for all work: what is computed chases what is known. Decoding rows come first, so that running streams never
stall for a prompt; chunks take what they leave of the budget, first come first served. With a target for the time of a
step the budget is also what the worker's pace lets prompts have.
"""

from scheduler_svc.core.admission import Admission
from scheduler_svc.core.fairness import charge_chunk, charge_decodes
from scheduler_svc.core.flight_recorder import FlightRecorder
from scheduler_svc.core.plan import PlanDraft
from scheduler_svc.core.request import Order, Residence, State
from scheduler_svc.core.supply import PageSupply
from scheduler_svc.core.tally import Tally
from scheduler_svc.core.types import BatchPlan, CoreConfig, Event, Row
from scheduler_svc.core.worker import Worker


def plan_step(
    worker: Worker, config: CoreConfig, tally: Tally, recorder: FlightRecorder, events: list[Event], now: float
) -> BatchPlan | None:
    """Decides the worker's next step and puts it in flight; None if nothing can be computed now.

    Adds what happened to ``events``, and tells the recorder.
    """
    batcher = Batcher(worker, config, tally, events)
    batcher.schedule_decodes()
    batcher.schedule_prompts(now)
    plan = batcher.draft.build(worker)
    if plan is not None:
        charge_decodes(worker)
        worker.rates.note_plan(now)
        tally.num_steps += 1
        tally.num_computed_tokens += plan.num_scheduled_tokens
    recorder.note_plan(worker, batcher.draft, plan, batcher.num_short, events, now)
    return plan


class Batcher:
    """Makes one plan."""

    __slots__ = ("_budget", "_events", "_longest_chunk", "_supply", "_tally", "_target_seconds", "_worker", "draft")

    def __init__(self, worker: Worker, config: CoreConfig, tally: Tally, events: list[Event]) -> None:
        self._worker = worker
        self._events = events
        self._tally = tally
        self._budget = worker.max_tokens_per_step
        target = config.target_step_seconds
        self._target_seconds = worker.card.target_step_seconds if target is None else target
        self._longest_chunk = config.long_prefill_token_threshold or self._budget
        self.draft = PlanDraft(worker)
        self._supply = PageSupply(worker, self.draft, events, tally)

    @property
    def num_short(self) -> int:
        """Rows that wait for a page of a step in flight."""
        return self._supply.num_short

    def schedule_decodes(self) -> None:
        """Lets decoding rows go on: looks only at those with an appointment, and at those that sat out."""
        decoding, step_id = self._worker.decoding, self.draft.record.step_id
        asking = self._enter_ready() if decoding.ready else []
        for residence in decoding.due(step_id):
            if residence.computed_before(step_id) == residence.most_computed:
                self._release_spent(residence)
            else:
                asking.append(residence)
        decoding.forget_due(step_id)
        if len(asking) > self._worker.pool.num_available:  # else nobody has to give way to anybody
            asking.sort(key=lambda residence: residence.request.order)
        for residence in asking:
            if residence.request.residence is residence:  # else it was preempted for an older one
                self._decode(residence)
        self._budget -= len(decoding.lanes)

    def schedule_prompts(self, now: float) -> None:
        """Goes on with prompts that have begun and begins new ones, in one order, as long as the budget lasts."""
        if self._target_seconds and self._worker.decoding.lanes:
            self._keep_pace(now)
        admission = Admission(self._worker, self.draft, self._supply, self._events, self._tally, now)
        for residence in self._worker.prefilling[:]:
            self._begin_prompts(admission, residence.request.order)
            if self._budget <= 0:
                return
            if residence.request.residence is residence:  # else it was preempted for an older one
                self._chunk(residence)
        self._begin_prompts(admission, None)

    def _keep_pace(self, now: float) -> None:
        """Limits the budget for the sake of the streams that decode in this step."""
        worker = self._worker
        first = worker.prefilling[0].request if worker.prefilling else worker.queue.peek()
        if first is None:
            return
        num_waiting = worker.backlog + sum(entry.num_known - entry.num_computed for entry in worker.prefilling)
        most = worker.pace.max_prompt_tokens(self._target_seconds)
        enough = worker.pace.spread_tokens(first.num_tokens, num_waiting, now - first.submitted_at)
        self._budget = min(limit for limit in (self._budget, most, enough) if limit is not None)

    def _begin_prompts(self, admission: Admission, before: Order | None) -> None:
        """Admits requests that come before ``before``; none while a running row waits for a page."""
        while self._budget > 0 and not self._supply.num_short:
            residence = admission.admit_next(before)
            if residence is None:
                return
            self._chunk(residence)

    def _release_spent(self, residence: Residence) -> None:
        """A row has sampled all it may: its last tokens are in flight, the worker needs the row no more."""
        self._worker.vacate(residence)
        residence.request.move(State.LANDING)

    def _enter_ready(self) -> list[Residence]:
        """Ready rows that may decode now. With more rows than budget those that ran longest sit out for them."""
        decoding, budget = self._worker.decoding, self._budget
        for residence in list(decoding.ready.values()):
            if residence.num_computed == residence.most_computed:
                self._release_spent(residence)
        entering = list(decoding.ready.values())[:budget]
        surplus = len(decoding.lanes) + len(entering) - budget
        if surplus > 0:
            for row in list(decoding.lanes)[:surplus]:
                self._worker.sit_out(self._worker.rows[Row(row)])
        return entering

    def _decode(self, residence: Residence) -> None:
        """One row decodes in this step, if it has or gets the page for it."""
        worker, step_id = self._worker, self.draft.record.step_id
        computed = residence.computed_before(step_id)
        to_page = len(residence.pages) * worker.page_size - computed  # steps it can do before it needs a page
        if to_page == 0:
            if worker.pool.num_available:
                self.draft.append_page(residence, worker.pool.take_one())
            elif not self._supply.obtain(residence):
                if residence.lane is not None:
                    worker.sit_out(residence)
                return
            to_page = worker.page_size
        if residence.lane is None:
            worker.decoding.enter(residence, step_id)
        to_end = residence.most_computed - computed  # steps it can do before it has sampled all it may
        worker.decoding.appoint(residence, step_id + (to_page if to_page < to_end else to_end))

    def _chunk(self, residence: Residence) -> None:
        """One row computes as many of its known tokens as budget and pages allow."""
        worker, request, page_size = self._worker, residence.request, self._worker.page_size
        computed, pages = residence.num_computed, residence.pages
        wanted = min(residence.num_known - computed, self._budget, self._longest_chunk)
        missing = min(worker.num_pages_for(computed + wanted) - len(pages), worker.pool.num_available)
        if missing > 0:
            self.draft.append_pages(residence, worker.pool.take(missing))
        elif computed == len(pages) * page_size and not self._supply.obtain(residence):
            return
        num_tokens = min(wanted, len(pages) * page_size - computed)
        again = min(request.num_seen, computed + num_tokens) - computed
        request.num_recomputed_tokens += max(again, 0)
        self.draft.add_chunk(residence, num_tokens)
        charge_chunk(residence, computed)
        if request.hashes is not None:
            self.draft.add_fills(residence, computed // page_size)
        if not residence.is_prefilling:
            worker.prefilling.remove(residence)
        self._budget -= num_tokens
