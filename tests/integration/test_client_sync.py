"""The synchronous client against a gRPC server."""

import gc
from collections.abc import Iterator

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from pagewire.v1 import generation_pb2 as pb
from pagewire_client import (
    Client,
    Delta,
    Finished,
    FinishReason,
    HealthStatus,
    InternalError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    RequestCancelledError,
    Summary,
    UnavailableError,
)
from pagewire_client.errors import DeadlineExceededError
from pagewire_client.many import FIRST_BATCH_BYTES
from pagewire_client.options import text_request
from support.fake_server import Failure, FakeServer


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as fake:
        yield fake


@pytest.fixture
def client(server: FakeServer) -> Iterator[Client]:
    with Client(server.target) as opened:
        yield opened


def test_generate_returns_the_joined_outputs(client: Client) -> None:
    result = client.generate("one two three", n=2, token_ids=True, seed=9)
    assert result.text == "ONE TWO THREE"
    assert [output.text for output in result.outputs] == ["ONE TWO THREE"] * 2
    assert result.outputs[0].token_ids == (100, 101, 102)
    assert result.outputs[0].finish_reason is FinishReason.STOP
    assert result.outputs[0].stop_reason == 2
    assert result.outputs[1].finish_reason is FinishReason.LENGTH
    assert result.outputs[1].stop_reason is None
    assert result.usage.cached_tokens == 32
    assert result.summary.seed == 9


def test_a_joined_stream_equals_generate(client: Client) -> None:
    options = {"n": 3, "token_ids": True, "request_id": "r1", "progress_events": True}
    stream = client.stream("one two three", **options)  # type: ignore[arg-type]
    first = next(stream)
    assert type(first).__name__ == "Queued"
    assert stream.join() == client.generate("one two three", **options)  # type: ignore[arg-type]


def test_a_stream_yields_deltas_then_endings_then_the_summary(client: Client) -> None:
    events = list(client.stream("a b"))
    assert [type(event) for event in events] == [Delta, Delta, Finished, Summary]
    assert "".join(event.text for event in events if isinstance(event, Delta)) == "A B"


def test_progress_events_come_only_if_asked_for(client: Client) -> None:
    names = [type(event).__name__ for event in client.stream("a", progress_events=True)]
    assert names[:5] == ["Queued", "Admitted", "Prefill", "Preempted", "Heartbeat"]


def test_chat_sends_messages_and_their_options(client: Client, server: FakeServer) -> None:
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
    assert client.chat(messages, add_generation_prompt=False, template_variables={"tools": [1]}).text == "HI"
    sent = server.requests[0].chat
    assert [(message.role, message.content) for message in sent.messages] == [("system", "be kind"), ("user", "hi")]
    assert sent.add_generation_prompt is False
    assert sent.template_variables["tools"] == "[1]"
    assert client.stream_chat(messages).join().text == "HI"


def test_token_ids_are_a_prompt(client: Client) -> None:
    assert client.generate([5, 6]).text == "5 6"


def test_reads(client: Client, server: FakeServer) -> None:
    assert client.tokenize("hi", add_special_tokens=False) == (104, 105)
    assert server.tokenize_requests[0].prompt_options.add_special_tokens is False
    assert client.tokenize([{"role": "user", "content": "a"}]) == (97,)
    assert client.detokenize([104, 105]) == "hi"
    assert client.models()[0].capabilities == ("chat", "seed")
    assert client.model().max_model_len == 2048
    assert client.load().num_free_pages == 90
    with pytest.raises(NotFoundError, match="no model 'other'"):
        client.model("other")


def test_load_asks_the_internal_port(server: FakeServer) -> None:
    with Client("127.0.0.1:1", internal_target=server.target) as client:
        assert client.load().num_pages == 100


def test_health(client: Client, server: FakeServer) -> None:
    assert client.health() is HealthStatus.SERVING
    server.set_serving(False)
    assert client.health() is HealthStatus.NOT_SERVING
    with pytest.raises(NotFoundError):
        client.health("pagewire.v1.Nothing")


def test_a_refusal_names_every_field(client: Client, server: FakeServer) -> None:
    violations = [
        error_details_pb2.BadRequest.FieldViolation(field="sampling.top_p", description="must be in (0, 1]"),
        error_details_pb2.BadRequest.FieldViolation(field="output.n", description="at most 8"),
    ]
    details = (
        error_details_pb2.BadRequest(field_violations=violations),
        error_details_pb2.ErrorInfo(reason="INVALID_FIELD", domain="pagewire.dev", metadata={"a": "b"}),
    )
    server.failures.append(Failure(code=grpc.StatusCode.INVALID_ARGUMENT, details=details))
    with pytest.raises(InvalidRequestError) as caught:
        client.generate("x")
    error = caught.value
    assert [violation.field for violation in error.field_violations] == ["sampling.top_p", "output.n"]
    assert (error.reason, error.metadata) == ("INVALID_FIELD", {"a": "b"})
    assert "output.n: at most 8" in str(error)


def test_overload_carries_the_retry_delay_and_is_not_retried(client: Client, server: FakeServer) -> None:
    retry = error_details_pb2.RetryInfo(retry_delay=Duration(seconds=1, nanos=500_000_000))
    server.failures.append(Failure(code=grpc.StatusCode.RESOURCE_EXHAUSTED, details=(retry,)))
    with pytest.raises(OverloadedError) as caught:
        client.stream("x").join()
    assert caught.value.retry_delay_seconds == 1.5
    assert server.num_calls == 1


@pytest.mark.parametrize("streamed", [False, True])
def test_unavailable_before_the_first_message_is_retried(client: Client, server: FakeServer, streamed: bool) -> None:
    server.failures.extend([Failure(code=grpc.StatusCode.UNAVAILABLE)] * 2)
    result = client.stream("again").join() if streamed else client.generate("again")
    assert result.text == "AGAIN"
    assert server.num_calls == 3


def test_unavailable_again_and_again_is_an_error(client: Client, server: FakeServer) -> None:
    server.failures.extend([Failure(code=grpc.StatusCode.UNAVAILABLE, message="no worker")] * 5)
    with pytest.raises(UnavailableError, match="no worker"):
        client.generate("x")
    assert server.num_calls == 3


def test_unavailable_after_the_first_message_is_not_retried(client: Client, server: FakeServer) -> None:
    server.failures.append(Failure(code=grpc.StatusCode.UNAVAILABLE, after_messages=1))
    stream = client.stream("a b c")
    assert isinstance(next(stream), Delta)
    with pytest.raises(UnavailableError):
        stream.join()
    assert server.num_calls == 1


def test_internal_errors_are_not_retried(client: Client, server: FakeServer) -> None:
    server.failures.append(Failure(code=grpc.StatusCode.UNKNOWN))
    with pytest.raises(InternalError):
        client.generate("x")
    assert server.num_calls == 1


def test_the_deadline_ends_a_call(client: Client, server: FakeServer) -> None:
    server.hold = True
    with pytest.raises(DeadlineExceededError):
        client.stream("x", timeout=0.2).join()
    assert server.cancelled.wait(10)


def test_a_clients_default_deadline_holds_for_generate(server: FakeServer) -> None:
    server.hold = True
    with Client(server.target, timeout=0.2) as client, pytest.raises(DeadlineExceededError):
        client.generate("x")


def test_cancelling_a_stream_reaches_the_server(client: Client, server: FakeServer) -> None:
    server.hold = True
    stream = client.stream("x y")
    next(stream)
    stream.cancel()
    assert server.cancelled.wait(10)
    with pytest.raises(RequestCancelledError):
        stream.join()


def test_leaving_the_block_cancels(client: Client, server: FakeServer) -> None:
    server.hold = True
    with client.stream("x y") as stream:
        next(stream)
    assert server.cancelled.wait(10)


def test_dropping_a_stream_cancels(client: Client, server: FakeServer) -> None:
    server.hold = True
    stream = client.stream("x y")
    next(stream)
    del stream
    gc.collect()
    assert server.cancelled.wait(10)


def test_cancel_from_elsewhere(client: Client, server: FakeServer) -> None:
    client.cancel("known")
    with pytest.raises(NotFoundError):
        client.cancel("unknown")
    assert server.cancelled_ids == ["known", "unknown"]


def long_requests() -> Iterator[pb.GenerateRequest]:
    """Each as large as a first message."""
    for place in range(4):
        yield text_request("x" * FIRST_BATCH_BYTES, {"request_id": str(place)})


def test_later_requests_are_made_while_the_first_run(client: Client, server: FakeServer) -> None:
    def made() -> Iterator[pb.GenerateRequest]:
        for place, request in enumerate(long_requests()):
            assert place < 3 or server.called.wait(10)
            yield request

    assert sorted(name for name, _ in client.run_many(made(), at_hand=True)) == ["0", "1", "2", "3"]


@pytest.mark.parametrize("at_hand", [True, False])
def test_what_the_requests_raise_is_raised_and_ends_the_others(
    client: Client, server: FakeServer, at_hand: bool
) -> None:
    def made() -> Iterator[pb.GenerateRequest]:
        yield from long_requests()
        assert server.called.wait(10)
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        list(client.run_many(made(), at_hand=at_hand))
    assert server.cancelled.wait(10)


def test_nothing_is_sent_if_the_first_request_cannot_be_made(client: Client, server: FakeServer) -> None:
    def made() -> Iterator[pb.GenerateRequest]:
        yield text_request("x", {"request_id": "1"})
        raise LookupError

    with pytest.raises(LookupError):
        list(client.run_many(made(), at_hand=True))
    assert not server.called.is_set()


def test_the_token_and_metadata_are_sent(server: FakeServer) -> None:
    with Client(server.target, token="secret", metadata=[("x-request-id", "42")]) as client:
        client.generate("x")
    assert server.metadata[0]["authorization"] == "Bearer secret"
    assert server.metadata[0]["x-request-id"] == "42"


def test_no_server_is_unavailable() -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(UnavailableError):
        client.health(timeout=5)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("at_hand", [True, False])
def test_what_breaks_off_the_requests_is_raised(client: Client, error: type[BaseException], at_hand: bool) -> None:
    """Also what is no Exception, by which a thread of gRPC would die and leave the call open."""

    def requests() -> Iterator[pb.GenerateRequest]:
        for place in range(3):
            yield pb.GenerateRequest(request_id=str(place), text="x" * 9000)
        raise error

    with pytest.raises(error):
        list(client.run_many(requests(), at_hand=at_hand, timeout=10))
