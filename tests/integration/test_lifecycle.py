"""How a server ends and what its parts survive: drains under load, notice to balancers, readers that stall, one of
several fronts, a scheduler that nobody hears."""

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2
from pagewire.v1 import generation_pb2 as pb
from pagewire.v1 import generation_pb2_grpc
from pagewire_client import Client, HealthStatus, PagewireError, UnavailableError
from support.conditions import wait_until
from support.fake_scheduler import FakeScheduler
from support.front_stack import TIMEOUT, front_stack
from support.scheduler_process import SchedulerProcess
from support.scripted_rows import Limits
from support.scripted_stack import ScriptedStack, counted, first_ids, outcome
from support.scripted_worker import ScriptedWorker
from support.stack import accepts

ROOMY = Limits(num_pages=640, max_num_seqs=16, max_model_len=4096)
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Load:
    """Callers that ask without pause, each on a connection of its own, until they are refused."""

    def __init__(self, stack: ScriptedStack, count: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[object] = []
        self._pool = ThreadPoolExecutor(count)
        self._calls = [self._pool.submit(self._ask, stack, number) for number in range(count)]

    def join(self) -> None:
        for call in self._calls:
            call.result(30)
        self._pool.shutdown()

    def _ask(self, stack: ScriptedStack, number: int) -> None:
        with Client(stack.scheduler.target, timeout=20) as client:
            for turn in range(10_000):
                begun = False
                try:
                    stream = client.stream([number, turn % 250], max_tokens=25, token_ids=True)
                    ids = first_ids(stream)
                    begun = True
                    ids = stream.join().outputs[0].token_ids
                except UnavailableError as error:
                    self.outcomes["broken" if begun else error.reason or "gone"] += 1
                    return
                except PagewireError as error:
                    self.wrong.append(error)
                    return
                self.outcomes["done"] += 1
                if ids != counted([number, turn % 250], 25):
                    self.wrong.append(ids)


def test_a_drain_under_load_breaks_nothing() -> None:
    """Two fronts, 16 callers. Who was answered is answered to the end; who comes later is told so."""
    with ScriptedStack("--front-processes", "2", "--drain-notice-seconds", "0.3") as stack:
        slow: dict[str, Any] = {"limits": ROOMY, "step_seconds": 0.004}
        with ScriptedWorker(stack.scheduler.worker_endpoint, script=stack.script, **slow):
            stack.wait_workers(1)
            load = Load(stack, 16)
            wait_until(lambda: load.outcomes["done"] >= 32, "it is under way", 30)
            before = load.outcomes["done"]
            stack.scheduler.process.terminate()
            load.join()
            assert load.wrong == []
            assert load.outcomes["broken"] == load.outcomes["SHUTDOWN"] == 0
            assert load.outcomes["DRAINING"] + load.outcomes["gone"] == 16
            # While balancers were told, requests were still taken.
            assert load.outcomes["done"] >= before + 16
            assert stack.scheduler.process.wait(10) == 0


def test_health_says_so_before_anybody_is_refused() -> None:
    with ScriptedStack("--drain-notice-seconds", "30") as stack, ScriptedWorker(stack.scheduler.worker_endpoint):
        stack.wait_workers(1)
        stack.scheduler.process.terminate()
        wait_until(lambda: stack.health() is HealthStatus.NOT_SERVING, "health says so")
        assert stack.client.health("liveness") is HealthStatus.SERVING
        assert len(stack.client.generate([1], max_tokens=5, token_ids=True).outputs[0].token_ids) == 5
        # A second signal has no patience.
        stack.scheduler.process.terminate()
        assert stack.scheduler.process.wait(10) == 0


def test_a_reader_that_stalls_holds_nobody_up() -> None:
    """A drain with one reader that takes nothing: the others end well, it is cut off when the time is up."""
    with (
        ScriptedStack("--drain-seconds", "2") as stack,
        ScriptedWorker(stack.scheduler.worker_endpoint, limits=ROOMY, script=stack.script),
        narrow_channel(stack) as channel,
    ):
        stack.wait_workers(1)
        output = pb.OutputOptions(token_ids=True, logprobs=20)
        request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[7]), output=output, stop={"max_tokens": 2000})
        stalled = generation_pb2_grpc.GenerationServiceStub(channel).Generate(request)
        next(stalled)
        others = [stack.client.stream([8, n], max_tokens=100, token_ids=True) for n in range(3)]
        assert all(map(first_ids, others))
        stack.scheduler.process.terminate()
        assert [o.join().outputs[0].token_ids for o in others] == [counted([8, n], 100) for n in range(3)]
        assert stack.scheduler.process.wait(15) == 0
        with pytest.raises(grpc.RpcError) as ended:
            for _ in stalled:
                pass
        assert ended.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)


def narrow_channel(stack: ScriptedStack) -> Any:
    options = (("grpc.http2.lookahead_bytes", 4096), ("grpc.http2.bdp_probe", 0))
    return grpc.insecure_channel(stack.scheduler.target, options=options)


@pytest.fixture(scope="module")
def two_fronts() -> Iterator[ScriptedStack]:
    with ScriptedStack("--front-processes", "2") as running:
        yield running


def test_one_front_dies_without_harm_to_the_others(two_fronts: ScriptedStack) -> None:
    stack = two_fronts
    with stack.worker(ROOMY, step_seconds=0.005):
        known = sum(map(len, callers(stack).values()))
        clients = [stack.connect() for _ in range(12)]
        streams = [client.stream([9, n], max_tokens=150, token_ids=True) for n, client in enumerate(clients)]
        assert all(map(first_ids, streams))
        found = callers(stack)
        assert sum(map(len, found.values())) == known + 12
        victim, survivor = sorted(found, key=lambda pid: len(found[pid]))
        os.kill(victim, signal.SIGKILL)
        ends = [outcome(stream) for stream in streams]
        whole = [end == counted([9, n], 150) for n, end in enumerate(ends)]
        broken = [isinstance(end, UnavailableError) for end in ends]
        assert [a or b for a, b in zip(whole, broken, strict=True)] == [True] * 12
        assert len(found[survivor]) - known <= sum(whole) <= len(found[survivor])
        # The port never closed: who comes now is served, by the one that is left or by the new one.
        stack.probe(stack.connect())
        wait_until(lambda: len(callers(stack)) == 2 and victim not in callers(stack), "another one is there")
        stack.client = stack.connect()
        wait_until(lambda: accepts(stack.scheduler.internal_target), "the internal port is there again", 20)
        stack.wait_idle()


def callers(stack: ScriptedStack) -> dict[int, set[int]]:
    """Ports of those connected to the public port, by the front that has them."""
    fronts = psutil.Process(stack.scheduler.process.pid).children()
    return {
        front.pid: {
            c.raddr.port for c in front.net_connections("tcp") if c.raddr and c.laddr.port == stack.scheduler.port
        }
        for front in fronts
        if front.status() != psutil.STATUS_ZOMBIE
    }


def test_nobody_else_shares_the_port_of_several_fronts(two_fronts: ScriptedStack) -> None:
    twin = SchedulerProcess("--front-processes", "2", port=two_fronts.scheduler.port)
    try:
        assert twin.run_to_end() == 2
        assert f"--port {twin.port}" in twin.log_path.read_text()
    finally:
        twin.close()


async def test_liveness_is_about_the_scheduler_not_about_workers() -> None:
    scheduler = FakeScheduler()
    async with front_stack(scheduler, heartbeat_seconds=0.02) as stack:

        async def is_alive() -> bool:
            answer = await stack.health.Check(health_pb2.HealthCheckRequest(service="liveness"), timeout=TIMEOUT)
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

        await scheduler.announce(num_workers=0)
        await stack.wait_serving("NOT_SERVING")
        assert await is_alive()
        await scheduler.announce(num_workers=1, leaving=True)
        assert await is_alive()
        await scheduler.announce(leaving=False, stalled=True)
        watch = stack.health.Watch(health_pb2.HealthCheckRequest(service="liveness"), timeout=TIMEOUT)
        while (await watch.read()).status != NOT_SERVING:
            pass
        await scheduler.announce(stalled=False)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        # A scheduler that says nothing for long.
        for task in scheduler._tasks:
            task.cancel()
        assert (await watch.read()).status == NOT_SERVING
        watch.cancel()


def test_of_two_schedulers_started_at_once_one_is_refused() -> None:
    first = SchedulerProcess()
    second = SchedulerProcess(directory=first.directory, port=first.port)
    second.log_path = second.log_path.with_suffix(".second")
    starts = [threading.Thread(target=each.start) for each in (first, second)]
    for start in starts:
        start.start()
    for start in starts:
        start.join()
    try:
        wait_until(lambda: 2 in (first.process.poll(), second.process.poll()), "one is refused", 20)
        left = second if first.process.poll() == 2 else first
        left.wait_event("listening")
        assert left.stop() == 0
    finally:
        second.close()
        first.close()
