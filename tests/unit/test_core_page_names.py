"""How a worker is told which page follows which: by the page that has the parent's name then, else by the name."""

from array import array

import pytest
from support.told_names import ToldNames

from gpu_worker import published_pages
from gpu_worker.batch_plan import PageNames, int32s
from scheduler_svc.core.page_hash import NO_PARENT
from scheduler_svc.core.page_pool import PagePool
from scheduler_svc.core.types import NO_PAGE, PageHash, PageId

A, B, C, X = (PageHash(letter * 16) for letter in (b"a", b"b", b"c", b"x"))


def page(number: int) -> PageId:
    return PageId(number)


def parents(pool: PagePool, worker: ToldNames) -> dict[int, int]:
    """The parent's page of each page that the worker is told; its inventory is compared with the pool."""
    told = worker.follow(pool)
    return {each.page: parent for each, parent in zip(told.published, told.parent_pages, strict=True)}


def test_a_parent_is_told_as_its_page_whether_it_was_told_before_or_with_it() -> None:
    pool, worker = PagePool(4), ToldNames()
    pool.take(3)
    pool.publish(page(0), A, NO_PARENT)
    pool.publish(page(1), B, A)
    assert parents(pool, worker) == {0: NO_PAGE, 1: 0}
    pool.publish(page(2), C, B)
    assert parents(pool, worker) == {2: 1}


def test_the_parents_page_is_the_named_one_not_the_rows_own() -> None:
    """Two rows computed the same first page."""
    pool, worker = PagePool(4), ToldNames()
    pool.take(3)
    pool.publish(page(2), A, NO_PARENT)
    pool.publish(page(0), A, NO_PARENT)  # stays private
    pool.publish(page(1), B, A)
    assert parents(pool, worker) == {2: NO_PAGE, 1: 2}


def test_a_parent_that_was_evicted_is_told_by_its_name() -> None:
    """The row's own first page is private; its twin was evicted."""
    pool, worker = PagePool(4), ToldNames()
    pool.take(3)
    pool.publish(page(2), A, NO_PARENT)
    pool.publish(page(0), A, NO_PARENT)
    assert parents(pool, worker) == {2: NO_PAGE}
    pool.release([page(2)], [A])
    pool.forget()
    pool.publish(page(1), B, A)
    assert parents(pool, worker) == {1: NO_PAGE}
    assert worker.inventory()[0].parent == A


def test_a_parent_that_loses_its_page_before_it_is_told_is_told_as_it_is_then() -> None:
    pool, worker = PagePool(4), ToldNames()
    pool.take(4)
    pool.publish(page(2), A, NO_PARENT)
    pool.publish(page(1), B, A)
    pool.release([page(2)], [A])
    assert pool.forget() == 1
    assert pool.take(1) == [2]
    pool.publish(page(2), X, NO_PARENT)  # the parent's page of before
    assert parents(pool, worker) == {1: NO_PAGE, 2: NO_PAGE}
    pool.publish(page(3), C, B)
    pool.release([page(2)], [X])
    pool.forget()
    pool.publish(page(0), A, NO_PARENT)
    assert parents(pool, worker) == {3: 1, 0: NO_PAGE}


def test_a_name_that_moves_to_another_page_takes_its_followers_along() -> None:
    pool, worker = PagePool(4), ToldNames()
    pool.take(4)
    pool.publish(page(2), A, NO_PARENT)
    assert parents(pool, worker) == {2: NO_PAGE}
    pool.publish(page(1), B, A)
    pool.release([page(2)], [A])
    pool.forget()
    pool.publish(page(0), A, NO_PARENT)
    assert parents(pool, worker) == {1: 0, 0: NO_PAGE}


@pytest.mark.parametrize("parent", [7, -2])
def test_a_parent_without_a_name_is_taken_for_none(parent: int) -> None:
    """No scheduler tells it so."""
    worker = published_pages.PublishedPages()
    names = {"published_pages": int32s([3]), "published_hashes": A, "published_parents": int32s([parent])}
    worker.apply(PageNames(epoch=1, **names, parent_hashes=b"", evicted_pages=int32s()))  # type: ignore[arg-type]
    assert worker.inventory().parents == NO_PARENT


def test_names_that_an_inventory_has_no_room_for_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler knows nothing of them, so their pages are written again without being evicted."""
    monkeypatch.setattr(published_pages, "MOST_PAGES", 2)
    worker = published_pages.PublishedPages()
    hashes, told = bytes(range(48)), int32s([5, 3, 4])
    names = {"published_hashes": hashes, "published_parents": int32s([-1, 5, 3]), "parent_hashes": bytes(16)}
    worker.apply(PageNames(epoch=1, published_pages=told, **names, evicted_pages=int32s()))  # type: ignore[arg-type]
    inventory = worker.inventory()
    assert (array("i", inventory.pages).tolist(), inventory.hashes) == ([5, 3], hashes[:32])
    assert inventory.parents == bytes(16) + hashes[:16]
    monkeypatch.undo()
    assert worker.inventory() == inventory
