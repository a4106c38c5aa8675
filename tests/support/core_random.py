"""Random lives of a scheduler core: everything that can happen to it, in an order that a seed decides."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from support.core_bench import EOS, CoreBench, card, config
from support.core_worker import FakeWorker

from scheduler_svc.core.errors import RequestRejected
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import CoreConfig, EndReason, SchedulingPolicy, StepResult, WorkerId

HARD_ENDS = (EndReason.CANCELLED, EndReason.DEADLINE, EndReason.TIME_LIMIT, EndReason.SHUTDOWN)


def random_step_seconds(random: Random) -> float:
    return random.choice((0.0, 0.01, 0.02, 0.1))


class RandomLife:
    """One core with one to three workers; ``act`` does one thing to it, ``finish`` lets everything end."""

    def __init__(self, seed: int, make: Callable[[CoreConfig], Scheduler] = Scheduler) -> None:
        self.random = random = Random(seed)
        self.size = random.choice((1, 2, 3, 4, 8))
        self.pages = random.randint(3, 24)
        limits = config(
            tokens=random.choice((1, 3, 7, 16, 64)),
            rows=random.choice((1, 2, 4, 8)),
            long_prefill_token_threshold=random.choice((0, 0, 5)),
            target_step_seconds=random.choice((0.0, 0.0, 0.03)),
            max_steps_in_flight=random.choice((1, 2, 2, 2, 3)),
            enable_prefix_caching=random.random() < 0.85,
            worker_lost_seconds=random.choice((5.0, 40.0)),
            max_queued_requests=random.choice((0, 0, 5)),
            max_queued_tokens=random.choice((0, 0, 100)),
            page_watermark=random.choice((0.0, 0.01, 0.3)),
            scheduling_policy=random.choice(tuple(SchedulingPolicy)),
            aging_seconds=random.choice((0.0, 2.0, 300.0)),
            tenant_fairness=random.random() < 0.8,
            tenant_weights=random.choice(({}, {"x": 3.0, "y": 0.5})),
            pin_share=random.choice((0.25, 0.5, 1.0)),
        )
        self.bench = CoreBench(limits, make=make)
        self.num_joined = 0
        self.heads = [[random.randrange(97) for _ in range(40)] for _ in range(2)]
        self.late: list[StepResult] = []
        self.lost: list[FakeWorker] = []
        self.join()

    @property
    def capacity(self) -> int:
        return self.size * self.pages

    def join(self) -> None:
        self.num_joined += 1
        first = self.random.choice((1, 1000))
        name = f"w{self.num_joined}"
        new = card(name, pages=self.pages, size=self.size, rows=8, length=160, first=first)
        self.bench.join(new, self.lost.pop() if self.lost and self.random.random() < 0.5 else None)

    def act(self) -> None:
        """One random thing; plans and results are the most frequent."""
        actions = (self.submit, self.plan, self.answer, self.end_one, self.disturb, self.pin_or_unpin)
        self.random.choices(actions, (3, 8, 7, 1, 0.5, 0.5))[0]()
        self.bench.now += self.random.choice((0.0, 0.1, 1.0))

    def submit(self) -> None:
        random, bench = self.random, self.bench
        prompt = random.choice(self.heads)[: random.randint(0, 40)] + [random.randrange(97) for _ in range(3)]
        prompt = prompt[: random.randint(1, len(prompt))]
        if len(prompt) >= min(self.capacity, 160):
            return
        options = {
            "stops": random.choice(((), (EOS,), (EOS, 8, 9, 10, 11, 12))),
            "salt": random.choice((0, 0, 0, 1)),
            "tenant": random.choice(("", "x", "y")),
            "cached": random.random() < 0.9,
            "hold": random.random() < 0.3,
            "priority": random.choice((0, 0, 0, 1, 2)),
            "deadline": bench.now + random.randint(0, 60) if random.random() < 0.1 else None,
            "time_limit": bench.now + random.randint(0, 60) if random.random() < 0.1 else None,
        }
        first, limit = len(bench.requests), random.randint(1, 40)
        for index in range(random.choice((1, 1, 1, 1, 1, 1, 2, 5))):
            fork_of = first if index else None
            if not bench.offer(first + index, prompt, limit, output_index=index, fork_of=fork_of, **options):
                return

    def plan(self) -> None:
        for worker_id in list(self.bench.workers):
            self.bench.plan(worker_id)

    def answer(self) -> None:
        """A worker answers its oldest step, seldom with a fault; an old answer may come once more."""
        worker = self._busy_worker()
        if worker is None:
            return
        fate = self.random.random()
        nan_rows: Sequence[int] = ()
        if fate < 0.03:
            nan_rows = [self.random.randrange(8)]
        result = self.bench.execute(worker, failed=0.03 <= fate < 0.05, nan_rows=nan_rows, eager=fate > 0.7)
        result = replace(result, seconds=random_step_seconds(self.random))
        if 0.05 <= fate < 0.06 and len(result.rows):  # a row goes missing on the way
            result = StepResult(
                worker_id=result.worker_id, step_id=result.step_id, rows=result.rows[1:], token_ids=result.token_ids[1:]
            )
        self.bench.commit(result)
        self.late.append(result)
        if fate < 0.2:
            before = self.bench.core.counts()
            self.bench.commit(self.random.choice(self.late))
            assert self.bench.core.counts() == before, "a late result changed something"

    def end_one(self) -> None:
        """The front ends a request, live or not: cancel, stop string, or a scan."""
        bench, random = self.bench, self.random
        if not bench.requests:
            return
        key = random.randrange(len(bench.requests) + 1)
        kind = random.randrange(3)
        if kind == 0:
            bench.cancel(key, random.choice(HARD_ENDS))
        elif kind == 1:
            bench.stop(key, random.randint(0, len(bench.outputs.get(key, ())) + 1))
        else:
            bench.scanned(key)

    def pin_or_unpin(self) -> None:
        pin_id, tenant = str(self.random.randrange(3)), self.random.choice(("", "x"))
        if self.random.random() < 0.3:
            self.bench.unpin(pin_id, tenant)
            return
        prompt = self.random.choice(self.heads)[: self.random.randint(1, 40)]
        with contextlib.suppress(RequestRejected):
            self.bench.pin(pin_id, prompt, self.random.randint(1, 60), tenant=tenant)

    def disturb(self) -> None:
        """A worker goes or comes, or time runs."""
        kind = self.random.randrange(3)
        if kind == 0 and len(self.bench.workers) < 3:
            self.join()
        elif kind == 1 and self.bench.workers:
            self.late = []  # the link never lets results of a lost epoch through
            name = self.random.choice(list(self.bench.workers))
            self.lost.append(self.bench.workers[name])
            self.bench.lose(name)
        else:
            self.bench.expire()
            due = self.bench.core.next_expiry()
            assert due is None or due > self.bench.now

    def finish(self) -> None:
        """Everything that lives comes to its end; outputs and ledger are checked."""
        if not self.bench.workers:
            self.join()
        self.bench.finish()

    def _busy_worker(self) -> WorkerId | None:
        busy = [worker_id for worker_id, worker in self.bench.workers.items() if worker.plans]
        return self.random.choice(busy) if busy else None
