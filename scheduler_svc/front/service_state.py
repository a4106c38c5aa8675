"""Whether this front can serve, and with what: the scheduler's last `Service`, and the model built from its card.

One owner of the answer to "may a request run now?"; health follows it. A model is built in a thread; until it stands
the front is not serving. Invariant: serving implies a model, a worker and no drain.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import structlog
from pagewire.internal.v1 import worker_pb2

from scheduler_svc.front.errors import Reason, UnavailableError
from scheduler_svc.front.served_model import ServedModel, build_served_model

log = structlog.get_logger("pagewire.front")

DEFAULT_RETRY_MS = 1000


@dataclass(frozen=True)
class Serving:
    """Everything a request needs to know of the service at its arrival."""

    model: ServedModel
    page_size: int
    hash_key: bytes
    max_request_tokens: int
    """Prompt and output together; never more than the model's limit."""


class ServiceState:
    """The service as this front sees it."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._on_change: Callable[[bool, bool], None] = lambda serving, alive: None
        self._service: Any = None
        self._model: ServedModel | None = None
        self._card = b""
        self._build: asyncio.Task[None] | None = None
        self._stopping = False
        self._is_lost = False
        self._drain_until = 0.0

    @property
    def service(self) -> Any:
        """The last pagewire.internal.v1.Service; None before the first."""
        return self._service

    @property
    def model(self) -> ServedModel | None:
        """The model, also while no worker serves it."""
        return self._model

    def listen(self, on_change: Callable[[bool, bool], None]) -> None:
        """Calls `on_change(serving, alive)` now and whenever the answer may have changed."""
        self._on_change = on_change
        self._changed()

    @property
    def drain_seconds_left(self) -> float:
        """What requests under way may still take; 0 unless the server drains."""
        return max(0.0, self._drain_until - asyncio.get_running_loop().time())

    def is_alive(self) -> bool:
        """Whether the scheduler is heard and moves."""
        return not self._is_lost and not (self._service is not None and self._service.stalled)

    def is_serving(self) -> bool:
        """Whether a request may run now."""
        service = self._service
        return bool(
            service is not None
            and self._model is not None
            and self._build is None
            and service.num_workers
            and not service.draining
            and not self._stopping
        )

    def update(self, service: Any) -> None:
        """The scheduler told what is served now."""
        self._service = service
        self._is_lost = False
        if service.draining:
            self._drain_until = asyncio.get_running_loop().time() + service.drain_ms / 1000
        if service.HasField("model_card"):
            card = service.model_card.SerializeToString(deterministic=True)
            if card != self._card:
                self._card = card
                if self._build is None:
                    self._build = asyncio.get_running_loop().create_task(self._build_model())
        self._changed()

    def lost(self) -> None:
        """The scheduler is gone."""
        self._service = None
        self._is_lost = True
        self._changed()

    def stop(self) -> None:
        """This front stops; nothing new may run."""
        self._stopping = True
        self._changed()

    async def close(self) -> None:
        """Waits for a model that is being built."""
        if self._build is not None:
            await asyncio.wait([self._build])
        self._close_model()

    def require(self) -> Serving:
        """What a new request runs with.

        Raises: UnavailableError while nothing can serve it.
        """
        if self._stopping or (self._service is not None and self._service.draining):
            raise UnavailableError("the server is draining", reason=Reason.DRAINING.value, retry_ms=DEFAULT_RETRY_MS)
        if self._service is None:
            raise UnavailableError(
                "the scheduler cannot be reached", reason=Reason.SCHEDULER_LOST.value, retry_ms=DEFAULT_RETRY_MS
            )
        if not self.is_serving() or self._model is None:
            raise UnavailableError(
                "no worker serves a model now",
                reason=Reason.NO_WORKER.value,
                retry_ms=self._service.retry_ms or DEFAULT_RETRY_MS,
            )
        limit = self._model.max_model_len
        return Serving(
            model=self._model,
            page_size=self._service.page_size,
            hash_key=self._service.hash_key,
            max_request_tokens=min(limit, self._service.max_request_tokens or limit),
        )

    def require_model(self) -> ServedModel:
        """The model, for calls that need no worker.

        Raises: UnavailableError before a first worker has joined.
        """
        if self._model is None:
            raise UnavailableError("no worker has joined yet", reason=Reason.NO_WORKER.value, retry_ms=DEFAULT_RETRY_MS)
        return self._model

    async def _build_model(self) -> None:
        """Builds until the model stands that the last card describes."""
        loop = asyncio.get_running_loop()
        built = b""
        try:
            while built != self._card:
                built = self._card
                self._close_model()
                try:
                    self._model = await loop.run_in_executor(self._executor, build_served_model, self._service_card())
                    log.info("model_ready", model=self._model.name)
                except ValueError as error:
                    # Another card may have come meanwhile: the loop goes on to it.
                    self._model = None
                    log.error("model_unusable", error=str(error))
        finally:
            self._build = None
            self._changed()

    def _close_model(self) -> None:
        """Ends what a model runs beside itself; it can still be used."""
        if self._model is not None:
            self._model.close()

    def _service_card(self) -> Any:
        """A copy of the last card."""
        return worker_pb2.ModelCard.FromString(self._card)

    def _changed(self) -> None:
        is_leaving = self._service is not None and self._service.leaving
        self._on_change(self.is_serving() and not is_leaving, self.is_alive())
