"""Groups of rows on one worker that share their leading pages, so that the worker may read those once for all of them.

A row joins when its prompt is computed and leaves with its pages; nothing is done in between. A group has one depth,
the leading pages that all its members' tables agree on; all of them are full, so nobody writes them. One level: a row
is in one group. It joins the group that it shares most with, unless that would make the group's depth less than half:
one request that shares little must not spoil a deep group for the others.

    tables   [1 2 3 4 5 6 | 7]  [1 2 3 4 5 6 | 9]  [1 2 3 4 | 8]        depth 4 for all three, or 6 for the first two

A group is told to the worker as long as it has at least ``MIN_MEMBERS`` members and ``MIN_PAGES`` pages.
"""

from dataclasses import dataclass, field

from scheduler_svc.core.request import Residence
from scheduler_svc.core.types import PageGroup, PageId, Row

MIN_PAGES = 4
MIN_MEMBERS = 4

_Head = tuple[PageId, ...]


@dataclass(slots=True, eq=False)
class _Group:
    group_id: int
    pages: list[PageId]
    """The first member's table as it was; agrees with all members' up to ``depth``."""
    depth: int
    rows: dict[Row, None] = field(default_factory=dict)
    is_told: bool = False


class SharedPrefixes:
    """Groups of one worker. Cost of a change: the depth of the groups that begin with the same pages."""

    __slots__ = ("_by_head", "_changed", "_group_of", "_next_id")

    def __init__(self) -> None:
        self._by_head: dict[_Head, list[_Group]] = {}
        self._group_of: dict[Row, _Group] = {}
        self._changed: dict[int, _Group] = {}
        self._next_id = 0

    def join(self, residence: Residence, num_full_pages: int) -> None:
        """A row's first ``num_full_pages`` pages are full; it is in no group."""
        if num_full_pages < MIN_PAGES:
            return
        pages = residence.pages
        groups = self._by_head.setdefault(tuple(pages[:MIN_PAGES]), [])
        best, depth = None, MIN_PAGES - 1
        for group in groups:
            common = _common(group.pages, pages, min(group.depth, num_full_pages))
            if common > depth and 2 * common >= group.depth:
                best, depth = group, common
        if best is None:
            best, depth = _Group(self._next_id, pages[:num_full_pages], num_full_pages), num_full_pages
            self._next_id += 1
            groups.append(best)
        best.depth = depth
        best.rows[residence.row] = None
        self._group_of[residence.row] = best
        self._changed[best.group_id] = best

    def leave(self, row: Row) -> None:
        """A row gives its pages back."""
        group = self._group_of.pop(row, None)
        if group is None:
            return
        del group.rows[row]
        self._changed[group.group_id] = group
        if not group.rows:
            head = tuple(group.pages[:MIN_PAGES])
            self._by_head[head].remove(group)
            if not self._by_head[head]:
                del self._by_head[head]

    def take_changes(self) -> list[PageGroup]:
        """Groups that are other than when they were told last; one without rows is gone."""
        changes: list[PageGroup] = []
        for group in self._changed.values():
            tells = len(group.rows) >= MIN_MEMBERS
            if tells or group.is_told:
                rows = sorted(group.rows) if tells else []
                changes.append(PageGroup(group_id=group.group_id, num_pages=group.depth, rows=rows))
            group.is_told = tells
        self._changed.clear()
        return changes

    def groups(self) -> list[PageGroup]:
        """All groups, told or not; for checks."""
        groups = dict.fromkeys(self._group_of.values())
        return [PageGroup(group_id=each.group_id, num_pages=each.depth, rows=list(each.rows)) for each in groups]


def _common(first: list[PageId], second: list[PageId], limit: int) -> int:
    """Leading pages that both tables have, at most ``limit``."""
    if first[:limit] == second[:limit]:
        return limit
    return next(index for index in range(limit) if first[index] != second[index])
