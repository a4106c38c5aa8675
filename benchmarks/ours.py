"""Pagewire as it ships: scheduler, front and worker processes of a local stack, asked over gRPC.

Offline workloads go the way of `LLM.generate`, through `Client.run_many`, ids in and ids out; streams are one Generate
call a request with text, as an interactive client sends it, from processes of their own.
"""

import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pagewire.v1 import generation_pb2 as pb
from pagewire_client import Client, PagewireError, ServerError
from pagewire_client.options import text_request
from pagewire_client.stack import private_stack

from benchmarks.clients import Clients
from benchmarks.engine import EngineError, say
from benchmarks.measure import Outcome
from benchmarks.workloads import Workload

_MAX_DELAY_MS = 1000
"""As `LLM.generate` has it: only whole outputs count."""


class Pagewire:
    """A private stack, started by the first workload and left idle between workloads."""

    name = "pagewire"

    def __init__(
        self,
        model: str,
        dtype: str,
        *,
        scheduler_arguments: Sequence[str] = (),
        worker_arguments: Sequence[str] = (),
    ) -> None:
        self.model, self.dtype = model, dtype
        self.version = _version()
        self.settings = " ".join([f"dtype={dtype}", *scheduler_arguments, *worker_arguments])
        self._stack = private_stack(
            model, scheduler_arguments=scheduler_arguments, worker_arguments=("--dtype", dtype, *worker_arguments)
        )
        self._client: Client | None = None
        self._clients = Clients("grpc", lambda: self._stack.target, Path(model).name)

    def roots(self) -> list[int]:
        return list(self._stack.pids().values())

    def run(self, workload: Workload) -> Outcome:
        try:
            client = self._started()
            return self._clients.run(workload) if workload.is_served else _offline(client, workload)
        except PagewireError as error:
            raise EngineError(f"pagewire: {error}") from error

    def pause(self) -> None:
        """An idle stack sleeps; nothing to do."""

    def resume(self) -> None:
        """See ``pause``."""

    def stop(self) -> None:
        self._clients.stop()
        if self._client is not None:
            self._client.close()
        self._stack.stop()

    def _started(self) -> Client:
        if self._client is None:
            say("starting pagewire")
            began = time.monotonic()
            self._stack.start()
            self._client = self._stack.client()
            say(f"pagewire is ready after {time.monotonic() - began:.1f} s")
        return self._client


def _offline(client: Client, workload: Workload) -> Outcome:
    outputs: list[Sequence[int]] = [()] * len(workload.requests)
    cached = 0
    began = time.perf_counter()
    requests = (_request(str(index), *each, workload.temperature) for index, each in enumerate(workload.requests))
    for request_id, outcome in client.run_many(requests, at_hand=True):
        if isinstance(outcome, ServerError):
            raise outcome
        outputs[int(request_id)] = outcome.outputs[0].token_ids
        cached += outcome.usage.cached_tokens
    wall = time.perf_counter() - began
    return Outcome(wall_s=wall, outputs=outputs, num_output_tokens=sum(map(len, outputs)), num_cached_tokens=cached)


def _request(request_id: str, prompt: Sequence[int], max_tokens: int, temperature: float) -> pb.GenerateRequest:
    options = {"request_id": request_id, "max_tokens": max_tokens, "ignore_eos": True, "temperature": temperature}
    return text_request(prompt, {**options, "text": False, "token_ids": True, "max_delay_ms": _MAX_DELAY_MS})


def _version() -> str:
    """The installed version, or 0 in a plain checkout."""
    try:
        return version("pagewire")
    except PackageNotFoundError:
        return "0"
