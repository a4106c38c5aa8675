"""Which pages hold content that has a name, so that a new session may take them over.

Updated as plans are applied, in order; a page that is written again was evicted by an earlier or the same plan.
"""

from dataclasses import dataclass

import numpy as np

from gpu_worker.batch_plan import BatchPlan

HASH_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Columns of worker.proto's Inventory."""

    pages: bytes = b""
    hashes: bytes = b""
    parents: bytes = b""


class PublishedPages:
    """Names by page."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[bytes, bytes]] = {}

    def apply(self, plan: BatchPlan) -> None:
        """Take over what a plan evicts and publishes."""
        for page in plan.evicted_pages.tolist():
            self._names.pop(page, None)
        for position, page in enumerate(plan.published_pages.tolist()):
            part = slice(position * HASH_BYTES, (position + 1) * HASH_BYTES)
            self._names[page] = (plan.published_hashes[part], plan.published_parents[part])

    def forget(self) -> None:
        """The scheduler did not take the inventory."""
        self._names.clear()

    def inventory(self) -> Inventory:
        """All names as columns."""
        return Inventory(
            pages=np.fromiter(self._names, dtype="<i4", count=len(self._names)).tobytes(),
            hashes=b"".join(name for name, _ in self._names.values()),
            parents=b"".join(parent for _, parent in self._names.values()),
        )
