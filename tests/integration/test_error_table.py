"""Every row of the table of errors in docs/api.md, through the whole product, with its code and its details."""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from pagewire.v1 import admin_pb2, admin_pb2_grpc, generation_pb2_grpc
from pagewire.v1 import generation_pb2 as pb
from pagewire_client import HealthStatus
from support.conditions import wait_until
from support.front_stack import details_of
from support.scrape import scrape
from support.scripted_rows import Limits
from support.scripted_stack import ScriptedStack, first_ids
from support.scripted_worker import ScriptedWorker

CODE = grpc.StatusCode
LIMITS = Limits(num_pages=64, max_num_seqs=1, max_model_len=2048)


@dataclass(frozen=True)
class Ending:
    """How a call failed."""

    code: grpc.StatusCode
    reason: str
    metadata: dict[str, str]
    retry_ms: int
    pushback_ms: int
    fields: list[str]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedStack]:
    names = ("acme", "small", "paced", "other")
    tokens = "".join(f"- {{sha256: {hashlib.sha256(n.encode()).hexdigest()}, tenant: {n}}}\n" for n in names)
    path = tmp_path_factory.mktemp("access") / "tokens.yaml"
    path.write_text(
        f"tokens:\n{tokens}tenants:\n  small: {{max_concurrent_requests: 1}}\n  paced: {{requests_per_minute: 6}}\n"
    )
    flags = ("--auth-tokens-file", str(path), "--max-queued-requests", "2", "--worker-lost-seconds", "0.2")
    with ScriptedStack(*flags, "--slow-reader-seconds", "0.3", token="acme") as running:
        with running.worker(LIMITS):  # its limits are the model's
            pass
        yield running


@pytest.fixture
def worker(stack: ScriptedStack) -> Iterator[ScriptedWorker]:
    with stack.worker(LIMITS, nan=lambda sampled: sampled.prompt == (7, 7)) as running:
        yield running


@contextmanager
def calls(stack: ScriptedStack, *options: Any) -> Iterator[Any]:
    with grpc.insecure_channel(stack.scheduler.target, options=options) as channel:
        yield generation_pb2_grpc.GenerationServiceStub(channel)


def ending(call: Any) -> Ending:
    """Reads a call to its end, which must be an error."""
    with pytest.raises(grpc.RpcError) as failed:
        for _ in call:
            pass
    error: Any = failed.value
    details, trailers = details_of(error), dict(error.trailing_metadata())
    info, bad = details["ErrorInfo"], details.get("BadRequest")
    assert info.domain == "pagewire.dev"
    retry = details["RetryInfo"].retry_delay.ToMilliseconds() if "RetryInfo" in details else 0
    fields = [violation.field for violation in bad.field_violations] if bad is not None else []
    pushback = int(trailers.get("grpc-retry-pushback-ms", 0))
    return Ending(error.code(), info.reason, dict(info.metadata), retry, pushback, fields)


def generate(
    stack: ScriptedStack, prompt: list[int], *, token: str = "acme", timeout: float = 10, **fields: Any
) -> Ending:
    """How a Generate call fails."""
    with calls(stack) as stub:
        return ending(stub.Generate(request(prompt, **fields), timeout=timeout, metadata=bearer(token)))


def request(prompt: list[int], **fields: Any) -> Any:
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=prompt), **fields)


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


@contextmanager
def running(stack: ScriptedStack, number: int = 1, token: str | None = None) -> Iterator[list[Any]]:
    """Streams of a tenant: one runs, the others wait."""
    client = stack.connect(token)
    streams = [client.stream([20], max_tokens=1500, token_ids=True)]
    try:
        first_ids(streams[0])
        streams += [client.stream([20, index], max_tokens=1500) for index in range(1, number)]
        wait_until(lambda: stack.load().num_requests_waiting == number - 1, "the others wait")
        yield streams
    finally:
        for stream in streams:
            stream.cancel()
        stack.wait_idle()


def test_invalid_fields_are_told_all_at_once(stack: ScriptedStack, worker: ScriptedWorker) -> None:
    wrong = generate(
        stack,
        [5, 5000],
        sampling=pb.SamplingOptions(temperature=-1, top_p=2),
        stop=pb.StopOptions(stop=[""]),
        output=pb.OutputOptions(n=99),
    )
    assert (wrong.code, wrong.reason, wrong.retry_ms) == (CODE.INVALID_ARGUMENT, "INVALID_FIELD", 0)
    assert set(wrong.fields) == {
        *("token_ids.ids[1]", "sampling.temperature", "sampling.top_p", "stop.stop[0]", "output.n")
    }
    too_long, too_large = generate(stack, [5] * 3000), generate(stack, [5] * 1500)
    assert (too_long.code, too_long.fields) == (CODE.INVALID_ARGUMENT, ["token_ids"])
    assert (too_large.code, too_large.fields) == (CODE.INVALID_ARGUMENT, ["token_ids"])


def test_what_is_not_there(stack: ScriptedStack, worker: ScriptedWorker) -> None:
    worker.options.step_seconds = 0.01
    model = generate(stack, [5], model="another")
    assert (model.code, model.reason) == (CODE.NOT_FOUND, "MODEL_NOT_FOUND")
    with calls(stack) as stub, running(stack):
        mine = stack.connect().stream([6], request_id="mine", max_tokens=1500)
        wait_until(lambda: stack.load().num_requests_waiting == 1, "it waits")
        get, cancel = pb.GetRequestRequest(request_id="mine"), pb.CancelRequestRequest(request_id="mine")
        resume = pb.ResumeGenerateRequest(request_id="mine")
        for call in (
            lambda: [stub.GetRequest(get, metadata=bearer("other"))],
            lambda: [stub.CancelRequest(cancel, metadata=bearer("other"))],
            lambda: stub.ResumeGenerate(resume, metadata=bearer("other")),
            lambda: [stub.GetRequest(pb.GetRequestRequest(request_id="none"), metadata=bearer("acme"))],
        ):
            missing = ending(_calling(call))
            assert (missing.code, missing.reason) == (CODE.NOT_FOUND, "REQUEST_NOT_FOUND")
        assert stub.GetRequest(get, metadata=bearer("acme")).request_id == "mine"
        # The same id of another tenant is another request; of the same tenant it is taken.
        twice = generate(stack, [6], request_id="mine")
        assert (twice.code, twice.reason) == (CODE.ALREADY_EXISTS, "REQUEST_EXISTS")
        other = stack.connect("other").stream([6], request_id="mine", max_tokens=4)
        wait_until(lambda: stack.load().num_requests_waiting == 2, "it waits too")
        other.cancel()
        mine.cancel()


def _calling(call: Any) -> Iterator[Any]:
    """A call that fails when it is made, as one that fails when it is read."""
    yield from call()


def test_queue_limits(stack: ScriptedStack, worker: ScriptedWorker) -> None:
    worker.options.step_seconds = 0.01
    with running(stack, 3):
        full = generate(stack, [6])
    assert (full.code, full.reason) == (CODE.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert full.metadata["queue_depth"] == "2"
    assert 0 < full.retry_ms == full.pushback_ms


def test_quotas_of_a_tenant(stack: ScriptedStack, worker: ScriptedWorker) -> None:
    worker.options.step_seconds = 0.01
    with running(stack, 1, "small"):
        second = generate(stack, [6], token="small")
        assert (second.code, second.reason) == (CODE.RESOURCE_EXHAUSTED, "TENANT_QUOTA")
        assert second.metadata == {"queue_depth": "0"}
        assert 0 < second.retry_ms == second.pushback_ms
    worker.options.step_seconds = 0.0
    small, paced = stack.connect("small"), stack.connect("paced")
    assert small.generate([6], max_tokens=1).outputs
    assert paced.generate([6], max_tokens=1).outputs
    again = generate(stack, [6], token="paced")
    assert (again.code, again.reason) == (CODE.RESOURCE_EXHAUSTED, "TENANT_QUOTA")
    assert 5000 < again.retry_ms == again.pushback_ms <= 10_001


def test_a_slow_reader(stack: ScriptedStack, worker: ScriptedWorker) -> None:
    narrow = (("grpc.http2.lookahead_bytes", 4096), ("grpc.http2.bdp_probe", 0))

    def num_stalls() -> float:
        return scrape(stack.scheduler.metrics_port).total("stream_stall_seconds_count")

    before = num_stalls()
    with calls(stack, *narrow) as stub:
        output = pb.OutputOptions(token_ids=True, logprobs=20)
        call = stub.Generate(request([5], output=output, stop={"max_tokens": 900}), metadata=bearer("acme"))
        next(call)
        wait_until(lambda: num_stalls() > before, "a write was given up", 20)  # nothing is read meanwhile
        slow = ending(call)
    assert (slow.code, slow.reason) == (CODE.RESOURCE_EXHAUSTED, "SLOW_READER")
    assert 0 < slow.retry_ms == slow.pushback_ms
    stack.wait_idle()


def test_deadlines(stack: ScriptedStack, worker: ScriptedWorker) -> None:
    worker.options.step_seconds = 0.01
    with running(stack):
        waiting = generate(stack, [6], timeout=0.3)
        assert (waiting.code, waiting.reason) == (CODE.DEADLINE_EXCEEDED, "DEADLINE")
        assert waiting.metadata["stage"] == "queue"
    decoding = generate(stack, [6], timeout=1.0, stop=pb.StopOptions(max_tokens=1000))
    assert (decoding.code, decoding.metadata["stage"]) == (CODE.DEADLINE_EXCEEDED, "decode")
    assert int(decoding.metadata["output_tokens"]) > 0
    hopeless = generate(stack, [6] * 1000, timeout=0.06)
    assert (hopeless.code, hopeless.reason) == (CODE.DEADLINE_EXCEEDED, "DEADLINE")
    assert hopeless.metadata["stage"] in ("queue", "prefill")


def test_credentials(stack: ScriptedStack, worker: ScriptedWorker) -> None:
    with calls(stack) as stub, grpc.insecure_channel(stack.scheduler.target) as channel:
        nobody = ending(stub.Generate(request([5])))
        assert (nobody.code, nobody.reason) == (CODE.UNAUTHENTICATED, "NO_CREDENTIALS")
        stranger = generate(stack, [5], token="unknown")
        assert (stranger.code, stranger.reason) == (CODE.UNAUTHENTICATED, "BAD_CREDENTIALS")
        admin = admin_pb2_grpc.AdminServiceStub(channel)
        denied = ending(_calling(lambda: [admin.GetLoad(admin_pb2.GetLoadRequest(), metadata=bearer("acme"))]))
        assert (denied.code, denied.reason) == (CODE.PERMISSION_DENIED, "NOT_ALLOWED")


def test_what_is_not_a_number_fails_alone(stack: ScriptedStack, worker: ScriptedWorker) -> None:
    with ThreadPoolExecutor(2) as pool:
        neighbour = pool.submit(stack.connect().generate, [8], max_tokens=50)
        broken = generate(stack, [7, 7])
        assert (broken.code, broken.reason) == (CODE.INTERNAL, "NAN_LOGITS")
        assert len(neighbour.result().outputs) == 1


def test_nobody_can_serve_it(stack: ScriptedStack) -> None:
    none = generate(stack, [5])
    assert (none.code, none.reason) == (CODE.UNAVAILABLE, "NO_WORKER")
    assert 0 < none.retry_ms == none.pushback_ms
    with stack.worker(LIMITS) as worker:
        stream = stack.connect().stream([5], request_id="lost", max_tokens=1500, token_ids=True)
        first_ids(stream)
        with calls(stack) as stub:
            lost = stub.Generate(request([6]), metadata=bearer("acme"))
            wait_until(lambda: stack.load().num_requests_waiting == 1, "it waits")
            worker.stop()
            gone = ending(lost)
        assert (gone.code, gone.reason) == (CODE.UNAVAILABLE, "WORKER_LOST")
        assert 0 < gone.retry_ms == gone.pushback_ms
        stream.cancel()


def test_a_draining_server() -> None:
    slow = {"limits": LIMITS, "step_seconds": 0.01}
    with ScriptedStack() as stack, ScriptedWorker(stack.scheduler.worker_endpoint, script=stack.script, **slow):
        stack.wait_workers(1)
        running = stack.client.stream([5], max_tokens=50, token_ids=True)
        first_ids(running)
        stack.scheduler.process.terminate()
        wait_until(lambda: stack.health() is HealthStatus.NOT_SERVING, "health says it")
        refused = generate(stack, [6])
        assert (refused.code, refused.reason) == (CODE.UNAVAILABLE, "DRAINING")
        assert 0 < refused.retry_ms == refused.pushback_ms
        assert running.join().usage.output_tokens == 50
        assert stack.scheduler.process.wait(10) == 0
