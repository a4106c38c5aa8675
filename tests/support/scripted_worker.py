"""A worker without a model: the real protocol, strict checks, answers by a script, and faults on demand.

In a test it runs on a thread of its own (``with ScriptedWorker(endpoint) as worker``); by itself it is
``python tests/support/scripted_worker.py --scheduler ENDPOINT``.
"""

import argparse
import json
import os
import secrets
import signal
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import zmq
from pagewire.internal.v1 import worker_pb2
from support.scripted_rows import Limits, PlanRefusedError, PromptPart, Sampled, Script, ScriptedRows
from support.toy_tokenizer import BOS, CHAT_TEMPLATE, EOS, SPECIAL_TOKENS, VOCAB_SIZE, tokenizer_json

PROTOCOL_VERSION = 1
HELLO_SECONDS = 0.5
SILENCE_SECONDS = 3.0
_TICK_MS, _SEND_MS = 20, 500

Fault = Callable[[int, bytes], Iterable[bytes]]
"""(step id, frame) -> the frames that arrive in its place."""


def plain_script(prompt: tuple[int, ...], position: int, index: int, seed: int) -> int:
    """Raw bytes that differ by prompt, position, output and seed; never ends by itself."""
    return (7 * sum(prompt) + 31 * len(prompt) + 13 * position + 101 * index + 17 * (seed % 251)) % 256


def expected(prompt: Sequence[int], count: int, index: int = 0, seed: int = 0) -> list[int]:
    """The first tokens of an output by ``plain_script``."""
    return [plain_script(tuple(prompt), position, index, seed) for position in range(count)]


def prepared_script(outputs: Mapping[tuple[int, ...], Sequence[int]]) -> Script:
    """Answers known prompts (with or without a beginning-of-sequence token) with given ids, then EOS for ever."""

    def script(prompt: tuple[int, ...], position: int, index: int, seed: int) -> int:
        ids = outputs.get(prompt)
        if ids is None and prompt[:1] == (BOS,):
            ids = outputs.get(prompt[1:])
        if ids is None:
            return plain_script(prompt, position, index, seed)
        return ids[position] if position < len(ids) else EOS

    return script


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A plan that was taken, and what it sampled."""

    epoch: int
    step_id: int
    plan: Any
    sampled: list[Sampled]

    @property
    def num_tokens(self) -> int:
        return int(self.plan.num_scheduled_tokens)


@dataclass(slots=True, kw_only=True)
class Options:
    """How the worker behaves; may be changed while it runs."""

    limits: Limits = field(default_factory=Limits)
    script: Script = plain_script
    digest: str = "toy-1"
    protocol_version: int = PROTOCOL_VERSION
    device: str = "scripted"
    extra_texts: tuple[tuple[int, str], ...] = ()
    step_seconds: float = 0.0
    failing_steps: frozenset[int] = frozenset()
    nan: Callable[[Sampled], bool] | None = None
    """Rows whose logits hold NaN."""
    on_plan: Fault | None = None
    on_result: Fault | None = None
    change_result: Callable[[int, Any], None] | None = None
    """(step id, StepResult message): changes it before it is sent."""
    heartbeats: bool = True
    silence_seconds: float = SILENCE_SECONDS
    """A scheduler that says nothing for so long is gone."""
    keys: Any = None
    """gpu_worker's CurveKeys; None: the link is not encrypted."""
    steps_before_hold: int | None = None
    """So many steps are answered, then answers wait until this is raised or None."""


class ScriptedWorker:
    """Connects at once; ``stop`` ends it like a crash, ``leave`` with a goodbye."""

    def __init__(self, endpoint: str, **options: Any) -> None:
        self.options = Options(**options)
        self.rows = ScriptedRows(self.options.limits, self.options.script)
        self.plans: list[Recorded] = []
        self.refusals: list[str] = []
        self.hello_refusals: list[str] = []
        self.resyncs: list[str] = []
        self.num_joins = 0
        self.worker_id = ""
        self.error: BaseException | None = None
        self._endpoint = endpoint
        self._stopping = threading.Event()
        self._leaving = False
        self._silent = threading.Event()
        self._extra: deque[bytes] = deque()
        self._thread = threading.Thread(target=self._run, name="scripted worker", daemon=True)
        self._begin_epoch()

    # For tests.

    def __enter__(self) -> "ScriptedWorker":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        if kind is None and self.error is not None:
            raise self.error

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """The connection just ends."""
        self._stopping.set()
        self._thread.join(timeout=10)

    def leave(self) -> None:
        self._leaving = True
        self.stop()

    def freeze(self) -> None:
        """Neither reads nor writes any more, like a stopped process."""
        self._silent.set()

    def thaw(self) -> None:
        self._silent.clear()

    def send_bytes(self, content: bytes) -> None:
        """Sends something that is no frame of the protocol."""
        self._extra.append(content)

    @property
    def is_joined(self) -> bool:
        return self._joined

    def run(self) -> None:
        """Runs in the calling thread until ``stop``."""
        self._run()

    # The loop.

    def _run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 200)
        self._socket.setsockopt(zmq.SNDTIMEO, _SEND_MS)
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 50)
        if self.options.keys is not None:
            self.options.keys.guard(self._socket)
        self._socket.connect(self._endpoint)
        try:
            while not self._stopping.is_set():
                if self._silent.is_set():
                    self._stopping.wait(_TICK_MS / 1000)
                else:
                    self._round()
            if self._leaving and self._joined:
                self._send(goodbye=worker_pb2.Goodbye(reason="asked to"))
        except Exception as error:
            self.error = error
        finally:
            self._socket.close()
            context.term()

    def _round(self) -> None:
        ready_at = self._next_step_at()
        wait_ms = _TICK_MS if ready_at is None else max(0, min(_TICK_MS, int((ready_at - time.monotonic()) * 1000) + 1))
        if self._socket.poll(wait_ms):
            for _ in range(100):
                if not self._socket.poll(0):
                    break
                self._receive(self._socket.recv(zmq.DONTWAIT))
        while self._extra:
            self._put(self._extra.popleft())
        self._work()
        self._beat(time.monotonic())

    def _begin_epoch(self) -> None:
        self.rows.reset()
        self._epoch = secrets.randbits(63) + 1
        self._session = 0
        self._joined = False
        self._queue: deque[tuple[int, Any]] = deque()
        self._received = self._completed = 0
        self._next_beat = 0.0
        self._busy_until = 0.0
        self._last_heard = time.monotonic()

    def _receive(self, content: bytes) -> None:
        frame = worker_pb2.SchedulerFrame.FromString(content)
        if frame.epoch != self._epoch or (self._joined and frame.session != self._session):
            return
        self._last_heard = time.monotonic()
        kind = frame.WhichOneof("body")
        if kind == "welcome":
            self._welcome(frame)
        elif kind == "refusal":
            self.hello_refusals.append(frame.refusal.reason)
            self._next_beat = time.monotonic() + 3600
        elif kind == "resync":
            self.resyncs.append(frame.resync.reason)
            self._begin_epoch()
        elif kind == "goodbye":
            if frame.goodbye.for_good:
                self._stopping.set()
            self._begin_epoch()
        elif kind == "names" and self._joined:
            self.rows.take_names(frame.names)
        elif kind == "plan" and self._joined:
            faults = self.options.on_plan
            for each in [content] if faults is None else faults(frame.step_id, content):
                self._take_plan(worker_pb2.SchedulerFrame.FromString(each))

    def _welcome(self, frame: Any) -> None:
        if self._joined:
            return
        self._joined, self._session, self.worker_id = True, frame.session, frame.welcome.worker_id
        self._received = self._completed = frame.welcome.first_step_id - 1
        self._heartbeat_seconds = frame.welcome.heartbeat_ms / 1000
        self._next_beat = 0.0
        self.num_joins += 1

    def _take_plan(self, frame: Any) -> None:
        if frame.epoch != self._epoch:
            return
        if frame.step_id != self._received + 1:
            self._refuse(frame.step_id, f"step {frame.step_id} came, {self._received + 1} was due")
            return
        self._received = frame.step_id
        self._queue.append((frame.step_id, frame.plan))

    def _refuse(self, step_id: int, reason: str) -> None:
        self.refusals.append(reason)
        self._send(step_id, result=worker_pb2.StepResult(refusal=reason))
        self._begin_epoch()

    def _next_step_at(self) -> float | None:
        hold = self.options.steps_before_hold
        if not self._queue or (hold is not None and len(self.plans) >= hold):
            return None
        return self._busy_until

    def _work(self) -> None:
        while (ready_at := self._next_step_at()) is not None and time.monotonic() >= ready_at:
            step_id, plan = self._queue.popleft()
            fails = step_id in self.options.failing_steps
            began = time.monotonic()
            try:
                sampled = self.rows.step(plan, fails)
            except PlanRefusedError as refused:
                self._refuse(step_id, str(refused))
                return
            self._busy_until = began + self.options.step_seconds
            self.plans.append(Recorded(epoch=self._epoch, step_id=step_id, plan=plan, sampled=sampled))
            self._answer(step_id, self._result(sampled, fails))

    def _result(self, sampled: list[Sampled], fails: bool) -> Any:
        if fails:
            return worker_pb2.StepResult(failure="the step failed on purpose")
        nan = self.options.nan
        statuses = bytes(1 if nan is not None and nan(each) else 0 for each in sampled)
        return worker_pb2.StepResult(
            rows=array("i", [each.row for each in sampled]).tobytes(),
            token_ids=array("i", [each.token_id for each in sampled]).tobytes(),
            statuses=statuses if any(statuses) else b"",
            step_us=1000,
            logprobs=[
                *(_prompt_logprobs(part) for part in self.rows.prompt_parts),
                *(_output_logprobs(each, each.num_logprobs) for each in sampled if each.num_logprobs is not None),
            ],
        )

    def _answer(self, step_id: int, result: Any) -> None:
        if self.options.change_result is not None:
            self.options.change_result(step_id, result)
        content = self._frame(step_id, result=result)
        faults = self.options.on_result
        for each in [content] if faults is None else faults(step_id, content):
            self._put(each)
        self._completed = step_id

    def _beat(self, now: float) -> None:
        if self._joined and now - self._last_heard > self.options.silence_seconds:
            self._begin_epoch()
        if now < self._next_beat:
            return
        if not self._joined:
            self._next_beat = now + HELLO_SECONDS
            self._say_hello()
        elif self.options.heartbeats:
            self._next_beat = now + self._heartbeat_seconds
            heartbeat = worker_pb2.Heartbeat(last_received_step_id=self._received)
            self._send(self._completed, heartbeat=heartbeat)

    def _say_hello(self) -> None:
        limits, options = self.options.limits, self.options
        hello = worker_pb2.Hello(
            protocol_version=options.protocol_version,
            device=options.device,
            page_size=limits.page_size,
            num_pages=limits.num_pages,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_model_len=limits.max_model_len,
            model_card=model_card(options.digest, limits, options.extra_texts),
            num_ranks=1,
            pid=os.getpid(),
            version="scripted",
        )
        try:
            self._socket.send(self._frame(hello=hello), zmq.DONTWAIT)
        except zmq.Again:
            self._next_beat = 0.0

    def _send(self, step_id: int = 0, **body: Any) -> None:
        self._put(self._frame(step_id, **body))

    def _frame(self, step_id: int = 0, **body: Any) -> bytes:
        return worker_pb2.WorkerFrame(
            session=self._session, epoch=self._epoch, step_id=step_id, **body
        ).SerializeToString()

    def _put(self, content: bytes) -> None:
        with suppress(zmq.Again):  # nobody is there any more; whoever stops this worker need not wait
            self._socket.send(content)


def made_up(token_id: int, num_top: int, *, is_likely: bool) -> list[tuple[int, float, int]]:
    """(id, log probability, rank) of each entry of a position: the ids after the chosen one are likely, it may be."""
    first = token_id if is_likely else token_id + 1
    listed = [((first + place) % VOCAB_SIZE, -1.0 - place, place + 1) for place in range(num_top)]
    unlisted = (token_id, -1.0 - num_top, num_top + 1)
    return [*listed, (-1, float("-inf"), 0) if is_likely and num_top else unlisted]


def _output_logprobs(sampled: Sampled, num_top: int) -> Any:
    return _row_logprobs(made_up(sampled.token_id, num_top, is_likely=True), row=sampled.row, width=num_top + 1)


def _prompt_logprobs(part: PromptPart) -> Any:
    entries = [each for token_id in part.token_ids for each in made_up(token_id, part.num_logprobs, is_likely=False)]
    return _row_logprobs(
        entries,
        row=part.row,
        width=part.num_logprobs + 1,
        first_position=part.first_position,
        num_prompt_positions=len(part.token_ids),
    )


def _row_logprobs(entries: list[tuple[int, float, int]], **fields: int) -> Any:
    ids, values, ranks = zip(*entries, strict=True)
    return worker_pb2.RowLogprobs(
        token_ids=array("i", ids).tobytes(),
        logprobs=array("f", values).tobytes(),
        ranks=array("i", ranks).tobytes(),
        **fields,
    )


def model_card(digest: str, limits: Limits, extra_texts: tuple[tuple[int, str], ...] = ()) -> Any:
    """The toy model."""
    return worker_pb2.ModelCard(
        name="toy",
        architecture="ToyForCausalLM",
        tokenizer_json=tokenizer_json(extra_texts),
        chat_template=CHAT_TEMPLATE,
        special_tokens={"bos_token": SPECIAL_TOKENS[BOS], "eos_token": SPECIAL_TOKENS[EOS]},
        eos_token_ids=[EOS],
        bos_token_id=BOS,
        vocab_size=VOCAB_SIZE,
        max_model_len=limits.max_model_len,
        dtype="float32",
        kv_cache_dtype="float32",
        digest=digest,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scheduler", required=True)
    parser.add_argument("--outputs", default="{}", help="JSON: prompt ids joined by commas -> output ids")
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--digest", default="toy-1")
    defaults = Limits()
    for name in ("page_size", "num_pages", "max_num_seqs", "max_num_batched_tokens", "max_model_len"):
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=getattr(defaults, name))
    given = parser.parse_args()
    outputs = {tuple(map(int, key.split(","))): ids for key, ids in json.loads(given.outputs).items()}
    names = ("page_size", "num_pages", "max_num_seqs", "max_num_batched_tokens", "max_model_len")
    worker = ScriptedWorker(
        given.scheduler,
        limits=Limits(**{name: getattr(given, name) for name in names}),
        script=prepared_script(outputs),
        step_seconds=given.step_seconds,
        digest=given.digest,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker._stopping.set())
    worker._leaving = True
    worker.run()
    if worker.error is not None:
        raise worker.error
    return 0


if __name__ == "__main__":
    sys.exit(main())
