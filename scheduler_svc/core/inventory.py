"""The pages that a worker says it still holds, in the order in which they are taken over: a new scheduler finds a warm
cache.

An inventory is what the plans of an earlier life named. It is taken as a whole, or refused as a whole if it cannot be
true: a page outside the pool, a page or a name twice, a chain without a beginning. Pages whose parents are gone are
taken too, so that the worker's names and ours are the same; they are found again once somebody computes the parents.
"""

from collections.abc import Sequence

from scheduler_svc.core.errors import WorkerRejected
from scheduler_svc.core.types import PageHash, Published


def in_order(inventory: Sequence[Published], num_pages: int) -> list[Published]:
    """The pages of an inventory, tails before heads. Costs their number.

    Raises:
        WorkerRejected: the inventory contradicts the pool or itself.
    """
    if any(not 0 <= each.page < num_pages for each in inventory):
        raise WorkerRejected(f"the inventory names a page outside 0..{num_pages - 1}")
    pages, names = {each.page for each in inventory}, {each.hash for each in inventory}
    if min(len(pages), len(names)) < len(inventory):
        raise WorkerRejected("the inventory names a page twice, or two pages alike")
    children: dict[PageHash, list[Published]] = {}
    level: list[Published] = []
    for each in inventory:
        (children.setdefault(each.parent, []) if each.parent in names else level).append(each)
    found: list[Published] = []
    while level:
        found += level
        level = [child for each in level for child in children.get(each.hash, ())]
    if len(found) < len(inventory):
        raise WorkerRejected("the inventory has a chain without a beginning")
    found.reverse()
    return found
