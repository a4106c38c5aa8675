"""Which of the pages that a worker says it still holds are taken over, so that a new scheduler finds a warm cache.

An inventory is what the plans of an earlier life named. It is refused as a whole if it cannot be true: a page outside
the pool, a page or a name twice. Pages whose chain does not begin at a first page are left out: nobody could find them.
"""

from collections.abc import Sequence

from scheduler_svc.core.errors import WorkerRejected
from scheduler_svc.core.page_hash import NO_PARENT
from scheduler_svc.core.types import PageHash, Published


def usable(inventory: Sequence[Published], num_pages: int) -> list[Published]:
    """The pages that can be found, tails before heads. Costs their number.

    Raises:
        WorkerRejected: the inventory contradicts the pool or itself.
    """
    if any(not 0 <= each.page < num_pages for each in inventory):
        raise WorkerRejected(f"the inventory names a page outside 0..{num_pages - 1}")
    pages, names = {each.page for each in inventory}, {each.hash for each in inventory}
    if min(len(pages), len(names)) < len(inventory):
        raise WorkerRejected("the inventory names a page twice, or two pages alike")
    children: dict[PageHash, list[Published]] = {}
    for each in inventory:
        children.setdefault(each.parent, []).append(each)
    found: list[Published] = []
    level = children.pop(NO_PARENT, [])
    while level:
        found += level
        level = [child for each in level for child in children.pop(each.hash, ())]
    found.reverse()
    return found
