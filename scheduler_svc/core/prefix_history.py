"""What tenants sent lately: the tokens of their last requests, so that a miss can be explained to who sent them.

A request that may use the prefix cache is noted when it ends; as long as it lives it is found among the live ones. No
more than MOST_TOKENS of MOST_REQUESTS are kept of all tenants together; the oldest are forgotten.
Nothing is decided from it, and nobody is told of another tenant's.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from scheduler_svc.core.request import Request

if TYPE_CHECKING:
    from array import array

MOST_TOKENS: Final = 1 << 20
MOST_REQUESTS: Final = 16_384


class Sent(NamedTuple):
    """One request: whose, under which root its pages are named, and its tokens."""

    tenant: str
    root: bytes
    prompt: "array[int]"
    output: "array[int]"

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + len(self.output)


class PrefixHistory:
    """The last requests of all tenants."""

    __slots__ = ("_num_tokens", "_sent")

    def __init__(self) -> None:
        self._sent: deque[Sent] = deque()
        self._num_tokens = 0

    def note(self, request: Request) -> None:
        """A request has ended."""
        if request.hashes is None:
            return
        sent = _sent(request)
        self._sent.append(sent)
        self._num_tokens += sent.num_tokens
        while self._num_tokens > MOST_TOKENS or len(self._sent) > MOST_REQUESTS:
            self._num_tokens -= self._sent.popleft().num_tokens

    def of(self, tenant: str, live: Iterable[Request]) -> Iterator[Sent]:
        """What a tenant sent: of its ``live`` requests as many as MOST_TOKENS allow, then those that have ended, the
        newest first. Costs the number of all requests."""
        num_tokens = 0
        for request in live:
            if request.new.tenant == tenant and request.hashes is not None:
                num_tokens += request.num_tokens
                if num_tokens > MOST_TOKENS:
                    break
                yield _sent(request)
        yield from (sent for sent in reversed(self._sent) if sent.tenant == tenant)


def _sent(request: Request) -> Sent:
    return Sent(request.new.tenant, request.new.root_hash, request.prompt, request.output)
