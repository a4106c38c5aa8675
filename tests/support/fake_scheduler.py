"""A scheduler for tests of the front: real ZeroMQ, real front.proto, scripted tokens, no engine.

It keeps the contract's rules: tokens before events, one ending an output, endings held for requests with stop strings,
the earliest token position wins, one RequestEnded. A script that runs out waits for a cancel or a stop.
"""

import asyncio
import itertools
import tempfile
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio
from pagewire.internal.v1 import front_pb2, worker_pb2
from pagewire.v1 import admin_pb2, generation_pb2
from support import toy_tokenizer

from scheduler_svc.output_key import output_key

Script = Callable[[Any], Sequence[Sequence[int]]]


def toy_card(**changes: Any) -> Any:
    """A model card of the toy vocabulary."""
    fields: dict[str, Any] = {
        "name": "toy",
        "architecture": "ToyForCausalLM",
        "tokenizer_json": toy_tokenizer.tokenizer_json(),
        "chat_template": toy_tokenizer.CHAT_TEMPLATE,
        "special_tokens": {"bos_token": "<s>", "eos_token": "</s>"},
        "eos_token_ids": [toy_tokenizer.EOS],
        "bos_token_id": toy_tokenizer.BOS,
        "vocab_size": toy_tokenizer.VOCAB_SIZE,
        "max_model_len": 256,
        "dtype": "float32",
        "digest": "0123",
    }
    fields.update(changes)
    return worker_pb2.ModelCard(**fields)


class Running:
    """One request in the fake."""

    def __init__(self, front: bytes, submit: Any, script: Sequence[Sequence[int]]) -> None:
        self.front = front
        self.submit = submit
        self.script = [list(ids) for ids in script]
        self.sent = [0] * submit.n
        self.held: set[int] = set()
        self.ended: dict[int, int] = {}
        self.stop_ids = set(memoryview(submit.stop_token_ids).cast("i")) if submit.stop_token_ids else set()
        self.whole_reason = front_pb2.END_REASON_UNSPECIFIED


class FakeScheduler:
    """Bind with `async with`; `script` says which ids each output of a Submit gets."""

    def __init__(self, script: Script | None = None, *, card: Any = None, tokens_per_step: int = 1) -> None:
        self.script: Script = script or (lambda submit: [[72, 105, toy_tokenizer.EOS]] * submit.n)
        self.tokens_per_step = tokens_per_step
        self.step_seconds = 0.0
        self.session = 0x5E55
        self.service = front_pb2.Service(
            num_workers=1, page_size=16, hash_key=b"k" * 32, max_request_tokens=100_000, max_num_seqs=4
        )
        self.service.model_card.CopyFrom(card or toy_card())
        self.reject: Any = None
        """A Rejected for every new request, if set."""
        self.gate = asyncio.Event()
        self.gate.set()
        self.submits: list[Any] = []
        self.cancels: list[Any] = []
        self.stops: list[Any] = []
        self.scanned: list[Any] = []
        self.queries: list[Any] = []
        self.hellos: list[Any] = []
        self.frames = 0
        self.running: dict[int, Running] = {}
        self.heard = asyncio.Condition()
        self.directory = tempfile.TemporaryDirectory(prefix="pwf")
        self.endpoint = f"ipc://{Path(self.directory.name) / 'f.sock'}"
        self._context = zmq.asyncio.Context()
        self._socket: Any = None
        self._fronts: set[bytes] = set()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "FakeScheduler":
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(self.endpoint)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._read()), loop.create_task(self._step()), loop.create_task(self._beat())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.close()
        self._context.term()
        self.directory.cleanup()
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def wait_for(self, condition: Callable[[], bool], seconds: float = 5.0) -> None:
        """Returns once `condition` holds after something was heard."""
        async with self.heard:
            await asyncio.wait_for(self.heard.wait_for(condition), seconds)

    async def announce(self, **changes: Any) -> None:
        """Changes the service and tells the fronts."""
        for name, value in changes.items():
            setattr(self.service, name, value)
        for front in self._fronts:
            await self._send(front, front_pb2.SchedulerToFrontFrame(service=self.service))

    async def send_all(self, frame: Any) -> None:
        """Sends a frame to every front."""
        for front in self._fronts:
            await self._send(front, frame)

    async def end(self, key: int, reason: int, **ended: Any) -> None:
        """Ends a whole request for one cause."""
        await self._end_request(self.running[key], reason, **ended)

    async def event(self, key: int, **event: Any) -> None:
        """Sends one event of a running request."""
        frame = front_pb2.SchedulerToFrontFrame()
        frame.events.add(key=key, **event)
        await self._send(self.running[key].front, frame)

    async def _send(self, front: bytes, frame: Any) -> None:
        frame.session = frame.session or self.session
        await self._socket.send_multipart([front, frame.SerializeToString()])

    async def _read(self) -> None:
        while True:
            front, content = await self._socket.recv_multipart()
            frame = front_pb2.FrontFrame.FromString(content)
            async with self.heard:
                self.frames += 1
                await self._apply(front, frame)
                self.heard.notify_all()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            await self.send_all(front_pb2.SchedulerToFrontFrame(heartbeat=True))

    async def _apply(self, front: bytes, frame: Any) -> None:
        if frame.HasField("hello"):
            self.hellos.append(frame.hello)
            self._fronts.add(front)
            await self._send(front, front_pb2.SchedulerToFrontFrame(service=self.service))
            return
        if frame.session != self.session:
            await self._send(front, front_pb2.SchedulerToFrontFrame(heartbeat=True))
            return
        for submit in frame.submits:
            self.submits.append(submit)
            await self._submit(front, submit)
        for stop in frame.stops:
            self.stops.append(stop)
            if stop.key in self.running:
                await self._end_output(
                    self.running[stop.key], stop.index, front_pb2.END_REASON_STOP_STRING, stop.num_output_tokens
                )
        for scanned in frame.scanned:
            self.scanned.append(scanned)
            if scanned.key in self.running:
                await self._confirm(self.running[scanned.key], scanned.index)
        for cancel in frame.cancels:
            self.cancels.append(cancel)
            if cancel.key in self.running:
                reason = front_pb2.END_REASON_DEADLINE if cancel.deadline else front_pb2.END_REASON_CANCELLED
                await self._end_request(self.running[cancel.key], reason, stage="decode")
        for query in frame.queries:
            self.queries.append(query)
            await self._answer(front, query)

    async def _submit(self, front: bytes, submit: Any) -> None:
        if self.reject is not None:
            frame = front_pb2.SchedulerToFrontFrame()
            frame.events.add(key=submit.key, rejected=self.reject)
            await self._send(front, frame)
            return
        self.running[submit.key] = Running(front, submit, self.script(submit))

    async def _answer(self, front: bytes, query: Any) -> None:
        kind = query.WhichOneof("question")
        reply = front_pb2.Reply(query_id=query.query_id)
        if kind == "load":
            reply.response = admin_pb2.GetLoadResponse(num_workers=1).SerializeToString()
        elif kind == "workers":
            reply.response = admin_pb2.ListWorkersResponse(
                workers=[admin_pb2.Worker(worker_id="w1")]
            ).SerializeToString()
        elif kind == "explain_request_id":
            decisions = [admin_pb2.Decision(text="waits")]
            reply.response = admin_pb2.ExplainRequestResponse(decisions=decisions).SerializeToString()
        elif kind in ("cancel_request_id", "get_request_id"):
            wanted = getattr(query, kind)
            found = next((each for each in self.running.values() if each.submit.request_id == wanted), None)
            if found is None:
                reply.code, reply.message = 5, "there is no such request"
            elif kind == "cancel_request_id":
                await self._end_request(found, front_pb2.END_REASON_CANCELLED_ELSEWHERE)
            else:
                reply.response = generation_pb2.GetRequestResponse(request_id=wanted, state=2).SerializeToString()
        await self._send(front, front_pb2.SchedulerToFrontFrame(replies=[reply]))

    async def _step(self) -> None:
        for _ in itertools.count():
            await asyncio.sleep(self.step_seconds)
            await self.gate.wait()
            for running in list(self.running.values()):
                await self._step_request(running)
            if not self.running:
                async with self.heard:
                    await self.heard.wait_for(lambda: bool(self.running))

    async def _step_request(self, running: Running) -> None:
        frame = front_pb2.SchedulerToFrontFrame()
        keys, token_ids = array("Q"), array("i")
        endings: list[tuple[int, int]] = []
        for index in range(running.submit.n):
            if index in running.ended or index in running.held:
                continue
            new, ending = self._next(running, index)
            if new:
                keys.extend([output_key(0, running.submit.key, index)] * len(new))
                token_ids.extend(new)
            if ending is not None:
                endings.append((index, ending))
        if not keys:
            return
        frame.tokens.keys, frame.tokens.token_ids = keys.tobytes(), token_ids.tobytes()
        for index, ending in endings:
            if running.submit.hold_endings:
                running.held.add(index)
                held = front_pb2.HeldEnding(index=index, num_output_tokens=running.sent[index])
                frame.events.add(key=running.submit.key, held=held)
            else:
                self._add_ending(frame, running, index, ending, running.sent[index])
        self._close_if_over(frame, running)
        await self._send(running.front, frame)

    def _next(self, running: Running, index: int) -> tuple[list[int], int | None]:
        """The next tokens of an output and how it ends with them."""
        new: list[int] = []
        while len(new) < self.tokens_per_step and running.sent[index] < len(running.script[index]):
            token_id = running.script[index][running.sent[index]]
            new.append(token_id)
            running.sent[index] += 1
            ending = self._ending(running, index)
            if ending is not None:
                return new, ending
        return new, None

    def _ending(self, running: Running, index: int) -> int | None:
        if running.script[index][running.sent[index] - 1] in running.stop_ids:
            return int(front_pb2.END_REASON_STOP_TOKEN)
        if running.sent[index] >= running.submit.max_tokens:
            return int(front_pb2.END_REASON_LENGTH)
        return None

    def _add_ending(self, frame: Any, running: Running, index: int, reason: int, num_output_tokens: int) -> None:
        running.ended[index] = num_output_tokens
        ended = front_pb2.OutputEnded(index=index, reason=reason, num_output_tokens=num_output_tokens)
        if reason == front_pb2.END_REASON_STOP_TOKEN:
            ended.stop_token_id = running.script[index][num_output_tokens - 1]
        frame.events.add(key=running.submit.key, output_ended=ended)

    def _close_if_over(self, frame: Any, running: Running, **ended: Any) -> None:
        if len(running.ended) < running.submit.n:
            return
        self.running.pop(running.submit.key, None)
        fields = {
            "prompt_tokens": len(running.submit.prompt_token_ids) // 4,
            "output_tokens": sum(running.ended.values()),
            "reason": running.whole_reason,
            "worker_id": "w1",
            "total_seconds": 0.5,
            **ended,
        }
        frame.events.add(key=running.submit.key, ended=front_pb2.RequestEnded(**fields))

    async def _end_output(self, running: Running, index: int, reason: int, num_output_tokens: int) -> None:
        if index in running.ended:
            return
        frame = front_pb2.SchedulerToFrontFrame()
        self._add_ending(frame, running, index, reason, num_output_tokens)
        self._close_if_over(frame, running)
        await self._send(running.front, frame)

    async def _confirm(self, running: Running, index: int) -> None:
        ending = self._ending(running, index)
        assert ending is not None, "scanned without a held ending"
        await self._end_output(running, index, ending, running.sent[index])

    async def _end_request(self, running: Running, reason: int, **ended: Any) -> None:
        frame = front_pb2.SchedulerToFrontFrame()
        running.whole_reason = reason
        for index in range(running.submit.n):
            if index not in running.ended:
                self._add_ending(frame, running, index, reason, running.sent[index])
        self._close_if_over(frame, running, **ended)
        await self._send(running.front, frame)
