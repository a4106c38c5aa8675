# ruff: noqa: N802 (methods are named as in the proto)
"""pagewire.v1.CacheService: warms, pins, explains and forgets prefixes.

A pin is made before its prefix is computed, so that no page of it can be evicted in between; if it cannot be computed
the pin ends.
"""

import contextlib
import uuid
from typing import Any, Final

from pagewire.internal.v1 import front_pb2
from pagewire.v1 import cache_pb2, cache_pb2_grpc

from scheduler_svc.columns import HASH_BYTES
from scheduler_svc.front.caller import CALLER
from scheduler_svc.front.errors import FrontError, InvalidRequestError
from scheduler_svc.front.generation import deadline_of
from scheduler_svc.front.in_flight import InFlight
from scheduler_svc.front.live_request import LiveRequest
from scheduler_svc.front.preparation import Preparation, request_of
from scheduler_svc.front.scheduler_link import SchedulerLink
from scheduler_svc.front.service_state import ServiceState

MAX_TTL_MS: Final = 7 * 24 * 3600 * 1000


class CacheService(cache_pb2_grpc.CacheServiceServicer):  # type: ignore[misc]
    """Asks the scheduler about prompts."""

    def __init__(self, state: ServiceState, preparation: Preparation, link: SchedulerLink, in_flight: InFlight) -> None:
        self._state = state
        self._preparation = preparation
        self._link = link
        self._in_flight = in_flight

    async def WarmPrefix(self, request: Any, context: Any) -> Any:
        """Runs a request of one token, whose prompt stays cached as any other's."""
        with self._in_flight.call():
            deadline = deadline_of(context.time_remaining())
            question = await self._preparation.ask_prefix(request.prefix, deadline=deadline)
            await self._warm(request.prefix, deadline)
            pages = (await self._explained(question)).pages
            num_cached = sum(page.status == cache_pb2.PAGE_STATUS_HIT for page in pages)
            return cache_pb2.WarmPrefixResponse(cached_tokens=num_cached * self._state.require().page_size)

    async def _warm(self, prefix: Any, deadline: float | None) -> None:
        warming = request_of(prefix)
        warming.stop.max_tokens = 1
        live = LiveRequest(await self._preparation.prepare(warming, deadline=deadline), self._link, deadline=deadline)
        try:
            while not live.is_taken:
                await live.wait()
                live.take()
        finally:
            live.close()

    async def PinPrefix(self, request: Any, context: Any) -> Any:
        """Keeps a prefix, which is computed if it is not cached."""
        if not 1 <= request.ttl_ms <= MAX_TTL_MS:
            raise InvalidRequestError.at("ttl_ms", f"must be in 1..{MAX_TTL_MS}")
        with self._in_flight.call():
            deadline = deadline_of(context.time_remaining())
            question = await self._preparation.ask_prefix(request.prefix, deadline=deadline)
            asked = front_pb2.PinQuestion(
                pin_id=uuid.uuid4().hex, ttl_ms=request.ttl_ms, page_hashes=question.page_hashes
            )
            tenant = CALLER.get().tenant
            response = cache_pb2.PinPrefixResponse.FromString(await self._link.query(tenant, pin_prefix=asked))
            if response.pin.num_pages * HASH_BYTES == len(asked.page_hashes):
                return response
            try:
                await self._warm(request.prefix, deadline)
            except BaseException:
                with contextlib.suppress(FrontError):  # its time may be over, or the scheduler gone
                    await self._link.query(tenant, unpin_id=asked.pin_id)
                raise
            over = cache_pb2.Pin(pin_id=asked.pin_id)
            now = next((pin for pin in await self._pins() if pin.pin_id == asked.pin_id), over)
            return cache_pb2.PinPrefixResponse(pin=now)

    async def UnpinPrefix(self, request: Any, context: Any) -> Any:
        """Ends a pin."""
        if not request.pin_id:
            raise InvalidRequestError.at("pin_id", "must not be empty")
        answer = await self._link.query(CALLER.get().tenant, unpin_id=request.pin_id)
        return cache_pb2.UnpinPrefixResponse.FromString(answer)

    async def ListPins(self, request: Any, context: Any) -> Any:
        """Those of the caller's tenant."""
        return cache_pb2.ListPinsResponse(pins=await self._pins())

    async def _pins(self) -> Any:
        return cache_pb2.ListPinsResponse.FromString(await self._link.query(CALLER.get().tenant, list_pins=True)).pins

    async def ExplainPrefix(self, request: Any, context: Any) -> Any:
        """Why the pages of a prompt are cached or not."""
        deadline = deadline_of(context.time_remaining())
        question = await self._preparation.ask_prefix(request.prefix, deadline=deadline)
        return await self._explained(question)

    async def _explained(self, question: Any) -> Any:
        answer = await self._link.query(CALLER.get().tenant, explain_prefix=question)
        return cache_pb2.ExplainPrefixResponse.FromString(answer)

    async def ResetPrefixCache(self, request: Any, context: Any) -> Any:
        """Frees what nobody uses."""
        return cache_pb2.ResetPrefixCacheResponse.FromString(await self._link.query(reset_prefix_cache=True))
