"""Which pages hold content that has a name, so that a new session may take them over.

Updated as plans are applied, in order; a page that is written again was evicted by an earlier or the same plan.
"""

from dataclasses import dataclass
from itertools import islice

import numpy as np

from gpu_worker.batch_plan import BatchPlan, PageNames

HASH_BYTES = 16
MOST_PAGES = 1 << 17
"""Pages of one inventory; more would keep the scheduler busy for too long."""


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
        self._names: dict[int, tuple[bytes, bytes]] = {}
        self._identity = b""

    def apply(self, plan: BatchPlan | PageNames) -> None:
        """Take over what a plan, or what came before an idle time, evicts and publishes."""
        for page in plan.evicted_pages.tolist():
            self._names.pop(page, None)
        for position, page in enumerate(plan.published_pages.tolist()):
            part = slice(position * HASH_BYTES, (position + 1) * HASH_BYTES)
            self._names[page] = (plan.published_hashes[part], plan.published_parents[part])

    def join(self, is_accepted: bool, identity: bytes) -> None:
        """A scheduler took the inventory, or did not; from now on pages are named under ``identity``."""
        if not is_accepted:
            self._names.clear()
        self._identity = identity

    def inventory(self) -> Inventory:
        """The names as columns, those that were given first if there are too many: pages before their followers."""
        names = dict(islice(self._names.items(), MOST_PAGES))
        return Inventory(
            pages=np.fromiter(names, dtype="<i4", count=len(names)).tobytes(),
            hashes=b"".join(name for name, _ in names.values()),
            parents=b"".join(parent for _, parent in names.values()),
            identity=self._identity,
        )
