"""The page pool against a plain model of it: every table, name and reference is counted after every call."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.told_names import ToldNames

from scheduler_svc.core.invariants import check_pool
from scheduler_svc.core.inventory import in_order
from scheduler_svc.core.page_pool import PagePool
from scheduler_svc.core.types import PageHash, PageId, StepId

NUM_PAGES = 7


def chain(seed: int, length: int) -> list[PageHash]:
    """Names of a chain: two chains of one seed are equal as far as both go."""
    return [PageHash(bytes([seed + 1]) * 8 + index.to_bytes(8, "little")) for index in range(length)]


class PagePoolMachine(RuleBasedStateMachine):
    """Tables are of four chains; some pages of a table are shared with others, the last ones may have no name yet."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(NUM_PAGES)
        self.tables: list[tuple[int, list[PageId]]] = []
        self.waiting: dict[int, list[list[PageId]]] = {}
        self.step = 0
        self.pins: dict[int, list[PageHash]] = {}
        self.worker = ToldNames()

    @rule(seed=st.integers(0, 3), length=st.integers(1, NUM_PAGES))
    def begin(self, seed: int, length: int) -> None:
        """A table begins with what is cached of its chain and takes the rest."""
        pages = self.pool.cache.match(chain(seed, length)[: length - 1])
        fresh = length - len(pages)
        if fresh > self.pool.num_available - self.pool.num_cached_among(pages):
            return
        self.pool.share(pages)
        self.tables.append((seed, pages + self.pool.take(fresh)))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        """Some pages of a table are complete, each after those before it; those whose names are taken stay private."""
        seed, pages = data.draw(st.sampled_from(self.tables))
        names = chain(seed, len(pages))
        start = data.draw(st.integers(0, len(pages)))
        for index in range(start, data.draw(st.integers(start, len(pages)))):
            self.pool.publish(pages[index], names[index], names[index - 1] if index else PageHash(bytes(16)))
            assert self.pool.cache.page_of(names[index]) is not None

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), later=st.booleans())
    def release(self, data: st.DataObject, later: bool) -> None:
        """A table ends, at once or when a step is done."""
        seed, pages = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.release(pages, chain(seed, len(pages)), StepId(self.step) if later else None)
        if later:
            self.waiting.setdefault(self.step, []).append(pages)

    @rule(key=st.integers(0, 2), seed=st.integers(0, 3), length=st.integers(1, NUM_PAGES))
    def pin(self, key: int, seed: int, length: int) -> None:
        if key not in self.pins:
            self.pins[key] = chain(seed, length)
            self.pool.pin(("", str(key)), self.pins[key])
            assert self.pool.num_pinned(("", str(key))) == len(self.pinned(key))

    @rule(key=st.integers(0, 2))
    def unpin(self, key: int) -> None:
        self.pins.pop(key, None)
        self.pool.unpin(("", str(key)))

    @precondition(lambda self: self.pins)
    @rule()
    def drop_pin(self) -> None:
        """The last one goes."""
        del self.pins[list(self.pins)[-1]]
        assert self.pool.drop_pin()

    def pinned(self, *keys: int) -> set[PageId]:
        pages = [self.pool.cache.page_of(name) for key in keys for name in self.pins[key]]
        return {page for page in pages if page is not None}

    @rule()
    def next_step(self) -> None:
        self.step += 1

    @precondition(lambda self: self.waiting)
    @rule()
    def settle(self) -> None:
        """The oldest step is done."""
        step = min(self.waiting)
        coming, available = self.pool.num_coming(), self.pool.num_available
        everything = len(self.waiting) == 1
        del self.waiting[step]
        self.pool.settle(StepId(step))
        gained = self.pool.num_available - available
        assert gained == coming if everything else gained <= coming

    @rule()
    def tell_worker(self) -> None:
        """What a worker makes of the bytes that tell it the names is what the pool has, parents included."""
        self.worker.follow(self.pool)

    @rule()
    def begin_anew(self) -> None:
        """The worker brings what it was told to another scheduler."""
        inventory = self.worker.inventory()
        self.pool = PagePool(NUM_PAGES)
        self.pool.adopt(in_order(inventory, NUM_PAGES))
        self.tables, self.waiting, self.pins = [], {}, {}

    @invariant()
    def books_agree(self) -> None:
        check_pool(self.pool, [pages for _, pages in self.tables])
        held = {page for _, pages in self.tables for page in pages}
        held |= {page for tables in self.waiting.values() for pages in tables for page in pages}
        held |= self.pinned(*self.pins)
        assert self.pool.num_pinned() == len(self.pinned(*self.pins))
        assert len(held) == NUM_PAGES - self.pool.num_available
        assert self.pool.num_free + self.pool.num_cached == self.pool.num_available


TestPagePool = PagePoolMachine.TestCase
TestPagePool.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
