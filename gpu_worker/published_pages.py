"""Which pages hold content that has a name, so that a new session may take them over.

Updated as plans are applied, in order; a page that is written again was evicted by an earlier or the same plan. A
parent is told as the page that has its name then. Its hash is kept here, for that page may lose the name later.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from gpu_worker.batch_plan import BatchPlan, PageNames

HASH_BYTES = 16
MOST_PAGES = 1 << 17
"""Pages of one inventory; more would keep the scheduler busy for too long."""
_NO_PARENT = bytes(HASH_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Columns of worker.proto's Inventory."""

    pages: bytes = b""
    hashes: bytes = b""
    parents: bytes = b""
    identity: bytes = b""


class PublishedPages:
    """Names by page."""

    def __init__(self) -> None:
        self._hashes: dict[int, bytes] = {}
        self._parents: dict[int, bytes] = {}
        """Of the same pages in the same order."""
        self._identity = b""

    def apply(self, plan: BatchPlan | PageNames) -> None:
        """Take over what a plan, or what came before an idle time, evicts and publishes.

        A parent that is told as a page without a name is taken for none.
        """
        for page in plan.evicted_pages.tolist():
            self._forget(page)
        hashes, pages = self._hashes, plan.published_pages.tolist()
        hashes.update(zip(pages, _each(plan.published_hashes), strict=True))
        others = iter(_each(plan.parent_hashes))
        for page, parent in zip(pages, plan.published_parents.tolist(), strict=True):
            self._parents[page] = next(others) if parent == -1 else hashes.get(parent, _NO_PARENT)

    def join(self, is_accepted: bool, identity: bytes) -> None:
        """A scheduler took the inventory, or did not; from now on pages are named under ``identity``."""
        if not is_accepted:
            self._hashes.clear()
            self._parents.clear()
        self._identity = identity

    def inventory(self) -> Inventory:
        """The names as columns. If there are too many, those that were given first, which are of pages before their
        followers; the others are forgotten, for the scheduler will write their pages without evicting them."""
        for page in list(islice(self._hashes, MOST_PAGES, None)):
            self._forget(page)
        return Inventory(
            pages=np.fromiter(self._hashes, dtype="<i4", count=len(self._hashes)).tobytes(),
            hashes=b"".join(self._hashes.values()),
            parents=b"".join(self._parents.values()),
            identity=self._identity,
        )

    def _forget(self, page: int) -> None:
        self._hashes.pop(page, None)
        self._parents.pop(page, None)


def _each(hashes: bytes) -> Sequence[bytes]:
    """The hashes of a column."""
    return [hashes[start : start + HASH_BYTES] for start in range(0, len(hashes), HASH_BYTES)]
