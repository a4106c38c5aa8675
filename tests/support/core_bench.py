"""A scheduler core on a bench: fake workers around it, every rule checked after every call, every output compared.

Speaks in small integers: a request's key is its seed too, so that its tokens tell whose they are.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace

from support.core_worker import SALT_BITS, FakeWorker, TokenFunction, solo, spread

from scheduler_svc.core.errors import RejectCode, RequestRejected
from scheduler_svc.core.page_hash import hash_pages, root_hash
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import (
    BatchPlan,
    Committed,
    CoreConfig,
    Ended,
    EndReason,
    Event,
    Held,
    NewPin,
    NewRequest,
    PageExplanation,
    PrefixQuestion,
    Quote,
    RequestKey,
    SamplingParams,
    StepResult,
    WorkerCard,
    WorkerId,
)

EOS = 7
HASH_KEY = b"a key for tests only"
COMPLETE = (EndReason.LENGTH, EndReason.STOP_TOKEN)


def config(tokens: int = 64, rows: int = 8, **others: object) -> CoreConfig:
    return CoreConfig(max_num_batched_tokens=tokens, max_num_seqs=rows, **others)  # type: ignore[arg-type]


def card(
    name: str = "w",
    pages: int = 16,
    size: int = 4,
    rows: int = 64,
    tokens: int = 4096,
    length: int = 4096,
    first: int = 1,
    target: int = 0,
) -> WorkerCard:
    return WorkerCard(
        worker_id=WorkerId(name),
        num_pages=pages,
        page_size=size,
        max_num_seqs=rows,
        max_num_batched_tokens=tokens,
        max_model_len=length,
        target_step_seconds=target / 1000,
        first_step_id=first,  # type: ignore[arg-type]
    )


def _root(salt: int) -> bytes:
    return root_hash(HASH_KEY, str(salt), "model", "")


class CoreBench:
    """Workers, requests, and what came of them."""

    def __init__(
        self,
        core_config: CoreConfig,
        *cards: WorkerCard,
        function: TokenFunction = spread,
        make: Callable[[CoreConfig], Scheduler] = Scheduler,
    ) -> None:
        self.core = make(core_config)
        self.config = core_config
        self.function = function
        self.now = 0.0
        self.page_size = 4
        self.workers: dict[WorkerId, FakeWorker] = {}
        self.requests: dict[int, NewRequest] = {}
        self.outputs: dict[int, list[int]] = {}
        self.ended: dict[int, Ended] = {}
        self.held: set[int] = set()
        self.events: list[Event] = []
        """Of the last call."""
        self.plans: list[BatchPlan] = []
        for one in cards:
            self.join(one)

    def join(self, one: WorkerCard, warm: FakeWorker | None = None) -> None:
        """A worker comes; ``warm``: it still has the pages of this one, which is gone."""
        self.page_size = one.page_size
        worker = self.workers[one.worker_id] = FakeWorker(one, self.function)
        if warm is not None and self.config.enable_prefix_caching:
            one = replace(one, inventory=tuple(warm.names.values()))
            worker.keep_pages_of(warm)
        self._take(self.core.add_worker(one, self.now))

    def lose(self, name: str = "w") -> None:
        self.workers.pop(WorkerId(name), None)
        self._take(self.core.remove_worker(WorkerId(name), self.now))
        for key in self.requests.keys() - self.ended.keys() - self.held:
            num_tokens = self.core.num_output_tokens(RequestKey(key))
            assert num_tokens == len(self.outputs[key]), f"the core forgot tokens of request {key} that it had told"

    def submit(
        self,
        key: int,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        stops: Sequence[int] = (EOS,),
        salt: int = 0,
        tenant: str = "",
        output_index: int = 0,
        cached: bool = True,
        hold: bool = False,
        priority: int = 0,
        deadline: float | None = None,
        time_limit: float | None = None,
        fork_of: int | None = None,
    ) -> None:
        token_ids, root = array("i", prompt), _root(salt)
        request = NewRequest(
            key=RequestKey(key),
            tenant=tenant,
            prompt=token_ids,
            page_hashes=hash_pages(root, token_ids, self.page_size) if cached else (),
            root_hash=root if cached else b"",
            max_tokens=max_tokens,
            stop_token_ids=frozenset(stops),
            hold_endings=hold,
            priority=priority,
            deadline=deadline,
            time_limit=time_limit,
            sampling=SamplingParams(seed=key + (salt << SALT_BITS), output_index=output_index),
            fork_of=None if fork_of is None else RequestKey(fork_of),
        )
        events = self.core.submit(request, self.now)
        self.requests[key] = request
        self.outputs[key] = []
        self._take(events)

    def explain_prefix(self, prompt: Sequence[int], *, salt: int = 0, tenant: str = "") -> list[PageExplanation]:
        token_ids, root = array("i", prompt), _root(salt)
        question = PrefixQuestion(
            tenant=tenant,
            prompt=token_ids,
            page_hashes=hash_pages(root, token_ids, self.page_size),
            root_hash=root,
            unsalted_root=_root(0),
        )
        return self.core.explain_prefix(question)

    def pin(self, pin_id: str, prompt: Sequence[int], seconds: float, *, salt: int = 0, tenant: str = "") -> None:
        names = hash_pages(_root(salt), array("i", prompt), self.page_size)
        pin = NewPin(tenant=tenant, pin_id=pin_id, page_hashes=names, until=self.now + seconds)
        try:
            self.core.pin(pin, self.now)
        finally:
            self.core.check_invariants()

    def unpin(self, pin_id: str, tenant: str = "") -> bool:
        known = self.core.unpin((tenant, pin_id), self.now)
        self.core.check_invariants()
        return known

    def quote(self, prompt: Sequence[int], max_tokens: int = 1) -> Quote:
        """What a request would meet; asking changes nothing."""
        token_ids, before = array("i", prompt), self.core.counts()
        names = hash_pages(_root(0), token_ids, self.page_size)
        asked = NewRequest(
            key=RequestKey(0), prompt=token_ids, page_hashes=names, root_hash=_root(0), max_tokens=max_tokens
        )
        quote = self.core.quote(asked, self.now)
        assert self.core.counts() == before
        return quote

    def offer(self, key: int, prompt: Sequence[int], max_tokens: int, **others: object) -> bool:
        """``submit``, where the queue may be full or the deadline too near; whether the request was taken."""
        before = self.core.counts()
        try:
            self.submit(key, prompt, max_tokens, **others)  # type: ignore[arg-type]
        except RequestRejected as refusal:
            if refusal.code not in (RejectCode.QUEUE_FULL, RejectCode.DEADLINE):
                raise
            assert self.core.counts() == before
            self.core.check_invariants()
            return False
        return True

    def plan(self, name: str = "w") -> BatchPlan | None:
        plan, events = self.core.plan(WorkerId(name), self.now)
        if plan is not None:
            assert plan.num_scheduled_tokens <= self.config.max_num_batched_tokens
            self.workers[WorkerId(name)].receive(plan)
            self.plans.append(plan)
        self._take(events)
        return plan

    def execute(
        self, name: str = "w", *, failed: bool = False, nan_rows: Sequence[int] = (), eager: bool = False
    ) -> StepResult:
        """The worker runs its oldest plan; ``commit`` brings the result."""
        return self.workers[WorkerId(name)].execute(failed=failed, nan_rows=nan_rows, eager=eager)

    def commit(self, result: StepResult) -> Committed:
        committed = self.core.commit(result, self.now)
        assert len(committed.keys) == len(committed.token_ids) == len(set(committed.keys))
        for key, token_id in zip(committed.keys, committed.token_ids, strict=True):
            assert key not in self.ended, f"request {key} got a token after its end"
            assert key not in self.held, f"request {key} got a token after its held end"
            self.outputs[key].append(token_id)
        self._take(committed.events)
        return committed

    def result(self, name: str = "w", **how: object) -> Committed:
        return self.commit(self.execute(name, **how))  # type: ignore[arg-type]

    def cancel(self, key: int, reason: EndReason = EndReason.CANCELLED) -> None:
        self._take(self.core.cancel(RequestKey(key), reason, self.now))

    def stop(self, key: int, num_output_tokens: int) -> None:
        self._take(self.core.stop(RequestKey(key), num_output_tokens, self.now))

    def scanned(self, key: int) -> None:
        self._take(self.core.scanned(RequestKey(key), self.now))

    def expire(self) -> None:
        self._take(self.core.expire(self.now))

    def step(self, name: str = "w") -> bool:
        """One step with nothing else in flight; False if there is nothing to do."""
        if self.plan(name) is None:
            return False
        self.result(name)
        return True

    def run(self, name: str = "w", depth: int = 2, limit: int = 2000) -> int:
        """Steps until nothing is left to do, ``depth`` in flight; the number of steps."""
        worker, num_steps = self.workers[WorkerId(name)], 0
        while True:
            while len(worker.plans) < depth and self.plan(name) is not None:
                num_steps += 1
            if not worker.plans:
                return num_steps
            assert num_steps < limit, "no end in sight"
            self.result(name)

    def finish(self) -> None:
        """Plans, answers and scans until nothing lives any more; then outputs and ledger must be right."""
        for _ in range(20_000):
            busy = False
            for worker_id, worker in self.workers.items():
                self.plan(worker_id)
                if worker.plans:
                    self.result(worker_id)
                    busy = True
            for key in sorted(self.held):
                self.scanned(key)
            if not busy:
                break
        assert self.ended.keys() == self.requests.keys(), "requests are live and nothing can be done"
        self.check_outputs()
        self.check_ledger()

    def limit_of(self, key: int) -> int:
        """Most output tokens of a request on the largest worker."""
        cards = [worker.card for worker in self.workers.values()]
        capacity = max(min(one.max_model_len, one.num_pages * one.page_size) for one in cards)
        request = self.requests[key]
        return min(request.max_tokens, capacity - len(request.prompt))

    def expected(self, key: int) -> list[int]:
        """What the request generates alone."""
        request = self.requests[key]
        return solo(request.prompt, request.sampling.seed, self.limit_of(key), request.stop_token_ids, self.function)

    def check_outputs(self) -> None:
        """Every token reported is the one that the request alone would have got; complete ones got all."""
        for key, output in self.outputs.items():
            expected, ended = self.expected(key), self.ended.get(key)
            assert output == expected[: len(output)], f"request {key} got other tokens than alone"
            if ended is not None:
                assert ended.num_output_tokens <= len(output)
                assert ended.reason not in COMPLETE or output == expected, f"request {key} was cut"

    def check_ledger(self) -> None:
        """Nothing is live, and every page is free or cached."""
        counts = self.core.counts()
        assert (counts.num_running, counts.num_waiting) == (0, 0)
        assert self.ended.keys() == self.requests.keys()
        for worker_id, pages in counts.pages.items():
            assert pages.num_held == pages.num_pinned, f"{worker_id} still holds pages"
            assert pages.num_free + pages.num_held + pages.num_cached == pages.num_pages
            assert self.core.is_idle(worker_id)
        if self.config.tenant_fairness:
            self.check_charges()

    def check_charges(self) -> None:
        """Each tenant was charged what its requests' usage says: cached prompt tokens count a tenth or nothing."""
        bounds: dict[str, tuple[float, float]] = {}
        for key, ended in self.ended.items():
            request = self.requests[key]
            least, most = bounds.get(request.tenant, (0.0, 0.0))
            is_fork = request.sampling.output_index > 0
            prompt = 0 if is_fork else len(request.prompt)
            sure = 0.0 if is_fork or not self.outputs[key] else prompt * 0.1
            if not self.config.enable_prefix_caching and self.outputs[key]:
                sure = prompt
            output = 2 * ended.num_output_tokens
            bounds[request.tenant] = (least + sure + output, most + prompt + output)
        for tenant, charged in self.core.charges().items():
            least, most = bounds.get(tenant, (0.0, 0.0))
            assert least - 1e-6 <= charged <= most + 1e-6, f"{tenant} was charged {charged}, not {least}..{most}"

    def _take(self, events: Sequence[Event]) -> None:
        self.events = list(events)
        for event in events:
            assert event.key not in self.ended, f"request {event.key} had ended before {event}"
            if isinstance(event, Ended):
                self.ended[event.key] = event
                self.held.discard(event.key)
            elif isinstance(event, Held):
                assert event.key not in self.held
                self.held.add(event.key)
        self.core.check_invariants()
