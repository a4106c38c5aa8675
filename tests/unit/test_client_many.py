"""How requests travel over GenerateMany: what goes into one message, and that all outcomes are told."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from pagewire.v1 import generation_pb2 as pb
from pagewire_client import InternalError, ServerError, many
from pagewire_client.many import Many


class Stream:
    """Answers each request of its messages with an ending, and half of them with a failure."""

    def __init__(self, messages: Iterable[pb.GenerateManyRequest], seen: list[list[str]]) -> None:
        self._events = self._answers(messages, seen)
        self.is_cancelled = False

    def _answers(self, messages: Iterable[pb.GenerateManyRequest], seen: list[list[str]]) -> Iterator[Any]:
        for message in messages:
            requests = [message.start] if message.HasField("start") else []
            requests += map(pb.GenerateRequest.FromString, message.starts)
            seen.append([request.request_id for request in requests])
            answer = pb.GenerateManyResponse()
            for request in requests:
                if int(request.request_id) % 2:
                    answer.events.add(failure={"request_id": request.request_id, "status": {"code": 3}})
                else:
                    for event in ({"finished": {"finish_reason": 1}}, {"summary": {}}):
                        answer.events.add(response={"request_id": request.request_id, **event})
            yield answer

    def __iter__(self) -> Iterator[Any]:
        return self._events

    def cancel(self) -> None:
        self.is_cancelled = True


class Channel:
    """Notes the ids of each message, for calls of one message and of many."""

    def __init__(self) -> None:
        self.alone: list[list[str]] = []
        self.streamed: list[list[str]] = []
        self.streams: list[Stream] = []

    def unary_stream(self, name: str, **kinds: Any) -> Any:
        return lambda message, **call: self._stream([message], self.alone)

    def stream_stream(self, name: str, **kinds: Any) -> Any:
        return lambda messages, **call: self._stream(messages, self.streamed)

    def _stream(self, messages: Iterable[Any], seen: list[list[str]]) -> Stream:
        self.streams.append(Stream(messages, seen))
        return self.streams[-1]


def requests(number: int) -> list[pb.GenerateRequest]:
    return [pb.GenerateRequest(request_id=str(place), text="x" * 90) for place in range(number)]


def run(channel: Channel, asked: Iterable[pb.GenerateRequest], *, at_hand: bool = True) -> list[str]:
    """Ids in the order in which they ended; odd ones fail."""
    runner: Any = Many(channel)  # type: ignore[arg-type]
    outcomes = list(runner.run(asked, at_hand=at_hand))
    assert all(isinstance(outcome, ServerError) == bool(int(name) % 2) for name, outcome in outcomes)
    assert all(stream.is_cancelled for stream in channel.streams)
    return [name for name, _ in outcomes]


def test_few_requests_are_one_message() -> None:
    for number in (1, 5):
        channel = Channel()
        names = [str(place) for place in range(number)]
        assert run(channel, requests(number)) == names
        assert (channel.alone, channel.streamed) == ([names], [])


def test_many_requests_are_few_messages_the_first_of_them_short(monkeypatch: pytest.MonkeyPatch) -> None:
    size = requests(1)[0].ByteSize()
    monkeypatch.setattr(many, "FIRST_BATCH_BYTES", 2 * size)
    monkeypatch.setattr(many, "MAX_BATCH_BYTES", 3 * size)
    channel = Channel()
    assert run(channel, requests(9)) == [str(place) for place in range(9)]
    assert (channel.alone, channel.streamed) == ([], [["0", "1"], ["2", "3", "4"], ["5", "6", "7"], ["8"]])


def test_requests_that_come_one_by_one_go_out_so() -> None:
    channel = Channel()
    assert run(channel, iter(requests(3)), at_hand=False) == ["0", "1", "2"]
    assert (channel.alone, channel.streamed) == ([], [["0"], ["1"], ["2"]])


def test_a_request_is_made_when_it_is_to_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the one that shows that its message is full."""
    monkeypatch.setattr(many, "FIRST_BATCH_BYTES", requests(1)[0].ByteSize())
    channel, seen = Channel(), []

    def made() -> Iterator[pb.GenerateRequest]:
        for request in requests(9):
            seen.append(sum(map(len, channel.streamed)))  # sent before
            yield request

    assert run(channel, made()) == [str(place) for place in range(9)]
    assert channel.streamed == [["0"], ["1", "2", "3", "4"], ["5", "6", "7", "8"]]
    assert seen == [0, 0, 1, 1, 1, 1, 5, 5, 5]


def test_no_request_asks_for_nothing() -> None:
    channel = Channel()
    assert run(channel, []) == []
    assert run(channel, iter([]), at_hand=False) == []
    assert not channel.streams


def test_a_request_that_never_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stream, "_answers", lambda self, messages, seen: iter([pb.GenerateManyResponse()]))
    with pytest.raises(InternalError, match="2 requests never ended"):
        run(Channel(), requests(2))
