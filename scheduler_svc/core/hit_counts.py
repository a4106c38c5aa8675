"""How many full prompt pages were found in the prefix cache, and why the others were not.

Asked for at a request's first admission, on its worker, each page once:

    hit        found
    evicted    was cached, and was evicted since
    diverged   the page before is cached and goes on in another way (one page of a prompt at most)
    salted     nothing was found, but under another salt (or model or adapter) it is cached
    cold       the rest: never seen, or behind a page that was missed

A last page that is not full is not asked for and counted by itself. Nothing is decided from these counts, and they name
no tenant: they are for operators.
"""

from collections import OrderedDict
from typing import Final

from scheduler_svc.core.page_hash import hash_pages
from scheduler_svc.core.request import Request
from scheduler_svc.core.worker import Worker

MOST_ROOTS: Final = 16_384
"""First pages of prompts that are remembered, with the root they were hashed under last."""


class HitCounts:
    """Only ever grow."""

    __slots__ = ("_roots", "num_asked", "num_diverged", "num_evicted", "num_hit", "num_salted", "num_tails")

    def __init__(self) -> None:
        self.num_asked = 0
        self.num_hit = 0
        self.num_evicted = 0
        self.num_diverged = 0
        self.num_salted = 0
        self.num_tails = 0
        """Last prompt pages that were not full."""
        self._roots: OrderedDict[bytes, bytes] = OrderedDict()

    def count(self, request: Request, worker: Worker, num_hits: int) -> None:
        """A request is admitted for the first time, with its first ``num_hits`` pages from the cache."""
        if request.hashes is None:
            return
        size = worker.page_size
        num_pages = (request.num_prompt - 1) // size
        self.num_tails += request.num_prompt % size > 0
        if not num_pages:
            return
        names = request.names(num_pages, size)[:num_pages]
        self.num_asked += num_pages
        self.num_hit += num_hits
        other_root = self._see_root(request, size)
        missed = names[num_hits:]
        if not missed:
            return
        num_evicted = sum(map(worker.pool.was_evicted, missed))
        if num_evicted:
            self.num_evicted += num_evicted
        elif num_hits:
            self.num_diverged += worker.pool.cache.has_children(names[num_hits - 1])
        elif other_root is not None:
            self.num_salted += _num_cached(request, worker, other_root, num_pages)

    def _see_root(self, request: Request, size: int) -> bytes | None:
        """The root under which this first page was hashed before, if that is another one."""
        first_page, root, roots = request.prompt[:size].tobytes(), request.new.root_hash, self._roots
        before = roots.get(first_page)
        if before == root:
            return None
        roots[first_page] = root
        if len(roots) > MOST_ROOTS:
            roots.popitem(last=False)
        return before


def _num_cached(request: Request, worker: Worker, root: bytes, num_pages: int) -> int:
    """How many of its leading pages are cached under another root. Hashes no further than that."""
    size, parent = worker.page_size, None
    for index in range(num_pages):
        (parent,) = hash_pages(root, request.prompt[index * size : (index + 1) * size], size, parent)
        if worker.pool.cache.page_of(parent) is None:
            return index
    return num_pages
