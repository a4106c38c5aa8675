"""Traces, load reports and channelz through the whole product."""

import base64
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc
from pagewire.v1 import generation_pb2, generation_pb2_grpc
from pagewire_client import InvalidRequestError
from support.conditions import wait_until
from support.scripted_rows import Limits
from support.scripted_stack import PROBE, ScriptedStack, first_ids
from support.trace_collector import TraceCollector, attributes_of
from xds.data.orca.v3 import orca_load_report_pb2
from xds.service.orca.v3 import orca_pb2

TRAILER = "endpoint-load-metrics-bin"
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
REPORTED = {"kv_cache_usage_perc", "num_requests_running", "num_requests_waiting"}
SECRET = "a-word-nobody-may-read"


@pytest.fixture(scope="module")
def collector() -> Iterator[TraceCollector]:
    with TraceCollector() as running:
        yield running


@pytest.fixture(scope="module")
def stack(collector: TraceCollector) -> Iterator[ScriptedStack]:
    with ScriptedStack("--otlp-endpoint", collector.endpoint) as running:
        yield running


def test_one_span_a_request_with_its_events(stack: ScriptedStack, collector: TraceCollector) -> None:
    with stack.worker(Limits()), grpc.insecure_channel(stack.scheduler.target) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        request = generation_pb2.GenerateRequest(
            token_ids={"ids": PROBE}, request_id="traced", model="toy", stop={"max_tokens": 9, "stop": [SECRET]}
        )
        metadata = (("traceparent", f"00-{TRACE_ID}-b7ad6b7169203331-01"),)
        *_, last = stub.Generate(request, metadata=metadata, timeout=10)
        with pytest.raises(InvalidRequestError):
            stack.client.generate(SECRET, temperature=-3)
        left = stack.client.stream(PROBE + PROBE, max_tokens=400, token_ids=True, n=2, seed=2**64 - 1)
        first_ids(left)
        left.cancel()
        done = collector.wait("gen_ai.response.id", "traced")
        refused = collector.wait("error.type", "INVALID_FIELD")
        gone = collector.wait("gen_ai.request.seed", str(2**64 - 1))
    assert (done.name, done.trace_id.hex(), done.kind) == ("text_completion toy", TRACE_ID, done.SPAN_KIND_SERVER)
    assert done.parent_span_id.hex() == "b7ad6b7169203331"
    assert [event.name for event in done.events] == ["queued", "admitted", "first token", "finished"]
    assert [event.time_unix_nano for event in done.events] == sorted(event.time_unix_nano for event in done.events)
    found = attributes_of(done)
    usage = last.summary.usage
    assert found["gen_ai.response.id"] == "traced"
    assert found["gen_ai.request.model"] == found["gen_ai.response.model"] == "toy"
    assert found["gen_ai.request.max_tokens"] == 9
    assert found["gen_ai.usage.input_tokens"] == usage.prompt_tokens == 3
    assert found["gen_ai.usage.output_tokens"] == usage.output_tokens == 6
    assert found["gen_ai.response.finish_reasons"] == ["stop"]
    assert attributes_of(refused)["error.type"] == "INVALID_FIELD"
    assert refused.status.code == refused.status.STATUS_CODE_ERROR
    assert attributes_of(gone)["error.type"] == "CANCELLED"
    assert [SECRET in str(span) for span in collector.spans] == [False] * len(collector.spans)


def test_progress_events_come_only_to_callers_that_ask(stack: ScriptedStack) -> None:
    with stack.worker(Limits()), grpc.insecure_channel(stack.scheduler.target) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        request = generation_pb2.GenerateRequest(token_ids={"ids": PROBE})
        kinds = {event.WhichOneof("event") for event in stub.Generate(request, timeout=10)}
    assert kinds == {"delta", "finished", "summary"}


def test_answers_carry_the_load_for_balancers(stack: ScriptedStack, tmp_path: Path) -> None:
    """Clients of gRPC's core keep this trailer for their balancers: only one that knows nothing of it shows it."""
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    message = generation_pb2.GenerateOnceRequest(request={"token_ids": {"ids": PROBE}}).SerializeToString()
    (tmp_path / "body").write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
    headers = ("content-type: application/grpc", "te: trailers")
    address = f"http://{stack.scheduler.target}/pagewire.v1.GenerationService/GenerateOnce"
    command = [
        "curl",
        "-sv",
        "--http2-prior-knowledge",
        "--data-binary",
        f"@{tmp_path}/body",
        "-o",
        "/dev/null",
        address,
    ]
    command += [word for header in headers for word in ("-H", header)]

    def told() -> str | None:
        heard = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stderr
        return next((line.split(": ")[1] for line in heard.splitlines() if TRAILER in line), None)

    with stack.worker(Limits()):
        wait_until(told, "a report")
        content = str(told())
    report = orca_load_report_pb2.OrcaLoadReport.FromString(base64.b64decode(content + "=" * (-len(content) % 4)))
    assert set(report.named_metrics) == REPORTED


def test_the_open_service_streams_the_load(stack: ScriptedStack) -> None:
    with stack.worker(Limits(num_pages=8)), grpc.insecure_channel(stack.scheduler.target) as channel:
        running = stack.client.stream([9, 9], max_tokens=100, token_ids=True)
        first_ids(running)
        method = channel.unary_stream(
            "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics",
            request_serializer=orca_pb2.OrcaLoadReportRequest.SerializeToString,
            response_deserializer=orca_load_report_pb2.OrcaLoadReport.FromString,
        )
        reports = method(orca_pb2.OrcaLoadReportRequest(report_interval=Duration(nanos=1000)), timeout=10)
        seen = [next(reports), next(reports)]
        reports.cancel()
        running.cancel()
    assert all(set(report.named_metrics) == REPORTED and 0 <= report.mem_utilization <= 1 for report in seen)


def test_channelz_answers_on_the_internal_port_alone(stack: ScriptedStack) -> None:
    request = channelz_pb2.GetServersRequest()
    with grpc.insecure_channel(stack.scheduler.internal_target) as channel:
        servers = channelz_pb2_grpc.ChannelzStub(channel).GetServers(request, timeout=10).server
    assert len(servers) >= 2
    assert sum(server.data.calls_started for server in servers) > 0
    with grpc.insecure_channel(stack.scheduler.target) as channel, pytest.raises(grpc.RpcError) as refused:
        channelz_pb2_grpc.ChannelzStub(channel).GetServers(request, timeout=10)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_collector_that_is_gone_costs_spans_alone() -> None:
    with ScriptedStack("--otlp-endpoint", "http://127.0.0.1:9") as alone:
        with alone.worker(Limits()):
            alone.probe()
        assert alone.scheduler.stop() == 0


def test_logs_tell_events_and_ids_never_prompts(stack: ScriptedStack) -> None:
    with stack.worker(Limits()):
        for text in (SECRET, SECRET * 1000):
            with pytest.raises(InvalidRequestError):
                stack.client.generate(text, temperature=-1)
        with pytest.raises(InvalidRequestError):
            stack.client.chat([{"role": SECRET, "content": SECRET}], max_tokens=10**9, top_p=9)
        stack.probe()
    assert SECRET not in stack.scheduler.log_path.read_text()
    assert {"listening", "worker_joined"} <= {event["event"] for event in stack.scheduler.log()}
