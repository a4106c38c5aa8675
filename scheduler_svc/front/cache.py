# ruff: noqa: N802 (methods are named as in the proto)
"""pagewire.v1.CacheService: explains prefixes; its other methods are part of the contract and not built yet."""

from typing import Any, NoReturn

from pagewire.v1 import cache_pb2, cache_pb2_grpc

from scheduler_svc.front.caller import CALLER
from scheduler_svc.front.errors import UnsupportedError
from scheduler_svc.front.generation import deadline_of
from scheduler_svc.front.preparation import Preparation
from scheduler_svc.front.scheduler_link import SchedulerLink


class CacheService(cache_pb2_grpc.CacheServiceServicer):  # type: ignore[misc]
    """Asks the scheduler about prompts."""

    def __init__(self, preparation: Preparation, link: SchedulerLink) -> None:
        self._preparation = preparation
        self._link = link

    async def WarmPrefix(self, request: Any, context: Any) -> NoReturn:
        """Not built yet."""
        raise UnsupportedError("CacheService.WarmPrefix")

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
        return cache_pb2.ExplainPrefixResponse.FromString(
            await self._link.query(CALLER.get().tenant, explain_prefix=question)
        )

    async def ResetPrefixCache(self, request: Any, context: Any) -> Any:
        """Frees what nobody uses."""
        return cache_pb2.ResetPrefixCacheResponse.FromString(await self._link.query(reset_prefix_cache=True))
