"""Known faults of lost processes, failing steps and sockets, each by its id, through the whole product."""

import os
import secrets
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq
from pagewire.internal.v1 import front_pb2, worker_pb2
from pagewire_client import HealthStatus, InternalError, InvalidRequestError, PagewireError, UnavailableError
from support.conditions import wait_until
from support.scripted_rows import Limits
from support.scripted_stack import PROBE, PROBE_ANSWER, ScriptedStack, begun_prompts, counted, first_ids, outcome
from support.scripted_worker import ScriptedWorker

from scheduler_svc import run_dir
from scheduler_svc.router import Peer, Router, Sent

ROOMY = Limits(num_pages=640, max_num_seqs=16, max_model_len=4096)
COUNTED = {(68,): counted([68], 300), (69,): counted([69], 300), tuple(PROBE): tuple(PROBE_ANSWER.encode())}
"""What worker processes answer, as the workers of the test do."""


@pytest.fixture(scope="module")
def stack() -> Iterator[ScriptedStack]:
    with ScriptedStack("--worker-lost-seconds", "1") as running:
        with running.worker(ROOMY):  # its limits are the model's
            pass
        yield running


def endings(streams: Sequence[Any], seconds: float = 5.0) -> list[PagewireError | None]:
    """How all of them end, within so long."""

    def ending(stream: Any) -> PagewireError | None:
        try:
            stream.join()
        except PagewireError as error:
            return error
        return None

    began = time.monotonic()
    with ThreadPoolExecutor(len(streams)) as pool:
        found = list(pool.map(ending, streams))
    assert time.monotonic() - began < seconds
    return found


def start_32(stack: ScriptedStack) -> list[Any]:
    """16 streams that run, 16 that wait."""
    streams = []
    for client, tokens in ((stack.connect(), 400), (stack.connect(), 20)):
        streams += [client.stream([60, number], max_tokens=tokens, token_ids=True) for number in range(16)]
        wait_until(lambda: stack.load().num_requests_running == 16, "16 run")
    wait_until(lambda: stack.load().num_requests_waiting == 16, "16 wait")
    for stream in streams[:16]:
        first_ids(stream)
    return streams


def test_wrk_01_a_killed_worker(stack: ScriptedStack) -> None:
    """Nobody hangs; health is bad until another worker comes, and that one begins with an empty ledger."""
    flags = ("--max-num-seqs", "16", "--step-seconds", "0.02", "--num-pages", "640")
    worker = stack.scheduler.start_worker(*flags)
    stack.wait_workers(1)
    streams = start_32(stack)
    worker.kill()
    found = endings(streams)
    assert all(isinstance(error, UnavailableError) for error in found)
    assert all(error is not None and error.retry_delay_seconds for error in found)
    stack.wait_workers(0)
    with pytest.raises(UnavailableError):
        stack.connect().generate([61], max_tokens=1, timeout=10)
    with stack.worker() as another:
        assert stack.wait_idle().num_cached_pages == 0
        stack.probe()
        assert another.rows.violations == []


def test_wrk_01_a_killed_front(stack: ScriptedStack) -> None:
    """Calls that had an answer end; the scheduler cancels what they ran and starts another front on the same port.

    The client may ask again for what had no answer yet, and gets it whole.
    """
    with stack.worker(ROOMY, step_seconds=0.02):
        streams = start_32(stack)
        front = stack.scheduler.wait_event("front_ready", len(stack.scheduler.events("front_ready")))
        os.kill(front["pid"], signal.SIGKILL)
        assert all(isinstance(error, UnavailableError) for error in endings(streams[:16]))
        stack.scheduler.wait_event("front_ready", len(stack.scheduler.events("front_ready")))
        stack.client = stack.connect()
        wait_until(lambda: stack.health() is HealthStatus.SERVING, "it serves again")
        for number, stream in enumerate(streams[16:]):
            answer = outcome(stream)
            assert isinstance(answer, UnavailableError) or answer == counted([60, number], 20)
        stack.wait_idle()
        stack.probe()


def test_wrk_01_a_killed_scheduler() -> None:
    with ScriptedStack() as stack:
        stack.scheduler.start_worker("--max-num-seqs", "16", "--step-seconds", "0.02", "--num-pages", "640")
        front = stack.scheduler.wait_event("front_ready")["pid"]
        stack.wait_workers(1)
        streams = start_32(stack)
        stack.scheduler.process.kill()
        found = endings(streams)
        assert all(isinstance(error, UnavailableError) for error in found)
        wait_until(lambda: not psutil.pid_exists(front), "the front is gone", 5)
        assert stack.health() is None


def test_wrk_02_a_stopped_worker(stack: ScriptedStack) -> None:
    """Stopped shortly it is kept; stopped for ever it is given up, and joins anew when it goes on."""
    worker = stack.scheduler.start_worker("--max-num-seqs", "16", "--step-seconds", "0.02", "--num-pages", "640")
    stack.wait_workers(1)
    streams = start_32(stack)
    worker.send_signal(signal.SIGSTOP)
    joined = len(stack.scheduler.events("worker_joined"))
    pause = time.monotonic() + 1.0
    wait_until(lambda: time.monotonic() > pause, "a second")
    worker.send_signal(signal.SIGCONT)
    first_ids(streams[0], 30)
    assert len(stack.scheduler.events("worker_joined")) == joined
    worker.send_signal(signal.SIGSTOP)
    found = endings(streams, 12)
    assert all(isinstance(error, UnavailableError) for error in found)
    stack.wait_workers(0)
    worker.send_signal(signal.SIGCONT)
    stack.wait_workers(1)
    stack.wait_idle()
    answer = stack.client.generate([62], max_tokens=20, token_ids=True)
    assert len(answer.outputs[0].token_ids) == 20
    worker.terminate()
    worker.wait(10)
    stack.wait_workers(0)


@pytest.mark.parametrize("step", range(1, 11))
def test_wrk_03_a_failed_step(stack: ScriptedStack, step: int) -> None:
    """Its requests end as INTERNAL without a word of the worker's text; the loop and the others go on."""
    with stack.worker(Limits(max_num_batched_tokens=8), failing_steps=frozenset({step})), ThreadPoolExecutor(8) as pool:
        streams = [stack.client.stream([63, number, 1, 2], max_tokens=12, token_ids=True) for number in range(8)]
        answers = list(pool.map(outcome, streams))
        failed = [error for error in answers if isinstance(error, Exception)]
        assert failed
        for number, answer in enumerate(answers):
            if isinstance(answer, Exception):
                assert isinstance(answer, InternalError)
                assert "on purpose" not in str(answer)
            else:
                assert answer == counted([63, number, 1, 2], 12)
        stack.wait_idle()
        stack.probe()


@pytest.mark.parametrize("temperature", [-0.1, float("nan"), float("inf"), float("-inf")])
def test_smp_01_impossible_temperatures_are_refused(stack: ScriptedStack, temperature: float) -> None:
    with stack.worker(step_seconds=0.005), ThreadPoolExecutor(1) as pool:
        beside = pool.submit(stack.client.generate, [64], max_tokens=30, token_ids=True)
        with pytest.raises(InvalidRequestError) as refused:
            stack.client.generate([65], temperature=temperature, max_tokens=1)
        assert [violation.field for violation in refused.value.field_violations] == ["sampling.temperature"]
        assert beside.result().outputs[0].token_ids == counted([64], 30)


def test_zmq_01_long_directories_and_two_instances(tmp_path: Path) -> None:
    """Socket paths of more than 107 bytes, two schedulers in one directory, a killed one that comes back."""
    directory = tmp_path / ("x" * 120)
    directory.mkdir(mode=0o700)
    with ScriptedStack(directory=directory) as one, ScriptedStack(directory=directory) as other:
        endpoints = [run_dir.shortened(each.scheduler.worker_endpoint) for each in (one, other)]
        assert endpoints[0] != endpoints[1]
        for stack, endpoint in zip((one, other), endpoints, strict=True):
            stack.scheduler.worker_endpoint = endpoint
            assert Path(endpoint.removeprefix("ipc://")).stat().st_mode & 0o077 == 0
            with stack.worker():
                stack.probe()
        one.scheduler.process.kill()
        one.scheduler.process.wait(5)
        one.scheduler.start()  # over the socket files the killed one left
        one.scheduler.wait_event("listening", 2)
        one.client = one.connect()
        with one.worker(), other.worker():
            one.probe()
            other.probe()


def test_zmq_02_a_paused_front_loses_nothing(stack: ScriptedStack) -> None:
    """The scheduler goes on while a front stands still: a long stream arrives once, in order; cancels are applied."""
    with stack.worker(ROOMY, step_seconds=0.0005), ThreadPoolExecutor(1) as pool:
        client = stack.connect()
        long = client.stream([66], max_tokens=3000, token_ids=True, timeout=60)
        ids = first_ids(long)
        doomed = [client.stream([67, number], max_tokens=4000) for number in range(100)]
        first_ids(long, 20)
        reading = pool.submit(long.join)
        front = stack.scheduler.wait_event("front_ready", len(stack.scheduler.events("front_ready")))
        os.kill(front["pid"], signal.SIGSTOP)
        try:
            for stream in doomed:
                stream.cancel()
            pause = time.monotonic() + 1.0
            wait_until(lambda: time.monotonic() > pause, "a second")
        finally:
            os.kill(front["pid"], signal.SIGCONT)
        assert reading.result(60).outputs[0].token_ids == counted([66], 3000)
        assert ids == counted([66], len(ids))
        stack.wait_idle()


def test_zmq_05_a_peer_that_comes_again(stack: ScriptedStack) -> None:
    """Killed and started at once, and while the scheduler is not polling: the new one gets plans of its own alone."""
    killed = stack.scheduler.start_worker("--step-seconds", "0.01", outputs=COUNTED)
    stack.wait_workers(1)
    stream = stack.client.stream([68], max_tokens=300, token_ids=True)
    ids = first_ids(stream, 5)
    stack.scheduler.process.send_signal(signal.SIGSTOP)
    killed.kill()
    with ScriptedWorker(stack.scheduler.worker_endpoint, limits=Limits(), script=stack.script) as worker:
        wait_until(lambda: killed.poll() is not None, "it is dead")
        stack.scheduler.process.send_signal(signal.SIGCONT)
        wait_until(lambda: worker.is_joined, "the new one joined", 5)
        stack.probe()
        assert stream.join().outputs[0].token_ids == counted([68], 300)
        assert ids == counted([68], len(ids))
        assert worker.plans[0].step_id == 1
        assert len({plan.epoch for plan in worker.plans}) == 1
        assert begun_prompts(worker)[0] == (68,)
        assert worker.refusals == worker.resyncs == worker.rows.violations == []
        stack.wait_idle()
    stack.wait_workers(0)


def test_zmq_05_a_stopped_worker_and_its_replacement(stack: ScriptedStack) -> None:
    """The replacement takes over; the first one, when it goes on, is a second worker and nothing it says counts."""
    stopped = stack.scheduler.start_worker("--step-seconds", "0.01", outputs=COUNTED)
    stack.wait_workers(1)
    with stack.client.stream([69], max_tokens=300, token_ids=True) as stream:
        first_ids(stream, 5)
        stopped.send_signal(signal.SIGSTOP)
        with ScriptedWorker(stack.scheduler.worker_endpoint, limits=Limits(), script=stack.script) as worker:
            wait_until(lambda: worker.is_joined, "it joined beside the stopped one", 5)
            wait_until(lambda: stack.load().num_workers == 1, "the stopped one was given up", 10)
            stack.probe()
            assert stream.join().outputs[0].token_ids == COUNTED[69,]
            stopped.send_signal(signal.SIGCONT)
            stack.wait_workers(2)
            stopped.terminate()
            stopped.wait(10)
            wait_until(lambda: stack.load().num_workers == 1, "one is left")
            assert worker.rows.violations == []
            stack.probe()
    stack.wait_workers(0)


def test_zmq_05_a_peer_that_never_was_is_told_apart() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with tempfile.TemporaryDirectory() as directory:
        router = Router(context, f"ipc://{directory}/r.sock", send_high_water=10)
        assert router.send(Peer(b"nobody"), b"x") is Sent.GONE
        router.close()
    context.term()


def test_zmq_07_sockets_are_private_and_garbage_is_survived(stack: ScriptedStack, tmp_path: Path) -> None:
    marker = tmp_path / f"marker_{secrets.token_hex(4)}"
    pickled = f"cposix\nsystem\n(S'touch {marker}'\ntR.".encode()
    old = worker_pb2.WorkerFrame(session=1, epoch=2, hello=worker_pb2.Hello(protocol_version=99)).SerializeToString()
    strange = front_pb2.FrontFrame(front_id=5, hello=front_pb2.FrontHello(protocol_version=99)).SerializeToString()
    process = psutil.Process(stack.scheduler.process.pid)
    family = [process, *process.children(recursive=True)]
    listening = [c.laddr for each in family for c in each.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert {address.port for address in listening} == set(stack.scheduler.ports)
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
    assert stack.scheduler.directory is not None
    sockets = list(stack.scheduler.directory.glob("*.sock"))
    assert len(sockets) == 2
    assert [path for path in sockets if path.stat().st_mode & 0o077] == []
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with stack.worker(step_seconds=0.005) as worker:
        running = stack.client.stream([70], max_tokens=300, token_ids=True)
        first_ids(running)
        faults = stack.load().num_link_faults
        for path in sockets:
            peer = context.socket(zmq.DEALER)
            peer.setsockopt(zmq.LINGER, 2000)
            peer.connect(f"ipc://{path}")
            for content in (os.urandom(1000), b"", pickled, old, strange):
                peer.send(content)
            peer.send_multipart([b"a", b"b", b"c"])
            peer.close()
            huge = context.socket(zmq.DEALER)
            huge.setsockopt(zmq.LINGER, 0)
            monitor = huge.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            huge.connect(f"ipc://{path}")
            huge.send(bytes(64_000_000))
            assert monitor.poll(10_000), "a message of 64 MB closes its connection"
            huge.disable_monitor()
            monitor.close()
            huge.close()
        wait_until(lambda: stack.load().num_link_faults >= faults + 8, "they were counted")
        assert running.join().outputs[0].token_ids == counted([70], 300)
        stack.probe()
        assert worker.num_joins == 1
    context.term()
    assert not marker.exists()
    told = [event for event in stack.scheduler.log() if event.get("level") == "warning" and "peer" in event]
    assert told
