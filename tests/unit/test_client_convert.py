"""Messages become values; what a newer server sends breaks nothing."""

import struct

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2
from pagewire.v1 import generation_pb2
from pagewire_client import convert, results
from pagewire_client.channel import health_number, health_request, service_config
from pagewire_client.errors import InternalError, ServerError, server_error, status_details
from pagewire_client.joining import Joiner


def test_logprobs_are_read_from_columns() -> None:
    columns = generation_pb2.Logprobs(
        width=2,
        token_ids=struct.pack("<4i", 5, 6, 7, 8),
        logprobs=struct.pack("<4f", -0.5, -1.0, -0.25, -2.0),
        ranks=struct.pack("<4i", 1, 2, 1, 9),
    )
    first, second = convert.logprobs(columns)
    assert first[1] == results.TokenLogprob(token_id=6, logprob=-1.0, rank=2)
    assert [entry.token_id for entry in second] == [7, 8]


def test_ragged_logprobs_lose_their_tail_only() -> None:
    columns = generation_pb2.Logprobs(
        width=1, token_ids=struct.pack("<2i", 5, 6) + b"x", logprobs=struct.pack("<1f", 0.0), ranks=bytes(8)
    )
    assert [token[0].token_id for token in convert.logprobs(columns)] == [5]
    assert convert.logprobs(generation_pb2.Logprobs(width=0, token_ids=bytes(4))) == ()


def test_an_unknown_event_is_left_out_and_an_unknown_reason_is_failed() -> None:
    assert convert.event(generation_pb2.GenerateResponse(request_id="r")) is None
    assert convert.finished(generation_pb2.Finished()).finish_reason is results.FinishReason.FAILED


def test_a_stop_string_is_the_stop_reason() -> None:
    message = generation_pb2.Finished(finish_reason=generation_pb2.FINISH_REASON_STOP, stop_string="END")
    assert convert.finished(message).stop_reason == "END"


def test_a_stream_without_its_summary_is_no_result() -> None:
    joiner = Joiner()
    joiner.add(results.Delta(index=0, text="a", token_ids=()))
    with pytest.raises(InternalError, match="ended early"):
        joiner.result("r")


def test_details_of_every_kind_are_decoded() -> None:
    packed = []
    for detail in (
        error_details_pb2.ErrorInfo(reason="QUEUE_FULL", domain="pagewire.dev", metadata={"depth": "9"}),
        error_details_pb2.RetryInfo(),
        error_details_pb2.DebugInfo(detail="ignored"),
    ):
        anything = AnyMessage()
        anything.Pack(detail)
        packed.append(anything)
    status = status_pb2.Status(code=8, message="full", details=packed)
    details = status_details([("x", "y"), ("grpc-status-details-bin", status.SerializeToString())])
    assert (details.reason, details.metadata, details.retry_delay_seconds) == ("QUEUE_FULL", {"depth": "9"}, 0.0)


@pytest.mark.parametrize("value", [b"\xff\xff", b"", "text"])
def test_broken_details_are_no_details(value: str | bytes) -> None:
    assert status_details([("grpc-status-details-bin", value)]).reason == ""
    assert status_details(None).field_violations == ()


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_every_code_has_an_error(code: grpc.StatusCode) -> None:
    error = server_error(code, "text")
    assert isinstance(error, ServerError)
    assert str(error) == f"{code.name}: text"


def test_health_bytes_are_those_of_the_real_messages() -> None:
    for service in ("", "pagewire.v1.GenerationService"):
        assert health_request(service) == health_pb2.HealthCheckRequest(service=service).SerializeToString()
    for number in range(4):
        assert health_number(health_pb2.HealthCheckResponse(status=number).SerializeToString()) == number


def test_generation_retries_are_few_and_only_for_unavailable() -> None:
    config = service_config()
    assert '"maxAttempts": 3' in config
    assert config.count('"retryableStatusCodes": ["UNAVAILABLE"]') == config.count("retryPolicy")
    assert "hedging" not in config
    assert "retryThrottling" in config
