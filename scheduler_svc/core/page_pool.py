"""The pages of one worker: which are free, which are held by page tables, which are cached and wait for a reader.

    free ──take──▶ held ──release──▶ free        (not named)
                    │ ▲ ╲
               publish │  release──▶ cached      (named, referenced by no table)
                    │ share            │
                    ▼  ╲───────────────┤
                  held, named          └──take──▶ held     (evicted: its name is gone first)

Decides what is evicted: unreferenced named pages only, the least recently used first, and of one chain tails before
heads (a head without its tail is still worth something, a tail without its head cannot be found). Knows no requests
and no tokens.

A pin is a reference to each named page whose name it has, one for all pins of a name: such a page is held, whether a
table has it or not. Pins name whole chains from their first page on.

A page that a step in flight may still write is not given out: its table is released ``after`` that step, and counts as
held until ``settle`` says that the step is done. A table is released as a whole, so that chains keep their order in
the cache.

Invariants: free + held + cached = all; a page's reference count is the number of tables it is in, tables that wait for
a step included, and one if it is pinned; free pages have no name; cached pages have one.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from scheduler_svc.core.prefix_cache import PrefixCache
from scheduler_svc.core.types import PageHash, PageId, PinKey, Published, StepId

MOST_FORGOTTEN = 65_536
"""Names of evicted pages that are remembered, to tell misses apart."""

Table = tuple[Sequence[PageId], Sequence[PageHash]]
"""Pages in order, and the names they have or would have had (as many as are known)."""


class PagePool:
    """Books of one worker's pages."""

    __slots__ = (
        "_cached",
        "_deferred",
        "_evicted",
        "_forgotten",
        "_free",
        "_pin_counts",
        "_pins",
        "_published",
        "cache",
        "num_evicted",
        "num_pages",
        "refs",
    )

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.cache = PrefixCache()
        self.refs = [0] * num_pages
        self.num_evicted = 0
        self._free = [PageId(page) for page in range(num_pages - 1, -1, -1)]
        self._cached: OrderedDict[PageId, None] = OrderedDict()  # least recently used first
        self._deferred: dict[StepId, list[Table]] = {}
        self._pins: dict[PinKey, Sequence[PageHash]] = {}
        self._pin_counts: dict[PageHash, int] = {}  # how many pins have the name; no zeros
        self._published: dict[PageId, Published] = {}
        self._evicted: array[int] = array("i")
        self._forgotten: OrderedDict[PageHash, None] = OrderedDict()  # names of evicted pages, oldest first

    def adopt(self, inventory: Sequence[Published]) -> None:
        """Begins with these free pages named and cached; what comes first is evicted first. For a pool that is new."""
        for each in inventory:
            self.cache.bind(each.page, each.hash, each.parent)
            self._cached[each.page] = None
        self._free = [page for page in self._free if page not in self._cached]

    @property
    def num_available(self) -> int:
        """Pages that ``take`` could give now."""
        return len(self._free) + len(self._cached)

    @property
    def num_free(self) -> int:
        """Pages without content of any use."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Named pages in no table."""
        return len(self._cached)

    def take(self, count: int) -> list[PageId]:
        """``count`` pages for one table; free ones first. There must be so many (``num_available``)."""
        free = self._free
        if not 0 < count <= len(free):
            return [self.take_one() for _ in range(count)]
        pages = free[: -count - 1 : -1]
        del free[-count:]
        for page in pages:
            self.refs[page] = 1
        return pages

    def take_one(self) -> PageId:
        """``take(1)``."""
        page = self._free.pop() if self._free else self._evict()
        self.refs[page] = 1
        return page

    def share(self, pages: Sequence[PageId]) -> None:
        """Puts full pages into one more table."""
        refs = self.refs
        for page in pages:
            count = refs[page]
            if not count:
                del self._cached[page]
            refs[page] = count + 1

    def num_cached_among(self, pages: Sequence[PageId]) -> int:
        """How many of these pages ``share`` would make unavailable."""
        refs = self.refs
        return [refs[page] for page in pages].count(0)

    def publish(self, page: PageId, page_hash: PageHash, parent: PageHash) -> None:
        """Names a held page whose content is complete. If the name is taken the page stays private."""
        if self.cache.bind(page, page_hash, parent):
            self._published[page] = Published(page=page, hash=page_hash, parent=parent)
            if page_hash in self._pin_counts:
                self.refs[page] += 1

    def release(self, pages: Sequence[PageId], hashes: Sequence[PageHash], after: StepId | None = None) -> None:
        """Takes a table's pages back, at once or when step ``after`` is done."""
        if after is not None:
            self._deferred.setdefault(after, []).append((pages, hashes))
            return
        refs, names, cached, index = self.refs, self.cache.names, self._cached, len(pages)
        for page in reversed(pages):  # tails first: they shall be evicted first
            index -= 1
            refs[page] = count = refs[page] - 1
            if page in names:
                if not count:
                    cached[page] = None
                continue
            if not count:
                self._free.append(page)
            if index < len(hashes):
                self._touch(hashes[index])

    def forget(self) -> int:
        """Frees every cached page that is not pinned, its name gone; returns how many there were."""
        count = len(self._cached)
        self._free += [self._evict() for _ in range(count)]
        return count

    def pin(self, key: PinKey, hashes: Sequence[PageHash]) -> None:
        """Holds the pages of these names, those that will get one too, until ``unpin``; the key must be new."""
        self._pins[key] = hashes
        for page_hash in hashes:
            count = self._pin_counts[page_hash] = self._pin_counts.get(page_hash, 0) + 1
            page = self.cache.page_of(page_hash)
            if count == 1 and page is not None:
                self.share([page])

    def unpin(self, key: PinKey) -> None:
        """Lets a pin's pages go, tails first. One that is not known holds nothing."""
        for page_hash in reversed(self._pins.pop(key, ())):
            self._pin_counts[page_hash] -= 1
            if not self._pin_counts[page_hash]:
                del self._pin_counts[page_hash]
                page = self.cache.page_of(page_hash)
                if page is not None:
                    self.release([page], ())

    def drop_pin(self) -> bool:
        """Lets the pages of the last pin go; False if there is none."""
        if not self._pins:
            return False
        self.unpin(next(reversed(self._pins)))
        return True

    def pins(self) -> "Iterator[tuple[PinKey, Sequence[PageHash]]]":
        """Those in force here; for checks."""
        return iter(self._pins.items())

    def num_pinned(self, key: PinKey | None = None) -> int:
        """Pages that a pin holds, or all pins. Costs the names."""
        names = self._pin_counts if key is None else self._pins.get(key, ())
        return sum(self.cache.page_of(page_hash) is not None for page_hash in names)

    def keep(self, page: PageId, step_id: StepId) -> None:
        """Lets nobody write a held page until a step is done that reads it."""
        self.refs[page] += 1
        self.release([page], (), step_id)

    def was_evicted(self, page_hash: PageHash) -> bool:
        """Whether a page of this name was among the last that were evicted."""
        return page_hash in self._forgotten

    def settle(self, step_id: StepId) -> None:
        """A step is done: releases what waited for it."""
        for pages, hashes in self._deferred.pop(step_id, ()):
            self.release(pages, hashes)

    def num_coming(self) -> int:
        """Pages that become available when the steps in flight are done. Costs the length of the tables that wait."""
        waiting: dict[PageId, int] = {}
        for pages in self.waiting_tables():
            for page in pages:
                waiting[page] = waiting.get(page, 0) + 1
        return sum(1 for page, count in waiting.items() if self.refs[page] == count)

    def waiting_tables(self) -> Iterator[Sequence[PageId]]:
        """Tables whose release waits for a step."""
        return (pages for tables in self._deferred.values() for pages, _ in tables)

    def waiting_steps(self) -> Iterator[StepId]:
        """Steps that releases wait for."""
        return iter(self._deferred)

    @property
    def has_changes(self) -> bool:
        """Whether ``take_changes`` would tell anything."""
        return bool(self._published or self._evicted)

    def take_changes(self) -> "tuple[Sequence[Published], Sequence[PageId], array[int]]":
        """Names given since the last call, the pages that have their parents' names now, and names taken; a page named
        and evicted in between is in neither."""
        published, evicted = tuple(self._published.values()), self._evicted
        self._published.clear()
        self._evicted = array("i")  # the old one is the plan's now
        return published, self.cache.parent_pages(published), evicted

    def free_pages(self) -> Sequence[PageId]:
        """For checks."""
        return self._free

    def cached_pages(self) -> Sequence[PageId]:
        """In the order they would be evicted; for checks."""
        return list(self._cached)

    def _evict(self) -> PageId:
        page, _ = self._cached.popitem(last=False)
        self._forgotten[self.cache.unbind(page)] = None
        if len(self._forgotten) > MOST_FORGOTTEN:
            self._forgotten.popitem(last=False)
        self.num_evicted += 1
        if self._published.pop(page, None) is None:
            self._evicted.append(page)
        return page

    def _touch(self, page_hash: PageHash) -> None:
        """A private copy goes: its named twin counts as used, so that it outlives the pages after it in the chain."""
        twin = self.cache.page_of(page_hash)
        if twin is not None and twin in self._cached:
            self._cached.move_to_end(twin)
