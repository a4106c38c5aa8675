"""What a worker knows of a pool's names, told in the bytes that tell it."""

from gpu_worker import codec as gpu_codec
from gpu_worker.published_pages import PublishedPages
from scheduler_svc import columns, worker_codec
from scheduler_svc.core.page_pool import PagePool
from scheduler_svc.core.types import PageHash, PageId, PageNames, Published, WorkerId


class ToldNames:
    """Follows pools, one after the other."""

    def __init__(self) -> None:
        self._pages = PublishedPages()

    def follow(self, pool: PagePool) -> PageNames:
        """Tells what is new, and returns it; afterwards the worker's inventory is what the pool has."""
        published, parent_pages, evicted = pool.take_changes()
        known = {each.page for each in self.inventory()}
        assert known.issuperset(evicted)
        assert not (known - set(evicted)).intersection(each.page for each in published)
        told = PageNames(worker_id=WorkerId("w"), published=published, parent_pages=parent_pages, evicted_pages=evicted)
        frame = gpu_codec.decode_frame(worker_codec.names(1, 1, told))
        assert frame is not None
        self._pages.apply(gpu_codec.decode_names(frame))
        assert {each.page: (each.hash, each.parent) for each in self.inventory()} == pool.cache.names
        return told

    def inventory(self) -> list[Published]:
        """As a hello brings it."""
        told = self._pages.inventory()
        pages = columns.read_ints(told.pages, "pages")
        hashes, parents = columns.read_hashes(told.hashes, "hashes"), columns.read_hashes(told.parents, "parents")
        return [
            Published(page=PageId(page), hash=PageHash(page_hash), parent=PageHash(parent))
            for page, page_hash, parent in zip(pages, hashes, parents, strict=True)
        ]
