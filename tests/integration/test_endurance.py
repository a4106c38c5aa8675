"""What wears servers out: bytes that are no calls, streams dropped by the thousand, readers that do not read."""

import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
import psutil
import pytest
from pagewire.v1 import generation_pb2 as pb
from pagewire.v1 import generation_pb2_grpc
from pagewire_client import Client, DeadlineExceededError, InvalidRequestError
from support.conditions import wait_until
from support.http2_frames import attacks
from support.scripted_rows import Limits
from support.scripted_stack import ScriptedStack, counted, first_ids

LIMITS = Limits(num_pages=64, max_num_seqs=8, max_model_len=4096)
GENERATE = b"/pagewire.v1.GenerationService/Generate"
SOAK_SECONDS = 600.0
SOAK_STREAMS = 256


@pytest.fixture(scope="module")
def stack() -> Iterator[ScriptedStack]:
    with ScriptedStack("--slow-reader-seconds", "1") as running:
        with running.worker(LIMITS):  # its limits are the model's
            pass
        yield running


@dataclass(frozen=True)
class Held:
    """What the server's processes hold."""

    pids: tuple[int, ...]
    num_descriptors: int
    num_threads: int
    num_bytes: int


def held(stack: ScriptedStack) -> Held:
    scheduler = psutil.Process(stack.scheduler.process.pid)
    family = [scheduler, *scheduler.children(recursive=True)]
    return Held(
        pids=tuple(each.pid for each in family),
        num_descriptors=sum(each.num_fds() for each in family),
        num_threads=sum(each.num_threads() for each in family),
        num_bytes=sum(each.memory_info().rss for each in family),
    )


def wait_released(stack: ScriptedStack, before: Held, *, spare: int = 3) -> None:
    """The same processes with no more descriptors and threads than before, but for connections of ours."""
    wait_until(lambda: held(stack).num_descriptors <= before.num_descriptors + spare, "descriptors are closed", 20)
    after = held(stack)
    assert after.pids == before.pids
    assert after.num_threads <= before.num_threads + spare


def test_bytes_of_any_kind_on_the_public_port(stack: ScriptedStack) -> None:
    request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1, 2]), stop={"max_tokens": 3}).SerializeToString()
    with stack.worker(LIMITS):
        stack.probe()
        before = held(stack)
        running = stack.client.stream([70], max_tokens=900, token_ids=True)
        first_ids(running)
        for name, content in attacks(GENERATE, request, seed=7):
            with socket.create_connection(("127.0.0.1", stack.scheduler.port), timeout=10) as link:
                try:
                    link.sendall(content)
                    link.shutdown(socket.SHUT_WR)
                    link.settimeout(0.05)
                    link.recv(4096)
                except OSError:
                    pass  # it hung up first, or says nothing
            assert held(stack).pids == before.pids, name
        assert running.join().outputs[0].token_ids == counted([70], 900)
        wait_released(stack, before)
        stack.probe()
        stack.wait_idle()


def test_lng_01_a_thousand_dropped_streams_and_a_thousand_of_all_kinds(stack: ScriptedStack) -> None:
    with stack.worker(LIMITS), ThreadPoolExecutor(16) as pool:
        clients = [stack.connect() for _ in range(8)]
        list(pool.map(lambda number: one(clients[number % 8], number, "drop"), range(64)))
        stack.wait_idle(20)
        before, load = held(stack), stack.load()
        list(pool.map(lambda number: one(clients[number % 8], number, "drop"), range(1000)))
        kinds = ["drop", "finish", "invalid", "deadline", "once"]
        list(pool.map(lambda number: one(clients[number % 8], number, kinds[number % 5]), range(1000)))
        assert stack.wait_idle(20).num_pages == load.num_pages
        wait_released(stack, before)
        assert held(stack).num_bytes < before.num_bytes + 64 * 2**20
        stack.probe()


def one(client: Client, number: int, kind: str) -> None:
    """A request that ends in one of many ways, checked as far as it goes."""
    draw, prompt = random.Random(number), [40, number % 251, number % 7]
    if kind == "drop":
        with client.stream(prompt, max_tokens=50, token_ids=True) as stream:
            wanted = draw.choice((0, 0, 1, 3, 10, 49))
            ids = first_ids(stream, wanted) if wanted else ()
        assert ids == counted(prompt, len(ids))
    elif kind == "finish":
        assert client.stream(prompt, max_tokens=20, token_ids=True).join().outputs[0].token_ids == counted(prompt, 20)
    elif kind == "once":
        assert client.generate(prompt, max_tokens=20, token_ids=True).outputs[0].token_ids == counted(prompt, 20)
    elif kind == "invalid":
        with pytest.raises(InvalidRequestError):
            client.generate(prompt, temperature=-1.0)
    else:
        with pytest.raises(DeadlineExceededError):
            client.generate(prompt, max_tokens=4000, timeout=draw.choice((0.001, 0.03)))


def test_readers_that_do_not_read_cost_little_and_are_cut_off(stack: ScriptedStack) -> None:
    """Thirty of them: the front keeps at most what the limit says for each, and gives it back."""
    options = (
        ("grpc.http2.lookahead_bytes", 4096),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.use_local_subchannel_pool", 1),
    )
    with stack.worker(Limits(num_pages=4096, max_num_seqs=64, max_model_len=4096)):
        before = held(stack)
        with grpc.insecure_channel(stack.scheduler.target, options=options) as channel:
            stub = generation_pb2_grpc.GenerationServiceStub(channel)
            output = pb.OutputOptions(token_ids=True, logprobs=20)
            calls = [
                stub.Generate(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[5, n]), output=output)) for n in range(30)
            ]
            for call in calls:
                next(call)
            most = 0

            def are_over() -> bool:
                nonlocal most
                most = max(most, held(stack).num_bytes)
                load = stack.load()
                return load.num_requests_running + load.num_requests_waiting == 0

            wait_until(are_over, "all were cut off", 30)
            assert most - before.num_bytes < 30 * 2 * 2**20 + 32 * 2**20
            codes = [code_of(call) for call in calls]
            assert set(codes) <= {grpc.StatusCode.RESOURCE_EXHAUSTED}
        stack.probe()
        stack.wait_idle()


def code_of(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as failed:
        for _ in call:
            pass
    return failed.value.code()


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS + 120)
def test_256_streams_at_once_for_ten_minutes() -> None:
    """Memory, descriptors and the ledger of pages are as flat at the end as after the first minute."""
    limits = Limits(num_pages=2048, max_num_seqs=128, max_num_batched_tokens=512, max_model_len=2048)
    with ScriptedStack("--front-processes", "2") as stack, stack.worker(limits, step_seconds=0.01):
        until = time.monotonic() + SOAK_SECONDS
        clients = [stack.connect() for _ in range(32)]

        def run(number: int) -> int:
            turns = 0
            while time.monotonic() < until:
                kind = ("finish", "drop", "finish", "once")[turns % 4]
                one(clients[number % 32], number + turns, kind)
                turns += 1
            return turns

        with ThreadPoolExecutor(SOAK_STREAMS) as pool:
            calls = [pool.submit(run, number) for number in range(SOAK_STREAMS)]
            wait_until(lambda: time.monotonic() > until - SOAK_SECONDS * 0.8, "it is warm", SOAK_SECONDS)
            warm = held(stack)
            turns = [call.result() for call in calls]
        assert min(turns) > 0
        stack.wait_idle(30)
        after = held(stack)
        assert after.pids == warm.pids
        assert after.num_descriptors <= warm.num_descriptors + 3
        assert after.num_bytes < warm.num_bytes * 1.1 + 16 * 2**20
        stack.probe()
