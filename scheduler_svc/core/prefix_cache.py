"""Which page holds the keys and values of which chain of tokens: a bijection between page hashes and pages of one
worker.

It decides nothing about when a page gets or loses its name (page_pool does) and knows no requests. Invariant:
``page_of`` and ``name_of`` are inverse to each other at all times.
"""

from collections.abc import Iterator, Sequence

from scheduler_svc.core.types import NO_PAGE, PageHash, PageId, Published


class PrefixCache:
    """Named pages of one worker."""

    __slots__ = ("_num_children", "_page_of", "names")

    def __init__(self) -> None:
        self._page_of: dict[PageHash, PageId] = {}
        self.names: dict[PageId, tuple[PageHash, PageHash]] = {}
        """Hash and parent's hash of each named page; to be read only."""
        self._num_children: dict[PageHash, int] = {}

    def __len__(self) -> int:
        return len(self._page_of)

    def __iter__(self) -> Iterator[tuple[PageHash, PageId]]:
        return iter(self._page_of.items())

    def match(self, hashes: Sequence[PageHash]) -> list[PageId]:
        """Pages of the longest leading run of ``hashes`` that is cached. One look-up a page."""
        pages: list[PageId] = []
        page_of = self._page_of
        for page_hash in hashes:
            page = page_of.get(page_hash)
            if page is None:
                break
            pages.append(page)
        return pages

    def missing(self, hashes: Sequence[PageHash]) -> list[PageHash]:
        """Those that are not cached."""
        page_of = self._page_of
        return [page_hash for page_hash in hashes if page_hash not in page_of]

    def num_leading(self, hashes: Sequence[PageHash]) -> int:
        """About how many leading ``hashes`` are cached: exact where tails were evicted before heads, as they are. Costs
        their logarithm, and one look-up if the first is not cached."""
        page_of = self._page_of
        if not hashes or hashes[0] not in page_of:
            return 0
        least, most = 1, len(hashes)
        while least < most:
            middle = (least + most + 1) // 2
            if hashes[middle - 1] in page_of:
                least = middle
            else:
                most = middle - 1
        return least

    def page_of(self, page_hash: PageHash) -> PageId | None:
        """The page of this name."""
        return self._page_of.get(page_hash)

    def parent_pages(self, published: Sequence[Published]) -> list[PageId]:
        """The page of each one's parent; NO_PAGE where none has its name."""
        page_of = self._page_of
        return [page_of.get(each.parent, NO_PAGE) for each in published]

    def name_of(self, page: PageId) -> tuple[PageHash, PageHash] | None:
        """Hash and parent's hash of a page; None if it is not named."""
        return self.names.get(page)

    def is_named(self, page: PageId) -> bool:
        """Whether others can find the page."""
        return page in self.names

    def bind(self, page: PageId, page_hash: PageHash, parent: PageHash) -> bool:
        """Names a page. False, and nothing done, if the name or the page is taken."""
        if page_hash in self._page_of or page in self.names:
            return False
        self._page_of[page_hash] = page
        self.names[page] = (page_hash, parent)
        self._num_children[parent] = self._num_children.get(parent, 0) + 1
        return True

    def has_children(self, page_hash: PageHash) -> bool:
        """Whether a page that follows this one in a chain is cached."""
        return page_hash in self._num_children

    def unbind(self, page: PageId) -> PageHash:
        """Takes a page's name away, and tells it."""
        page_hash, parent = self.names.pop(page)
        del self._page_of[page_hash]
        self._num_children[parent] -= 1
        if not self._num_children[parent]:
            del self._num_children[parent]
        return page_hash
