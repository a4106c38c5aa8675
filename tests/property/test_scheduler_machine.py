"""The whole core under anything that can happen to it, in any order that Hypothesis thinks of.

After every call all rules of the books are checked; the workers check that every slot read holds what it should; at the
end every request has ended once, with the tokens that it would have got alone.
"""

import contextlib

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from support.core_bench import EOS, CoreBench, card, config

from scheduler_svc.core.errors import RequestRejected
from scheduler_svc.core.types import EndReason, SchedulingPolicy, StepResult, WorkerId

HEADS = ([3] * 40, [index * 7 % 31 for index in range(40)])
LENGTH = 120


class SchedulerMachine(RuleBasedStateMachine):
    """One to three workers with tiny pools; prompts begin alike; results are late, doubled, faulty or missing."""

    @initialize(
        size=st.sampled_from((1, 2, 4)),
        pages=st.integers(3, 12),
        tokens=st.sampled_from((1, 3, 8, 64)),
        rows=st.sampled_from((1, 2, 5)),
        threshold=st.sampled_from((0, 3)),
        depth=st.sampled_from((1, 2, 2, 3)),
        caching=st.sampled_from((True, True, True, False)),
        policy=st.sampled_from(SchedulingPolicy),
    )
    def begin(
        self,
        size: int,
        pages: int,
        tokens: int,
        rows: int,
        threshold: int,
        depth: int,
        caching: bool,
        policy: SchedulingPolicy,
    ) -> None:
        self.size, self.pages = size, pages
        limits = config(
            tokens=tokens,
            rows=rows,
            long_prefill_token_threshold=threshold,
            max_steps_in_flight=depth,
            enable_prefix_caching=caching,
            worker_lost_seconds=3.0,
            scheduling_policy=policy,
            aging_seconds=5.0,
            tenant_weights={"x": 2.0},
            pin_share=1.0,
        )
        self.bench = CoreBench(limits)
        self.num_joined = 0
        self.late: list[StepResult] = []
        self.join()

    @precondition(lambda self: len(self.bench.workers) < 3)
    @rule()
    def join(self) -> None:
        self.num_joined += 1
        self.bench.join(card(f"w{self.num_joined}", pages=self.pages, size=self.size, rows=5, length=LENGTH))

    @precondition(lambda self: self.bench.workers)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        worker_id = data.draw(st.sampled_from(sorted(self.bench.workers)))
        self.late = [result for result in self.late if result.worker_id != worker_id]
        self.bench.lose(worker_id)

    @rule(
        head=st.sampled_from(HEADS),
        shared=st.integers(0, 40),
        own=st.lists(st.integers(0, 5), max_size=3),
        max_tokens=st.integers(1, 20),
        stops=st.sampled_from(((), (EOS,), tuple(range(20)))),
        hold=st.booleans(),
        priority=st.sampled_from((0, 0, 1)),
        cached=st.sampled_from((True, True, False)),
        salt=st.sampled_from((0, 0, 1)),
        tenant=st.sampled_from(("", "x")),
        patience=st.sampled_from((None, None, None, 0, 5)),
    )
    def submit(
        self,
        head: list[int],
        shared: int,
        own: list[int],
        max_tokens: int,
        stops: tuple[int, ...],
        hold: bool,
        priority: int,
        cached: bool,
        salt: int,
        tenant: str,
        patience: int | None,
    ) -> None:
        prompt = (head[:shared] + own)[: min(self.size * self.pages, LENGTH) - 1]
        if prompt:
            self.bench.offer(
                len(self.bench.requests),
                prompt,
                max_tokens,
                stops=stops,
                hold=hold,
                priority=priority,
                cached=cached,
                salt=salt,
                tenant=tenant,
                deadline=None if patience is None else self.bench.now + patience,
            )

    @precondition(lambda self: self.bench.workers)
    @rule(data=st.data(), times=st.integers(1, 2))
    def plan(self, data: st.DataObject, times: int) -> None:
        for _ in range(times):
            self.bench.plan(data.draw(st.sampled_from(sorted(self.bench.workers))))

    @precondition(lambda self: self.busy())
    @rule(data=st.data(), fate=st.sampled_from(("fine",) * 12 + ("eager", "failed", "nan", "short")))
    def answer(self, data: st.DataObject, fate: str) -> None:
        worker_id = data.draw(st.sampled_from(self.busy()))
        nan_rows = [data.draw(st.integers(0, 4))] if fate == "nan" else []
        result = self.bench.execute(worker_id, failed=fate == "failed", nan_rows=nan_rows, eager=fate == "eager")
        if fate == "short" and len(result.rows):
            result = StepResult(
                worker_id=worker_id, step_id=result.step_id, rows=result.rows[1:], token_ids=result.token_ids[1:]
            )
        self.bench.commit(result)
        self.late.append(result)

    @precondition(lambda self: self.bench.workers)
    @rule(times=st.integers(1, 8))
    def go_on(self, times: int) -> None:
        """Some steps without trouble, so that requests get on."""
        for _ in range(times):
            for worker_id, worker in self.bench.workers.items():
                self.bench.plan(worker_id)
                if len(worker.plans) > 1 or self.bench.plan(worker_id) is None:
                    if not worker.plans:
                        continue
                    self.late.append(self.bench.execute(worker_id))
                    self.bench.commit(self.late[-1])

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def answer_again(self, data: st.DataObject) -> None:
        before = self.bench.core.counts()
        self.bench.commit(data.draw(st.sampled_from(self.late)))
        assert self.bench.core.counts() == before

    @precondition(lambda self: self.bench.requests)
    @rule(data=st.data(), how=st.sampled_from(("cancel", "stop", "stop", "scanned")))
    def end(self, data: st.DataObject, how: str) -> None:
        key = data.draw(st.integers(0, len(self.bench.requests) - 1))
        if how == "cancel":
            self.bench.cancel(key, data.draw(st.sampled_from((EndReason.CANCELLED, EndReason.SHUTDOWN))))
        elif how == "stop":
            self.bench.stop(key, data.draw(st.integers(0, len(self.bench.outputs[key]))))
        else:
            self.bench.scanned(key)

    @rule(pin_id=st.sampled_from("ab"), head=st.sampled_from(HEADS), length=st.integers(0, 40))
    def pin(self, pin_id: str, head: list[int], length: int) -> None:
        with contextlib.suppress(RequestRejected):
            self.bench.pin(pin_id, head[:length], 5.0)

    @rule(pin_id=st.sampled_from("ab"))
    def unpin(self, pin_id: str) -> None:
        self.bench.unpin(pin_id)

    @rule(seconds=st.sampled_from((0.1, 1.0, 4.0)))
    def wait(self, seconds: float) -> None:
        self.bench.now += seconds
        self.bench.expire()
        due = self.bench.core.next_expiry()
        assert due is None or due > self.bench.now

    def busy(self) -> list[WorkerId]:
        return sorted(worker_id for worker_id, worker in self.bench.workers.items() if worker.plans)

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            if not self.bench.workers:
                self.join()
            self.bench.finish()


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)


@pytest.mark.soak
class TestSchedulerLong(SchedulerMachine.TestCase):  # type: ignore[misc,name-defined]
    """The same, a hundred times as long."""

    settings = settings(max_examples=30_000, stateful_step_count=50, deadline=None)
