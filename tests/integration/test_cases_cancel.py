"""Clients that go away, in every phase of a request and in every way (CAN-01), through the whole product."""

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pagewire_client import Client, DeadlineExceededError, PagewireError, RequestCancelledError
from support.conditions import wait_until
from support.scripted_rows import Limits
from support.scripted_stack import ScriptedStack, begun_prompts, counted, first_ids
from support.scripted_worker import ScriptedWorker

LIMITS = Limits(num_pages=64, max_num_seqs=4, max_num_batched_tokens=64)
SHORT = [20, 1]
LONG = [20, *(place % 250 for place in range(400))]
NEIGHBOUR = [21, 1]
DEADLINE = 0.15

Phase = Callable[[ScriptedStack, ScriptedWorker], None]


@pytest.fixture(scope="module")
def stack() -> Iterator[ScriptedStack]:
    with ScriptedStack() as running:
        yield running


class Victim:
    """A request whose client goes away."""

    def __init__(self, stack: ScriptedStack, prompt: list[int], way: str, unary: bool) -> None:
        self.client = Client(stack.scheduler.target)
        self._way, self._pool = way, ThreadPoolExecutor(1)
        timeout = DEADLINE if way == "deadline" else None
        options: dict[str, Any] = {"max_tokens": 300, "token_ids": True, "timeout": timeout}
        self._stream = None if unary else self.client.stream(prompt, **options)
        read = self._stream.join if self._stream is not None else lambda: self.client.generate(prompt, **options)
        self._reading = self._pool.submit(read)

    def leave(self) -> None:
        """Goes, and knows by which status."""
        if self._way == "cancel" and self._stream is not None:
            self._stream.cancel()
        elif self._way != "deadline":
            self.client.close()
        expected = DeadlineExceededError if self._way == "deadline" else RequestCancelledError
        with pytest.raises(expected):
            self._reading.result(5)
        if self._stream is not None:
            self._stream.cancel()  # once more
        self.client.close()
        self._pool.shutdown()


def is_waiting(stack: ScriptedStack, worker: ScriptedWorker) -> None:
    wait_until(lambda: stack.load().num_requests_waiting >= 1, "it waits")


def is_admitted(stack: ScriptedStack, worker: ScriptedWorker) -> None:
    wait_until(lambda: stack.load().num_requests_running >= 2, "it was admitted")


def has_computed(stack: ScriptedStack, worker: ScriptedWorker) -> None:
    wait_until(lambda: len(worker.plans) >= (worker.options.steps_before_hold or 0), "steps were taken")


PHASES: dict[str, tuple[list[int], int, Phase]] = {
    "waiting": (SHORT, 3, is_waiting),
    "in its first step": (SHORT, 2, is_admitted),
    "between chunks": (LONG, 4, has_computed),
    "decoding": (SHORT, 12, has_computed),
}
"""Name -> prompt, steps that are answered, when the client goes. Two more steps are in flight then."""


@pytest.mark.parametrize("unary", [False, True], ids=["stream", "unary"])
@pytest.mark.parametrize("way", ["cancel", "channel", "deadline"])
@pytest.mark.parametrize("phase", PHASES)
def test_can_01_a_client_that_goes_leaves_nothing(stack: ScriptedStack, phase: str, way: str, unary: bool) -> None:
    prompt, steps, arrives = PHASES[phase]
    limits = Limits(max_num_seqs=1) if phase == "waiting" else LIMITS
    with (
        stack.worker(limits, steps_before_hold=1) as worker,
        stack.client.stream(NEIGHBOUR, max_tokens=40, token_ids=True) as neighbour,
    ):
        first_ids(neighbour)
        victim = Victim(stack, prompt, way, unary)
        worker.options.steps_before_hold = steps
        arrives(stack, worker)
        victim.leave()
        wait_until(lambda: stack.load().num_requests_running + stack.load().num_requests_waiting == 1, "it is gone", 1)
        seen = len(worker.plans)
        worker.options.steps_before_hold = None
        assert neighbour.join().outputs[0].token_ids == counted(NEIGHBOUR, 40)
        stack.wait_idle(1)
        late = [plan for plan in worker.plans[seen:] if any(each.prompt == tuple(prompt) for each in plan.sampled)]
        assert len(late) <= 2  # those that were in flight
        if phase == "waiting":
            assert tuple(prompt) not in begun_prompts(worker)
        stack.probe()


def test_can_01_while_preempted(stack: ScriptedStack) -> None:
    """The pool holds one of the two: the later one is preempted, and goes then."""
    with (
        stack.worker(Limits(num_pages=10), steps_before_hold=1) as worker,
        stack.client.stream(NEIGHBOUR, max_tokens=120, token_ids=True) as neighbour,
    ):
        first_ids(neighbour)
        preempted = stack.load().num_preemptions
        with stack.client.stream(SHORT, max_tokens=120, token_ids=True) as victim:
            is_waiting(stack, worker)
            worker.options.steps_before_hold = 110
            first_ids(victim)
            wait_until(lambda: stack.load().num_preemptions > preempted, "it is preempted")
        worker.options.steps_before_hold = None
        assert neighbour.join().outputs[0].token_ids == counted(NEIGHBOUR, 120)
        stack.wait_idle()


def test_can_01_before_it_was_tokenized(stack: ScriptedStack) -> None:
    """A prompt that takes long to tokenize: the client is gone before anything was submitted."""
    with stack.worker() as worker:
        streams = [stack.client.stream("word " * 400, max_tokens=3) for _ in range(20)]
        for stream in streams:
            stream.cancel()
        with pytest.raises(RequestCancelledError):
            streams[-1].join()
        stack.wait_idle()
        stack.probe()
        assert len(begun_prompts(worker)) <= 21


def test_can_01_after_the_end_and_twice(stack: ScriptedStack) -> None:
    with stack.worker():
        stream = stack.client.stream(SHORT, max_tokens=3, token_ids=True, request_id="over")
        assert stream.join().outputs[0].token_ids == counted(SHORT, 3)
        stream.cancel()
        stream.cancel()
        stack.client.cancel("over")
        stack.probe()
        stack.wait_idle()


CLIENT = """
import sys
from pagewire_client import Client
client = Client(sys.argv[1])
streams = [client.stream([30, number], max_tokens=300) for number in range(4)]
for stream in streams:
    next(stream)
late = [client.stream([31, *range(200)], max_tokens=300), client.stream([32], max_tokens=300)]
print("ready", flush=True)
client.generate([33], max_tokens=300)
"""


def test_can_01_a_killed_client_in_every_phase(stack: ScriptedStack) -> None:
    """Four of its requests decode, two wait, one is a unary call; the steps it left behind end with them."""
    limits = Limits(num_pages=64, max_num_seqs=5, max_num_batched_tokens=64)
    with stack.worker(limits, step_seconds=0.02) as worker:
        neighbour = stack.client.stream(NEIGHBOUR, max_tokens=150, token_ids=True)
        first_ids(neighbour)
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT, stack.scheduler.target], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
        )
        assert client.stdout is not None
        assert client.stdout.readline() == b"ready\n"
        wait_until(lambda: stack.load().num_requests_waiting >= 1, "some wait")
        client.kill()
        client.wait(5)
        client.stdout.close()
        wait_until(lambda: stack.load().num_requests_running + stack.load().num_requests_waiting <= 1, "all gone", 1)
        assert neighbour.join().outputs[0].token_ids == counted(NEIGHBOUR, 150)
        stack.wait_idle()
        assert (32,) not in begun_prompts(worker)


def test_can_01_random_moments(stack: ScriptedStack) -> None:
    """Hundreds of streams, each dropped after some tokens, beside some that stay."""
    draw = random.Random(1)
    moments = [draw.choice((0, 0, 1, 3, 10)) for _ in range(300)]
    with stack.worker(Limits(num_pages=40, max_num_seqs=6), step_seconds=0.001):
        start = stack.wait_idle()

        def run(number: int) -> tuple[int, ...]:
            prompt = [40, number % 7, number % 251]
            with stack.client.stream(prompt, max_tokens=12, token_ids=True) as stream:
                if number % 10 == 0:
                    return stream.join().outputs[0].token_ids
                ids = first_ids(stream, moments[number]) if moments[number] else ()
            assert ids == counted(prompt, len(ids))
            return ids

        with ThreadPoolExecutor(16) as pool:
            results = list(pool.map(run, range(300)))
        for number in range(0, 300, 10):
            assert results[number] == counted([40, number % 7, number % 251], 12)
        load = stack.wait_idle()
        assert load.num_pages == start.num_pages
        stack.probe()


def test_grp_05_a_stop_with_running_streams() -> None:
    """Ten streams end in time, ten do not, five wait; then a second signal shortens the rest."""
    limits = Limits(num_pages=400, max_num_seqs=20)
    with ScriptedStack("--drain-seconds", "2") as stack:
        slow: dict[str, Any] = {"limits": limits, "step_seconds": 0.02, "steps_before_hold": 4}
        with ScriptedWorker(stack.scheduler.worker_endpoint, script=stack.script, **slow) as worker:
            stack.wait_workers(1)
            with ThreadPoolExecutor(25) as pool:
                clients = [stack.connect() for _ in range(3)]
                short = [[50, number] for number in range(10)]
                lengths = [40] * 10 + [480] * 10
                streams = [
                    clients[number % 2].stream([50, number], max_tokens=length, token_ids=True)
                    for number, length in enumerate(lengths)
                ]
                firsts = list(pool.map(first_ids, streams))
                assert all(firsts)
                streams += [clients[2].stream([51, number], max_tokens=400) for number in range(5)]
                wait_until(lambda: stack.load().num_requests_waiting == 5, "five wait")
                stack.scheduler.process.terminate()
                signalled = time.monotonic()
                worker.options.steps_before_hold = None
                ends = list(pool.map(lambda stream: ending(stream, signalled), streams))
                assert [end[0] for end in ends[:10]] == [None] * 10
                for prompt, stream in zip(short, streams, strict=False):
                    assert stream.join().outputs[0].token_ids == counted(prompt, 40)
                for error, seconds in ends[10:]:
                    assert error is not None
                    assert error.code is not None
                    assert error.code.name == "UNAVAILABLE"
                    assert seconds < 6
                assert all(seconds > 1.5 for _, seconds in ends[10:20])
                assert stack.scheduler.process.wait(10) == 0
                assert time.monotonic() - signalled < 8


def ending(stream: Any, since: float) -> tuple[PagewireError | None, float]:
    """How a stream ends, and when."""
    try:
        stream.join()
    except PagewireError as error:
        return error, time.monotonic() - since
    return None, time.monotonic() - since
