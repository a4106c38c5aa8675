# ruff: noqa: N802 (methods are named as in the proto)
"""pagewire.v1.CacheService: warms, explains and forgets prefixes; pins are part of the contract and not built yet."""

from typing import Any, NoReturn

from pagewire.v1 import cache_pb2, cache_pb2_grpc

from scheduler_svc.front.caller import CALLER
from scheduler_svc.front.errors import UnsupportedError
from scheduler_svc.front.generation import deadline_of
from scheduler_svc.front.in_flight import InFlight
from scheduler_svc.front.live_request import LiveRequest
from scheduler_svc.front.preparation import Preparation, request_of
from scheduler_svc.front.scheduler_link import SchedulerLink
from scheduler_svc.front.service_state import ServiceState


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
            warming = request_of(request.prefix)
            warming.stop.max_tokens = 1
            live = LiveRequest(
                await self._preparation.prepare(warming, deadline=deadline), self._link, deadline=deadline
            )
            try:
                while not live.is_taken:
                    await live.wait()
                    live.take()
            finally:
                live.close()
            pages = (await self._explained(question)).pages
            num_cached = sum(page.status == cache_pb2.PAGE_STATUS_HIT for page in pages)
            return cache_pb2.WarmPrefixResponse(cached_tokens=num_cached * self._state.require().page_size)

    async def PinPrefix(self, request: Any, context: Any) -> NoReturn:
        """Not built yet."""
        raise UnsupportedError("CacheService.PinPrefix")

    async def UnpinPrefix(self, request: Any, context: Any) -> NoReturn:
        """Not built yet."""
        raise UnsupportedError("CacheService.UnpinPrefix")

    async def ListPins(self, request: Any, context: Any) -> NoReturn:
        """Not built yet."""
        raise UnsupportedError("CacheService.ListPins")

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
