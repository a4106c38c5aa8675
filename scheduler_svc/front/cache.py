# ruff: noqa: N802 (methods are named as in the proto)
"""pagewire.v1.CacheService: part of the contract, not built yet; every method says so."""

from typing import Any, NoReturn

from pagewire.v1 import cache_pb2_grpc

from scheduler_svc.front.errors import UnsupportedError


class CacheService(cache_pb2_grpc.CacheServiceServicer):  # type: ignore[misc]
    """Answers UNIMPLEMENTED."""

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

    async def ExplainPrefix(self, request: Any, context: Any) -> NoReturn:
        """Not built yet."""
        raise UnsupportedError("CacheService.ExplainPrefix")

    async def ResetPrefixCache(self, request: Any, context: Any) -> NoReturn:
        """Not built yet."""
        raise UnsupportedError("CacheService.ResetPrefixCache")
