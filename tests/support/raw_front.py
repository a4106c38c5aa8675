"""A front without gRPC: FrontFrame over ZeroMQ, driven by the test's own thread."""

import os
import secrets
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import zmq
from pagewire.internal.v1 import front_pb2

from scheduler_svc.core.page_hash import hash_pages, root_hash
from scheduler_svc.output_key import front_key_and_index

PROTOCOL_VERSION = 1
HEARTBEAT_SECONDS = 0.1


@dataclass(slots=True)
class Told:
    """What a front was told of one request."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    outputs: dict[int, Any] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)
    progress: list[tuple[str, Any]] = field(default_factory=list)
    rejected: Any = None
    ended: Any = None

    @property
    def is_over(self) -> bool:
        return self.ended is not None or self.rejected is not None

    def output(self, index: int = 0) -> list[int]:
        """Tokens of an output up to its end."""
        tokens = self.tokens.get(index, [])
        return tokens[: self.outputs[index].num_output_tokens] if index in self.outputs else tokens


class RawFront:
    """Call ``pump`` (or anything that waits) often enough: it reads, and says that the front lives."""

    def __init__(self, endpoint: str) -> None:
        self.front_id = secrets.randbits(64) | 1
        self.session = 0
        self.service: Any = None
        self.refusal = ""
        self.requests: dict[int, Told] = {}
        self.replies: dict[int, Any] = {}
        self._next_key = 0
        self._next_query = 0
        self._next_beat = 0.0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(endpoint)
        self.hello()

    def __enter__(self) -> "RawFront":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()
        self._context.term()

    def hello(self, protocol_version: int = PROTOCOL_VERSION) -> None:
        self.session = 0
        self.send(hello=front_pb2.FrontHello(protocol_version=protocol_version, pid=os.getpid()))

    def send(self, **parts: Any) -> None:
        frame = front_pb2.FrontFrame(session=self.session, front_id=self.front_id, **parts)
        self._socket.send(frame.SerializeToString())

    def send_bytes(self, *parts: bytes) -> None:
        self._socket.send_multipart(parts)

    # Waiting.

    def pump(self, wait_ms: int = 1) -> None:
        now = time.monotonic()
        if now >= self._next_beat and self.session:
            self._next_beat = now + HEARTBEAT_SECONDS
            self.send(heartbeat=True)
        while self._socket.poll(wait_ms):
            self._read(front_pb2.SchedulerToFrontFrame.FromString(self._socket.recv()))
            wait_ms = 0

    def wait(self, condition: Callable[[], object], what: str, seconds: float = 10.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
            self.pump()

    def wait_ready(self, num_workers: int = 1) -> None:
        self.wait(lambda: self.service is not None and self.service.num_workers == num_workers, "workers joined")

    def wait_over(self, *keys: int, seconds: float = 20.0) -> None:
        self.wait(lambda: all(self.requests[key].is_over for key in keys), "requests over", seconds)

    def wait_tokens(self, key: int, count: int, index: int = 0) -> None:
        self.wait(lambda: len(self.requests[key].tokens.get(index, ())) >= count, f"{count} tokens")

    # Asking.

    def make(self, prompt: Sequence[int], **fields: Any) -> Any:
        """A Submit message, its prompt hashed as the service says."""
        self._next_key += 1
        values: dict[str, Any] = {"n": 1, "max_tokens": 8, "top_p": 1.0, "tenant": "t", **fields}
        submit = front_pb2.Submit(key=self._next_key, prompt_token_ids=array("i", prompt).tobytes(), **values)
        if self.service is not None and self.service.page_size:
            root = root_hash(self.service.hash_key, "", "toy", "")
            submit.root_hash = root
            submit.page_hashes = b"".join(hash_pages(root, array("i", prompt), self.service.page_size))
        self.requests[submit.key] = Told()
        return submit

    def submit(self, prompt: Sequence[int], **fields: Any) -> int:
        submit = self.make(prompt, **fields)
        self.send(submits=[submit])
        return int(submit.key)

    def cancel(self, *keys: int, deadline: bool = False) -> None:
        self.send(cancels=[front_pb2.Cancel(key=key, deadline=deadline) for key in keys])

    def stop(self, key: int, num_output_tokens: int, index: int = 0) -> None:
        self.send(stops=[front_pb2.Stop(key=key, index=index, num_output_tokens=num_output_tokens)])

    def scanned(self, key: int, index: int = 0) -> None:
        self.send(scanned=[front_pb2.Scanned(key=key, index=index)])

    def query(self, tenant: str = "t", **question: Any) -> Any:
        """The Reply."""
        self._next_query += 1
        query_id = self._next_query
        self.send(queries=[front_pb2.Query(query_id=query_id, tenant=tenant, **question)])
        self.wait(lambda: query_id in self.replies, "reply")
        return self.replies[query_id]

    # Reading.

    def _read(self, frame: Any) -> None:
        if frame.HasField("refusal"):
            self.refusal = frame.refusal
            return
        self.session = frame.session
        if frame.HasField("service"):
            self.service = frame.service
        self._read_tokens(frame.tokens)
        for event in frame.events:
            self._read_event(event)
        for reply in frame.replies:
            self.replies[reply.query_id] = reply

    def _read_tokens(self, tokens: Any) -> None:
        keys, token_ids = array("Q", tokens.keys), array("i", tokens.token_ids)
        for output, token_id in zip(keys, token_ids, strict=True):
            key, index = front_key_and_index(output)
            told = self.requests[key]
            assert not told.is_over, "a token after the end"
            told.tokens.setdefault(index, []).append(token_id)

    def _read_event(self, event: Any) -> None:
        told, kind = self.requests[event.key], event.WhichOneof("event")
        assert not told.is_over, "an event after the end"
        if kind == "output_ended":
            assert event.output_ended.index not in told.outputs, "an output ended twice"
            assert event.output_ended.num_output_tokens <= len(told.tokens.get(event.output_ended.index, ()))
            told.outputs[event.output_ended.index] = event.output_ended
        elif kind == "held":
            told.held[event.held.index] = event.held.num_output_tokens
        elif kind in ("ended", "rejected"):
            setattr(told, kind, getattr(event, kind))
        else:
            told.progress.append((kind, getattr(event, kind)))
