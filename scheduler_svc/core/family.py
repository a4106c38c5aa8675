"""Outputs of one request that is asked for n of them: they have one prompt, so it is computed once.

The first that gets a row computes the prompt; the others on its worker wait for that (by a claim, see claims.py) and
then *fork* from it: they share the pages that the prompt fills and get a copy of the one it fills in part, because each
goes on writing there. One token at least is computed by each, so that it has logits to sample from.

    prompt of 10 tokens, pages of 4      leader   [ 1 2 3 4 | 5 6 7 8 | 9 10 a b ]
                                         fork     [  shared |  shared | copy: 9, computes 10 again, c d ]

Any member whose prompt is computed will do as the source, so it does not matter which of them end first. Forking needs
no prefix cache.
"""

from scheduler_svc.core.request import Request, Residence
from scheduler_svc.core.types import PageId


class Start:
    """What of a request's tokens is there already when it begins."""

    __slots__ = ("copied", "is_fork", "num_tokens", "shared")

    def __init__(self, shared: list[PageId], copied: PageId | None, num_tokens: int, *, is_fork: bool) -> None:
        self.shared = shared
        """Pages of its table that it shares."""
        self.copied = copied
        """The page to copy behind those; None if there is none."""
        self.num_tokens = num_tokens
        """Tokens that these hold for it."""
        self.is_fork = is_fork
        """They are another output's, not the prefix cache's."""


def source_of(request: Request) -> Residence | None:
    """A running member of the request's family on its worker whose prompt is computed."""
    for member in request.family:
        residence = member.residence
        if residence is not None and residence.has_prompt and member.worker_id == request.worker_id:
            return residence
    return None


def fork(request: Request, source: Residence, page_size: int) -> Start:
    """How a member begins beside ``source``."""
    num_tokens = min(request.num_prompt, request.num_tokens - 1)
    num_shared, in_part = divmod(num_tokens, page_size)
    copied = source.pages[num_shared] if in_part else None
    return Start(source.pages[:num_shared], copied, num_tokens, is_fork=True)
