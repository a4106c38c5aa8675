"""A worker that comes back with its pages: what is taken of its inventory, and what it saves."""

from dataclasses import replace

import pytest
from support.core_bench import CoreBench, card, config

from scheduler_svc.core.errors import WorkerRejected
from scheduler_svc.core.inventory import in_order
from scheduler_svc.core.page_hash import NO_PARENT, cache_identity
from scheduler_svc.core.types import PageHash, PageId, Published, WorkerId


def name(number: int) -> PageHash:
    return PageHash(bytes([number]) * 16)


def page(number: int, parent: int | None = None, hash_of: int | None = None) -> Published:
    parent_name = NO_PARENT if parent is None else name(parent)
    return Published(page=PageId(number), hash=name(number if hash_of is None else hash_of), parent=parent_name)


@pytest.mark.parametrize("size", [16, 32, 64, 128])
def test_a_new_scheduler_finds_the_pages_of_an_old_worker(size: int) -> None:
    prompt = list(range(3 * size + 1))
    before = CoreBench(config(tokens=4096), card(pages=8, size=size))
    before.submit(0, prompt, 2)
    before.submit(1, [5], 6)  # its steps tell the worker the names
    before.run()
    after = CoreBench(config(tokens=4096))
    after.join(card(pages=8, size=size), warm=before.workers["w"])  # type: ignore[index]
    after.submit(2, prompt, 1)
    after.run()
    assert after.ended[2].num_cached_tokens == 3 * size  # type: ignore[index]
    after.check_outputs()


def test_without_a_prefix_cache_nothing_is_taken() -> None:
    bench = CoreBench(config(enable_prefix_caching=False))
    bench.core.add_worker(replace(card(pages=4), inventory=[page(1)]), 0.0)
    assert bench.core.counts().pages["w"].num_cached == 0  # type: ignore[index]


def test_tails_come_before_heads_and_pages_without_their_parents_are_kept() -> None:
    inventory = [page(1), page(2, parent=1), page(3, parent=9), page(4, parent=2), page(5)]
    assert [each.page for each in in_order(inventory, 8)] == [4, 2, 5, 3, 1]


@pytest.mark.parametrize(
    "inventory",
    [
        [page(8)],
        [page(-1, hash_of=1)],
        [page(1), page(1, hash_of=2)],
        [page(1), page(2, hash_of=1)],
        [page(6, parent=6)],
    ],
)
def test_an_inventory_that_cannot_be_true_is_refused(inventory: list[Published]) -> None:
    bench = CoreBench(config(), card())
    with pytest.raises(WorkerRejected, match="inventory"):
        bench.core.add_worker(replace(card("v", pages=8), inventory=inventory), 0.0)
    bench.submit(0, [1, 2, 3], 1)
    bench.run()


def test_an_identity_tells_keys_content_and_page_sizes_apart() -> None:
    keys = [b"k" * 32, b"l" * 32]
    identities = {cache_identity(key, content, size) for key in keys for content in (b"a", b"b") for size in (16, 32)}
    assert len(identities) == 8


def test_names_that_no_plan_told_are_told_before_an_idle_time() -> None:
    bench = CoreBench(config(), card(pages=8))
    worker_id = WorkerId("w")
    assert bench.core.take_names(WorkerId("nobody"), 0.0) is None
    assert bench.core.take_names(worker_id, 0.0) is None
    bench.submit(0, range(9), 1)
    bench.plan()
    assert bench.core.take_names(worker_id, 0.0) is None  # it has something to do
    bench.result()
    names = bench.core.take_names(worker_id, 0.0)
    assert names is not None
    assert [each.page for each in names.published] == [0, 1]
    assert list(names.evicted_pages) == []
    assert bench.core.take_names(worker_id, 0.0) is None
