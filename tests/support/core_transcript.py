"""Runs transcripts: blocks of commands, a line ``----``, and what they must print.

core tokens=16 rows=4 steps=2         a new core; also threshold, cache=off, queue, queued_tokens, policy=sjf,
                                      watermark, pin_share, target (ms, or worker), lost and aging (seconds), fair=off,
                                      weights=x:2,y:1
worker w pages=8 size=4               a worker joins; also rows, tokens, len, target (ms)
submit a 1..6,9 max=3                 tokens 1 to 6 and 9; also eos=2 (output position 2 is EOS), hold, uncached,
                                      priority, deadline, limit, salt, tenant, index, fork=a (another of n)
plan [w]                              one step: what the plan says
result [w] [failed] [nan=a] [eager]   the worker runs its oldest step, in ms=40; tokens a0, a1 are a's first and second
again [w]                             the worker's last result comes once more
steps N [w]                           N times plan and result
run [w]                               plan and result until nothing is left
cancel a   stop a 2   scanned a   lose w   time 5   expire   next
pages [w]                             the worker's pages
counts                                what the core counts
explain a                             what was decided about a
accounts                              what tenants were charged, in tokens
prefix 1..20 [salt=1] [tenant=x]      the pages of a prompt explained to a tenant
limits rows=2                         other limits from now on; also tokens, queue, queued_tokens
pin p 1..8 for=60 [salt=1] [tenant=x] the pages of a prompt are kept so many seconds
unpin p [tenant=x]   pins [tenant=x]
quote 1..9                            what a request would meet
reset                                 every cached page is freed
hits                                  how prompt pages were found in the prefix cache, and why not
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from support.core_bench import EOS, CoreBench, card, config

from scheduler_svc.core.errors import CoreError
from scheduler_svc.core.explain import sentence
from scheduler_svc.core.flight_recorder import Decision
from scheduler_svc.core.types import (
    Admitted,
    BatchPlan,
    Committed,
    CoreConfig,
    Ended,
    EndReason,
    Event,
    Held,
    Preempted,
    PrefillProgress,
    RequestKey,
    SchedulingPolicy,
    StepResult,
    WorkerId,
)

_CONFIG_WORDS = {
    "tokens": "max_num_batched_tokens",
    "rows": "max_num_seqs",
    "steps": "max_steps_in_flight",
    "threshold": "long_prefill_token_threshold",
    "queue": "max_queued_requests",
    "queued_tokens": "max_queued_tokens",
    "lost": "worker_lost_seconds",
    "aging": "aging_seconds",
}


def check_transcript(text: str) -> None:
    """Runs all blocks of a transcript; the whole text must come out again."""
    stage, wanted = _Stage(), "\n".join(line.strip() for line in text.strip().splitlines())
    actual = []
    for block in wanted.split("\n\n"):
        commands, _, _ = block.partition("\n----")
        printed = [line for command in commands.splitlines() for line in stage.run(command)]
        actual.append("\n".join([commands, "----", *printed]))
    assert "\n\n".join(actual) == wanted


class _Stage:
    """One core, spoken to by commands."""

    def __init__(self) -> None:
        self._config: CoreConfig = config()
        self._made: CoreBench | None = None
        self._eos: dict[int, int] = {}
        self._rows: dict[str, dict[int, list[int]]] = {}
        self._last: StepResult | None = None

    @property
    def _bench(self) -> CoreBench:
        if self._made is None:
            self._made = CoreBench(self._config, function=self._token)
        return self._made

    def run(self, line: str) -> list[str]:
        """Runs one command; the lines it prints."""
        command, *words = line.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        flags = [word for word in words if "=" not in word]
        action: Callable[[list[str], dict[str, str]], list[str]] = getattr(self, f"_do_{command}")
        try:
            return action(flags, options)
        except CoreError as error:
            return [f"{type(error).__name__}: {error}"]

    def _token(self, seed: int, position: int, digest: int) -> int:
        key = seed & 0xFFFF
        return EOS if self._eos.get(key) == position else 1000 * (key + 1) + position

    def _do_core(self, flags: list[str], options: dict[str, str]) -> list[str]:
        self._made = None
        cache = options.pop("cache", "on") == "on"
        policy = SchedulingPolicy(options.pop("policy", "priority"))
        fair = options.pop("fair", "on") == "on"
        weights = dict(pair.split(":") for pair in options.pop("weights", "").split(",") if pair)
        pin_share = float(options.pop("pin_share", 0.25))
        watermark = float(options.pop("watermark", 0.01))
        target = options.pop("target", "0")
        numbers = {_CONFIG_WORDS[word]: int(value) for word, value in options.items()}
        defaults = {"max_num_batched_tokens": 64, "max_num_seqs": 8}
        self._config = CoreConfig(
            **(defaults | numbers),  # type: ignore[arg-type]
            enable_prefix_caching=cache,
            page_watermark=watermark,
            pin_share=pin_share,
            target_step_seconds=None if target == "worker" else int(target) / 1000,
            scheduling_policy=policy,
            tenant_fairness=fair,
            tenant_weights={tenant: float(weight) for tenant, weight in weights.items()},
        )
        return []

    def _do_worker(self, flags: list[str], options: dict[str, str]) -> list[str]:
        numbers = {("length" if word == "len" else word): int(value) for word, value in options.items()}
        name = flags[0]
        self._rows[name] = {}
        self._bench.join(card(name, **numbers))
        return self._events(self._bench.events)

    def _do_lose(self, flags: list[str], options: dict[str, str]) -> list[str]:
        self._bench.lose(flags[0])
        return self._events(self._bench.events)

    def _do_submit(self, flags: list[str], options: dict[str, str]) -> list[str]:
        key = _key(flags[0])
        if "eos" in options:
            self._eos[key] = int(options["eos"])
        self._bench.submit(
            key,
            _tokens(flags[1]),
            int(options["max"]),
            hold="hold" in flags,
            cached="uncached" not in flags,
            salt=int(options.get("salt", 0)),
            tenant=options.get("tenant", ""),
            output_index=int(options.get("index", "fork" in options)),
            priority=int(options.get("priority", 0)),
            deadline=float(options["deadline"]) if "deadline" in options else None,
            time_limit=float(options["limit"]) if "limit" in options else None,
            fork_of=_key(options["fork"]) if "fork" in options else None,
        )
        return []

    def _do_plan(self, flags: list[str], options: dict[str, str]) -> list[str]:
        name = _first(flags)
        plan = self._bench.plan(name)
        events = self._events(self._bench.events)
        return [*events, "nothing to do" if plan is None else self._plan_line(name, plan)]

    def _do_result(self, flags: list[str], options: dict[str, str]) -> list[str]:
        name = _first([flag for flag in flags if flag not in ("failed", "eager")])
        plan = self._bench.workers[WorkerId(name)].plans[0]
        milliseconds = int(options.get("ms", 0))
        poisoned = [row for row, (key, _) in self._rows[name].items() if options.get("nan") == _name(key)]
        self._last = self._bench.execute(name, failed="failed" in flags, nan_rows=poisoned, eager="eager" in flags)
        self._last = replace(self._last, seconds=milliseconds / 1000)
        return [
            f"step {plan.step_id}: {self._committed(self._bench.commit(self._last))}",
            *self._events(self._bench.events),
        ]

    def _do_again(self, flags: list[str], options: dict[str, str]) -> list[str]:
        assert self._last is not None
        return [self._committed(self._bench.commit(self._last)), *self._events(self._bench.events)]

    def _do_steps(self, flags: list[str], options: dict[str, str]) -> list[str]:
        printed = []
        for _ in range(int(flags[0])):
            printed += self._do_plan(flags[1:], {}) + self._do_result(flags[1:], {})
        return printed

    def _do_run(self, flags: list[str], options: dict[str, str]) -> list[str]:
        before = {key: len(output) for key, output in self._bench.outputs.items()}
        ended = set(self._bench.ended)
        self._bench.plans.clear()
        num_steps = self._bench.run(_first(flags))
        for plan in self._bench.plans:
            self._plan_line(plan.worker_id, plan)
        grown = {key: len(output) - before.get(key, 0) for key, output in self._bench.outputs.items()}
        tokens = ", ".join(f"{_name(key)} +{count}" for key, count in grown.items() if count)
        ends = [event for key, event in self._bench.ended.items() if key not in ended]
        return [f"{num_steps} steps: {tokens or 'no tokens'}", *self._events(ends)]

    def _do_cancel(self, flags: list[str], options: dict[str, str]) -> list[str]:
        self._bench.cancel(_key(flags[0]), EndReason(options.get("reason", "cancelled")))
        return self._events(self._bench.events) or ["no events"]

    def _do_stop(self, flags: list[str], options: dict[str, str]) -> list[str]:
        self._bench.stop(_key(flags[0]), int(flags[1]))
        return self._events(self._bench.events) or ["no events"]

    def _do_scanned(self, flags: list[str], options: dict[str, str]) -> list[str]:
        self._bench.scanned(_key(flags[0]))
        return self._events(self._bench.events) or ["no events"]

    def _do_time(self, flags: list[str], options: dict[str, str]) -> list[str]:
        self._bench.now = float(flags[0])
        return []

    def _do_expire(self, flags: list[str], options: dict[str, str]) -> list[str]:
        self._bench.expire()
        return self._events(self._bench.events) or ["no events"]

    def _do_next(self, flags: list[str], options: dict[str, str]) -> list[str]:
        return [f"next expiry {self._bench.core.next_expiry()}"]

    def _do_pages(self, flags: list[str], options: dict[str, str]) -> list[str]:
        pages = self._bench.core.counts().pages[WorkerId(_first(flags))]
        return [f"{pages.num_free} free, {pages.num_held} held, {pages.num_cached} cached"]

    def _do_counts(self, flags: list[str], options: dict[str, str]) -> list[str]:
        counts = self._bench.core.counts()
        names = (
            "running",
            "waiting",
            "preemptions",
            "computed_tokens",
            "output_tokens",
            "cached_tokens",
            "wasted_tokens",
        )
        return [", ".join(f"{name} {getattr(counts, f'num_{name}')}" for name in names)]

    def _do_accounts(self, flags: list[str], options: dict[str, str]) -> list[str]:
        charged = self._bench.core.charges()
        return [", ".join(f"{tenant or 'nobody'} {tokens:g}" for tenant, tokens in charged.items())]

    def _do_prefix(self, flags: list[str], options: dict[str, str]) -> list[str]:
        pages = self._bench.explain_prefix(
            _tokens(flags[0]), salt=int(options.get("salt", 0)), tenant=options.get("tenant", "")
        )
        texts = [page.status.value + (f" at {page.diverged_at}" if page.diverged_at else "") for page in pages]
        return [", ".join(texts) or "no pages"]

    def _do_limits(self, flags: list[str], options: dict[str, str]) -> list[str]:
        limits = replace(
            self._bench.core.limits, **{_CONFIG_WORDS[name]: int(value) for name, value in options.items()}
        )
        try:
            return self._events(self._bench.core.update_limits(limits, self._bench.now))
        except ValueError as error:
            return [f"ValueError: {error}"]

    def _do_reset(self, flags: list[str], options: dict[str, str]) -> list[str]:
        return [f"{self._bench.core.reset_prefix_cache(self._bench.now)} pages freed"]

    def _do_pin(self, flags: list[str], options: dict[str, str]) -> list[str]:
        salt, tenant = int(options.get("salt", 0)), options.get("tenant", "")
        self._bench.pin(flags[0], _tokens(flags[1]), float(options["for"]), salt=salt, tenant=tenant)
        return []

    def _do_unpin(self, flags: list[str], options: dict[str, str]) -> list[str]:
        return [] if self._bench.unpin(flags[0], options.get("tenant", "")) else ["no such pin"]

    def _do_pins(self, flags: list[str], options: dict[str, str]) -> list[str]:
        pins = self._bench.core.pins(options.get("tenant", ""))
        return [f"{pin.pin_id}: {pin.num_pages} pages until {pin.until:g}" for pin in pins] or ["no pins"]

    def _do_quote(self, flags: list[str], options: dict[str, str]) -> list[str]:
        quote = self._bench.quote(_tokens(flags[0]))
        times = ["?" if each is None else f"{each:g} s" for each in (quote.queue_seconds, quote.first_token_seconds)]
        return [f"{quote.num_cached_tokens} cached, begins in {times[0]}, first token in {times[1]}"]

    def _do_hits(self, flags: list[str], options: dict[str, str]) -> list[str]:
        counts = self._bench.core.counts()
        names = ("asked", "hit", "evicted", "diverged", "salted", "tail")
        return [", ".join(f"{name} {getattr(counts, f'num_{name}_pages')}" for name in names)]

    def _do_explain(self, flags: list[str], options: dict[str, str]) -> list[str]:
        decisions = self._bench.core.decisions(RequestKey(_key(flags[0])))
        decisions = [*decisions, *self._bench.core.standing(RequestKey(_key(flags[0])), self._bench.now)]
        return [_decision(decision) for decision in decisions] or ["nothing is known"]

    def _plan_line(self, name: str, plan: BatchPlan) -> str:
        """What each row does, and keeps count of what the rows know."""
        rows = self._rows[name]
        parts = [f"row {row} released" for row in plan.releases]
        for row in plan.releases:
            del rows[row]
        facts: dict[int, list[str]] = {}
        for new in plan.new_rows:
            rows[new.row] = [new.sampling.seed & 0xFFFF, len(new.token_ids) - new.num_cached_tokens]
            facts[new.row] = [f"on row {new.row}"]
        decoding = [row for row, (_, left) in sorted(rows.items()) if left == 0 and row not in plan.idle_rows]
        for row in dict.fromkeys(plan.append_rows):
            pages = [page for other, page in zip(plan.append_rows, plan.append_pages, strict=True) if other == row]
            facts.setdefault(row, []).append(f"page{'s' * (len(pages) > 1)} {_list(pages)}")
        for row, num_tokens in zip(plan.chunk_rows, plan.chunk_tokens, strict=True):
            rows[row][1] -= num_tokens
            facts.setdefault(row, []).append(f"computes {num_tokens}")
        parts += [f"{_name(rows[row][0])} {' '.join(words)}" for row, words in facts.items()]
        if decoding:
            parts.append(f"{_list(_name(rows[row][0]) for row in decoding)} decode{'s' * (len(decoding) == 1)}")
        parts += [f"{_name(rows[row][0])} idles" for row in plan.idle_rows]
        pairs = zip(plan.copy_sources, plan.copy_destinations, strict=True)
        parts += [f"page {source} copied to {destination}" for source, destination in pairs]
        for group in plan.groups:
            names = _list(_name(rows[row][0]) for row in group.rows)
            shared = f"{names} share {group.num_pages} pages" if names else "is gone"
            parts.append(f"group {group.group_id} {shared}")
        if plan.published:
            parts.append(f"published {_list(published.page for published in plan.published)}")
        if plan.evicted_pages:
            parts.append(f"evicted {_list(plan.evicted_pages)}")
        return f"step {plan.step_id}: {'; '.join(parts)}"

    def _committed(self, committed: Committed) -> str:
        texts = [_text(token_id) for token_id in committed.token_ids]
        pairs = zip(committed.keys, texts, strict=True)
        return " ".join(text if text != "eos" else f"{_name(key)}:eos" for key, text in pairs) or "no tokens"

    def _events(self, events: Sequence[Event]) -> list[str]:
        return [f"  {_event(event)}".strip() for event in events]


def _event(event: Event) -> str:
    name = _name(event.key)
    if isinstance(event, Admitted):
        verb = "resumed" if event.resumed else "admitted"
        return f"{name} {verb} on {event.worker_id}, {event.num_cached_tokens} cached"
    if isinstance(event, PrefillProgress):
        return f"{name} prefilled {event.num_computed_tokens} of {event.num_prompt_tokens}"
    if isinstance(event, Preempted):
        return f"{name} preempted: {event.reason}"
    if isinstance(event, Held):
        return f"{name} held at {event.num_output_tokens}"
    assert isinstance(event, Ended)
    recomputed = f", {event.num_recomputed_tokens} recomputed" if event.num_recomputed_tokens else ""
    return f"{name} ended: {event.reason.value}, {event.num_output_tokens} tokens{recomputed}, in {event.stage}"


def _decision(decision: Decision) -> str:
    step = f", step {decision.step_id}" if decision.step_id else ""
    return f"{decision.at:g} s{step}: {sentence(decision, _name)}"


def _first(flags: list[str]) -> str:
    return flags[0] if flags else "w"


def _key(name: str) -> int:
    return ord(name) - ord("a")


def _name(key: int) -> str:
    return chr(ord("a") + key)


def _text(token_id: int) -> str:
    return "eos" if token_id == EOS else f"{_name(token_id // 1000 - 1)}{token_id % 1000}"


def _list(items: object) -> str:
    return ",".join(str(item) for item in items)  # type: ignore[attr-defined]


def _tokens(text: str) -> list[int]:
    tokens: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("..")
        tokens += range(int(first), int(last or first) + 1)
    return tokens
