"""What a step costs the scheduler: ``python -m benchmarks.scheduler`` prints one JSON object a line.

A step is plan + commit + codec both ways. Charged to it is all that the scheduler process does because of it, except
the sockets: the worker's result is parsed from its bytes, checked and committed, its tokens and endings become frames
for the front; what the fronts say is parsed from its bytes, cancels are obeyed; the next step is planned (what was
submitted begins in it) and becomes bytes. The worker and the front are imitated outside the measured time. Two steps
are in flight, as in the engine. Taking what the front submitted, once it is parsed (checks, the desk's books, placement
and queue), is not a step's work and is measured beside it.

Honest work: requests end at ``max_tokens`` with their ends spread evenly, so that 1 % of the rows finish in a step and
are replaced at once (their prompts are computed, in the same steps); one request in ten steps is cancelled and
replaced; one row in ``page_size`` crosses into a new page; every tenth request has a stop token of its own.

Rows: {scenario, running, p50_us, p99_us, plan_bytes, cpu_us, submit_us}. ``cpu_us`` is the mean processor time of a
step, ``plan_bytes`` the median size of a plan, ``submit_us`` the median time in which the submissions of a step are
taken; in ``steady`` steps nobody comes or goes. Runs of one scenario do the same work step by step:
with ``--runs`` above 1 each step counts with the least of its costs, so that what the machine's other users take away
is not counted.
"""

import argparse
import gc
import json
import random
import statistics
import time
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from pagewire.internal.v1 import front_pb2, worker_pb2

from benchmarks.measure import percentile
from scheduler_svc import columns, front_codec, worker_codec
from scheduler_svc.core.page_hash import hash_pages, root_hash
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import CoreConfig, StepId, StepResult, WorkerCard, WorkerId
from scheduler_svc.expected_rows import ExpectedRows
from scheduler_svc.front_desk import FrontDesk
from scheduler_svc.joined_worker import ids_exist
from scheduler_svc.messages import FrontMessage, WorkerResult
from scheduler_svc.outbox import Outbox

WORKER = WorkerId("worker-1")
VOCABULARY = 49_152
PAGE_SIZE = 32
FRONT = 1
EOS = 2
ROOT = root_hash(b"a key for benchmarks", "", "model", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """``output`` None: nobody finishes within the run."""

    name: str
    running: int
    prompt: int = 96
    output: int | None = 100
    waiting: int = 0
    cached_pages: int = 0
    steps: int = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one step."""

    wall_us: float
    cpu_us: float
    submit_us: float
    plan_bytes: int


class Clocks(NamedTuple):
    """Nanoseconds of wall and processor time."""

    wall: int
    cpu: int

    @classmethod
    def now(cls) -> "Clocks":
        return cls(time.perf_counter_ns(), time.process_time_ns())


class Link:
    """What the desk needs of a FrontLink: one front's outbox."""

    def __init__(self) -> None:
        self.box = Outbox()

    def outbox(self, front_id: int) -> Outbox:
        return self.box

    def outbox_of(self, number: int) -> Outbox:
        return self.box

    def number_of(self, front_id: int) -> int:
        return 0


class Bench:
    """A scheduler with one imitated worker and one imitated front."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.random = random.Random(0)
        tokens = 8192
        pages = scenario.running * (-(-(scenario.prompt + 4096) // PAGE_SIZE)) + scenario.cached_pages
        self.core = Scheduler(CoreConfig(max_num_batched_tokens=tokens, max_num_seqs=scenario.running))
        self.link = Link()
        self.desk = FrontDesk(self.core, self.link, unavailable_retry_ms=1000)  # type: ignore[arg-type]
        self.desk.vocab_size = VOCABULARY
        card = WorkerCard(
            worker_id=WORKER, num_pages=pages, page_size=PAGE_SIZE, max_num_seqs=scenario.running,
            max_num_batched_tokens=tokens, max_model_len=1 << 20,
        )  # fmt: skip
        self.core.add_worker(card, 0.0)
        self.expected = ExpectedRows()
        self.flying: deque[tuple[StepId, array[int]]] = deque()
        self.pool = array("i", [self.random.randrange(10, VOCABULARY) for _ in range(1 << 16)])
        self.num_submitted = 0
        self.now = 0.0

    # The imitated front and worker: bytes for the scheduler.

    def submission(self, max_tokens: int, num_more: int = 0) -> front_pb2.Submit:
        """``num_more``: prompt tokens beside the usual ones."""
        self.num_submitted += 1
        num_prompt = self.scenario.prompt + num_more
        start = self.random.randrange(len(self.pool) - num_prompt)
        prompt = self.pool[start : start + num_prompt]
        prompt[0] = self.num_submitted % VOCABULARY
        stops = [EOS] if self.num_submitted % 10 else [EOS, 3]
        return front_pb2.Submit(
            key=self.num_submitted, request_id=f"request-{self.num_submitted}", n=1, max_tokens=max_tokens,
            prompt_token_ids=columns.ints(prompt), root_hash=ROOT, stop_token_ids=columns.ints(stops),
            page_hashes=b"".join(hash_pages(ROOT, prompt, PAGE_SIZE)), temperature=1.0, top_p=1.0,
            seed=self.num_submitted,
        )  # fmt: skip

    def front_bytes(self, submits: list[front_pb2.Submit], cancelled: list[int] | None = None) -> bytes:
        cancels = [front_pb2.Cancel(key=key) for key in cancelled or ()]
        return front_pb2.FrontFrame(front_id=FRONT, submits=submits, cancels=cancels).SerializeToString()

    def result_bytes(self) -> bytes:
        step_id, rows = self.flying[0]
        start = self.random.randrange(len(self.pool) - len(rows))
        result = worker_pb2.StepResult(
            rows=columns.ints(rows), token_ids=columns.ints(self.pool[start : start + len(rows)]), step_us=5000
        )
        return worker_pb2.WorkerFrame(session=1, epoch=1, step_id=step_id, result=result).SerializeToString()

    # What is measured.

    def read_front(self, content: bytes) -> FrontMessage:
        return front_codec.read_front_frame(content)

    def apply(self, message: FrontMessage) -> None:
        self.desk.apply(message, self.now)

    def take_result(self, content: bytes) -> None:
        message = worker_codec.read_worker_frame(content)
        body, (step_id, rows) = message.body, self.flying.popleft()
        if not isinstance(body, WorkerResult) or body.rows != rows or not ids_exist(body, VOCABULARY):
            raise RuntimeError("the imitated worker is wrong")
        result = StepResult(worker_id=WORKER, step_id=step_id, rows=body.rows, token_ids=body.token_ids)
        committed = self.core.commit(result, self.now)
        self.desk.deliver_tokens(committed)
        self.desk.deliver(committed.events, self.now)

    def plan(self) -> bytes:
        plan, events = self.core.plan(WORKER, self.now)
        if plan is None:
            return b""
        self.flying.append((plan.step_id, self.expected.apply(plan)))
        self.desk.deliver(events, self.now)
        return worker_codec.plan(1, 1, plan)

    def flush(self) -> bytes:
        return self.link.box.take(1) if self.link.box else b""

    # The run.

    def run(self) -> Iterator[Cost]:
        scenario = self.scenario
        self._fill()
        submits: list[front_pb2.Submit] = []
        cancelled: list[int] = []
        for number in range(scenario.steps):
            said = self.front_bytes(submits) if submits else b""
            cancels = self.front_bytes([], cancelled) if cancelled else b""
            result = self.result_bytes()
            self.now += 0.01
            begun, submitting = Clocks.now(), Clocks.now()
            if said:
                submissions = self.read_front(said)
                submitting = Clocks.now()
                self.apply(submissions)
            submitted = Clocks.now()
            if cancels:
                self.apply(self.read_front(cancels))
            self.take_result(result)
            plan = self.plan()
            self.flush()
            done = Clocks.now()
            yield Cost(
                wall_us=(done.wall - submitted.wall + submitting.wall - begun.wall) / 1000,
                cpu_us=(done.cpu - submitted.cpu + submitting.cpu - begun.cpu) / 1000,
                submit_us=(submitted.wall - submitting.wall) / 1000,
                plan_bytes=len(plan),
            )
            if scenario.output is not None:
                submits = self._replacements(scenario.output)
                cancelled = [] if number % 10 else [self.num_submitted - scenario.running // 2]

    def _replacements(self, output: int) -> list[front_pb2.Submit]:
        missing = self.scenario.running + self.scenario.waiting - len(self.desk.requests)
        return [self.submission(output) for _ in range(missing)]

    def _fill(self) -> None:
        """Brings the batch to its steady state: as many running as shall be, their ends spread evenly."""
        scenario = self.scenario
        submits = []
        for index in range(scenario.running):
            if scenario.output is None:  # prompts differ, so that each step some rows cross into a new page
                submits.append(self.submission(4096, index % PAGE_SIZE))
            else:
                submits.append(self.submission(8 + scenario.output * (index + 1) // scenario.running))
        self.apply(self.read_front(self.front_bytes(submits)))
        for step in range(PAGE_SIZE):
            if step >= 2:
                self.take_result(self.result_bytes())
            self.plan()
            self.flush()
        for _ in range(scenario.waiting):
            self.apply(self.read_front(self.front_bytes([self.submission(100)])))
        self._cache(scenario.cached_pages)
        self.flush()

    def _cache(self, num_pages: int) -> None:
        """So many named pages that nobody reads, put into the worker's pool directly."""
        pool = self.core._placement.workers[WORKER].pool
        for start in range(0, num_pages, 1000):
            names = hash_pages(ROOT, array("i", range(start, start + 1000)), 1)
            pages = pool.take(len(names))
            for page, name, parent in zip(pages, names, [bytes(16), *names[:-1]], strict=True):
                pool.publish(page, name, parent)  # type: ignore[arg-type]
            pool.release(pages, names)
        pool.take_changes()


def costs_of(scenario: Scenario) -> list[Cost]:
    """One run from its hundredth step on."""
    steps = Bench(scenario).run()
    for _ in range(100):
        next(steps)
    gc.collect()
    gc.freeze()
    costs = list(steps)
    gc.unfreeze()
    return costs


def measure(scenario: Scenario, num_runs: int) -> dict[str, object]:
    runs = [costs_of(scenario) for _ in range(num_runs)]
    wall, cpu, submit, size = (
        [min(getattr(cost, name) for cost in same_step) for same_step in zip(*runs, strict=True)]
        for name in ("wall_us", "cpu_us", "submit_us", "plan_bytes")
    )
    return {
        "scenario": scenario.name,
        "running": scenario.running,
        "p50_us": round(percentile(wall, 50), 1),
        "p99_us": round(percentile(wall, 99), 1),
        "plan_bytes": int(statistics.median(size)),
        "cpu_us": round(statistics.fmean(cpu), 1),
        "submit_us": round(statistics.median(submit), 1),
    }


def measure_hashing(num_tokens: int = 50_000) -> dict[str, object]:
    prompt = array("i", [index % VOCABULARY for index in range(num_tokens)])
    wall = []
    for _ in range(50):
        start = time.perf_counter_ns()
        hash_pages(ROOT, prompt, PAGE_SIZE)
        wall.append((time.perf_counter_ns() - start) / 1000)
    return {
        "scenario": f"hash {num_tokens} tokens", "running": 0, "p50_us": round(percentile(wall, 50), 1),
        "p99_us": round(percentile(wall, 99), 1), "plan_bytes": 0, "cpu_us": round(statistics.fmean(wall), 1),
        "submit_us": 0,
    }  # fmt: skip


def scenarios() -> list[Scenario]:
    return [
        *(Scenario(name="steady", running=running, output=None) for running in (64, 256, 1024)),
        *(Scenario(name="decode", running=running) for running in (64, 256, 1024)),
        # A quarter of a step's tokens are prompts: 1 % of the rows begin with a prompt of 33 times their share.
        *(Scenario(name="prefill mix 25 %", running=running, prompt=33) for running in (64, 256, 1024)),
        Scenario(name="10,000 waiting", running=256, waiting=10_000),
        Scenario(name="1,000,000 cached pages", running=256, cached_pages=1_000_000),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="scenarios whose name begins so")
    parser.add_argument("--runs", type=int, default=1, help="of the same work; each step counts with its least cost")
    arguments = parser.parse_args()
    gc.set_threshold(50_000, 50, 50)
    for scenario in scenarios():
        if scenario.name.startswith(arguments.only):
            print(json.dumps(measure(scenario, arguments.runs)), flush=True)
    if "hash".startswith(arguments.only):
        print(json.dumps(measure_hashing()), flush=True)


if __name__ == "__main__":
    main()
