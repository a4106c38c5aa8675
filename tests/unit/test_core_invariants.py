"""The checker notices every kind of broken book. Here alone tests reach into the core: to break it."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.core_bench import CoreBench, card, config

from scheduler_svc.core.errors import InvariantViolation
from scheduler_svc.core.page_hash import NO_PARENT
from scheduler_svc.core.request import State
from scheduler_svc.core.types import PageHash, PageId, Row, StepId, WorkerId
from scheduler_svc.core.worker import Worker


class Broken:
    """A core in the middle of its work: 0 decodes, 1 prefills, 2 is held, 3 waits, 5 has left cached pages."""

    def __init__(self) -> None:
        self.bench = CoreBench(config(tokens=8, rows=2), card(pages=16, size=4, rows=2))
        self.bench.submit(5, range(900, 909), 1, stops=())
        self.bench.submit(2, [3, 4], 1, stops=(), hold=True)
        self.bench.run()
        self.bench.submit(0, [1, 2], 30, stops=())
        self.bench.step()
        self.bench.submit(1, range(20), 3, stops=())
        self.bench.submit(3, [9] * 9, 3, stops=())
        self.bench.plan()
        self.core = self.bench.core
        self.worker: Worker = self.core._placement.workers[WorkerId("w")]
        self.pool = self.worker.pool
        self.rows = list(self.worker.rows.values())

    def residence(self, key: int):  # type: ignore[no-untyped-def]
        return next(residence for residence in self.rows if residence.request.key == key)


def name(number: int) -> PageHash:
    return PageHash(bytes([number]) * 16)


def share_half_full(broken: Broken) -> None:
    share_first_page(broken.worker, broken.residence(0), broken.residence(1))


def share_first_page(worker: Worker, source, reader) -> None:  # type: ignore[no-untyped-def]
    """Puts a row's first page into the table of another, as the only fault."""
    before, reader.pages[0] = reader.pages[0], source.pages[0]
    worker.pool.refs[source.pages[0]] += 1
    worker.pool.refs[before] -= 1
    worker.pool._free.append(before)


def swap_eviction_order(broken: Broken) -> None:
    broken.pool._cached.move_to_end(broken.pool.cached_pages()[0])


def unname_cached(broken: Broken) -> None:
    broken.pool.cache.unbind(broken.pool.cached_pages()[0])


def lose_row(broken: Broken) -> None:
    broken.worker.free_rows.append(broken.rows[0].row)


def drop_lane(broken: Broken) -> None:
    broken.worker.decoding.lanes.clear()


def unorder_prompts(broken: Broken) -> None:
    residence = broken.residence(1)
    residence.request.order = (0, 99)
    broken.worker.prefilling.append(residence)


def rename_row(broken: Broken) -> None:
    broken.rows[0].request.residence = broken.rows[1]


def wait_while_running(broken: Broken) -> None:
    broken.residence(0).request.move(State.WAITING)


def copy_lane(broken: Broken) -> None:
    residence = broken.residence(0)
    residence.lane = residence.lane_from(broken.worker.next_step)


def finish_prefill(broken: Broken) -> None:
    broken.residence(1).num_known = 0


def forget_appointment(broken: Broken) -> None:
    broken.residence(0).due_step = 0


def take_too_much(broken: Broken) -> None:
    broken.residence(0).pages.append(broken.pool.take_one())


def name_wrongly(broken: Broken) -> None:
    broken.pool.publish(broken.residence(0).pages[0], name(1), NO_PARENT)


def name_for_wrong_parent(broken: Broken) -> None:
    residence = broken.residence(1)
    broken.bench.result()
    broken.pool.cache.unbind(residence.pages[0])
    broken.pool.publish(residence.pages[0], residence.request.hashes[0], name(7))


def wait_for_done_step(broken: Broken) -> None:
    broken.pool.release(broken.pool.take(1), (), StepId(1))


def claim_for_ended(broken: Broken) -> None:
    broken.worker.claims.claim(broken.core._registry.get(2), [name(1)])  # type: ignore[arg-type]


def claim_cached(broken: Broken) -> None:
    cached = broken.pool.cache.name_of(broken.pool.cached_pages()[0])
    broken.worker.claims.claim(broken.residence(0).request, [cached[0]])  # type: ignore[index]


def claim_foreign(broken: Broken) -> None:
    broken.worker.claims.claim(broken.residence(0).request, [name(1)])


def wait_nowhere(broken: Broken) -> None:
    broken.worker.queue.drain()


def wait_twice(broken: Broken) -> None:
    broken.core._placement.unplaced[3] = broken.core._registry.get(3)  # type: ignore


def free_twice(broken: Broken) -> None:
    broken.pool._free.append(broken.pool._free[0])


def free_cached(broken: Broken) -> None:
    broken.pool._free.append(broken.pool.cached_pages()[0])


def table_with_page_twice(broken: Broken) -> None:
    broken.residence(1).pages.append(broken.residence(1).pages[0])


def miscount_references(broken: Broken) -> None:
    broken.pool.refs[broken.residence(0).pages[0]] += 1


def lose_page(broken: Broken) -> None:
    broken.pool._free.pop()


def name_free(broken: Broken) -> None:
    broken.pool.cache.bind(broken.pool._free[0], name(1), NO_PARENT)


def two_names(broken: Broken) -> None:
    broken.pool.cache._page_of[name(1)] = broken.pool.cached_pages()[0]


def wrong_name(broken: Broken) -> None:
    page = broken.pool.cached_pages()[0]
    broken.pool.cache.names[page] = (name(1), NO_PARENT)


def miscount_load(broken: Broken) -> None:
    broken.worker.load += 1


def keep_ended(broken: Broken) -> None:
    broken.core._registry.get(3).move(State.ENDED)  # type: ignore[union-attr,arg-type]


def land_never(broken: Broken) -> None:
    broken.core._registry.get(3).move(State.RUNNING)  # type: ignore[union-attr,arg-type]
    broken.core._registry.get(3).move(State.LANDING)  # type: ignore[union-attr,arg-type]


def run_without_row(broken: Broken) -> None:
    broken.core._registry.get(3).move(State.RUNNING)  # type: ignore[union-attr,arg-type]


def forget_live(broken: Broken) -> None:
    request = broken.core._registry._requests.pop(0)  # type: ignore[call-overload]
    broken.worker.load -= request.load


def miscount_held(broken: Broken) -> None:
    broken.core._registry._num_held = 0


TAMPERINGS: list[tuple[Callable[[Broken], None], str]] = [
    (free_twice, "free twice"),
    (free_cached, "free and cached"),
    (table_with_page_twice, "twice in a table"),
    (miscount_references, "count other references"),
    (lose_page, "lost, or in use"),
    (name_free, "free page has a name"),
    (share_half_full, "shared and not full"),
    (two_names, "two names"),
    (wrong_name, "another name than"),
    (swap_eviction_order, "after its parent"),
    (unname_cached, "has no name"),
    (lose_row, "lost or doubled"),
    (drop_lane, "no or in two places"),
    (unorder_prompts, "in two places"),
    (rename_row, "not its request's row"),
    (wait_while_running, "that is waiting"),
    (copy_lane, "another lane"),
    (finish_prefill, "another stage"),
    (forget_appointment, "no appointment"),
    (take_too_much, "too many or too few"),
    (name_wrongly, "named for other tokens"),
    (name_for_wrong_parent, "another parent"),
    (wait_for_done_step, "step that is done"),
    (claim_for_ended, "does not run here"),
    (claim_cached, "claimed page is cached"),
    (claim_foreign, "somebody else"),
    (wait_nowhere, "waits"),
    (wait_twice, "load is|waits"),
    (miscount_load, "load is"),
    (keep_ended, "has ended and is live"),
    (land_never, "never land"),
    (run_without_row, "lost its row|has lost"),
    (forget_live, "ended request is still"),
    (miscount_held, "miscounted"),
]


def test_the_core_is_sound_before_it_is_broken() -> None:
    Broken().core.check_invariants()


@pytest.mark.parametrize(("tamper", "message"), TAMPERINGS, ids=[tamper.__name__ for tamper, _ in TAMPERINGS])
def test_a_broken_book_is_noticed(tamper: Callable[[Broken], None], message: str) -> None:
    broken = Broken()
    tamper(broken)
    with pytest.raises(InvariantViolation, match=message):
        broken.core.check_invariants()


def test_sharing_without_a_name_is_noticed() -> None:
    bench = CoreBench(config(), card())
    for key in (0, 1):
        bench.submit(key, range(10 * key, 10 * key + 6), 9, stops=(), cached=False)
    bench.step()
    worker = bench.core._placement.workers[WorkerId("w")]
    share_first_page(worker, worker.rows[Row(0)], worker.rows[Row(1)])
    with pytest.raises(InvariantViolation, match="shared without a name"):
        bench.core.check_invariants()


@pytest.mark.parametrize(("fault", "message"), [(1, "do not agree"), (2, "not full"), (3, "in two groups")])
def test_a_wrong_group_is_noticed(fault: int, message: str) -> None:
    bench = CoreBench(config(), card(pages=40))
    for key in range(2):
        bench.submit(key, range(17), 9, stops=(), cached=False, fork_of=0 if key else None)
    for _ in range(3):
        bench.step()
    worker = bench.core._placement.workers[WorkerId("w")]
    group = worker.prefixes._group_of[Row(0)]
    if fault == 1:
        group.depth = 5
    elif fault == 2:
        group.depth, group.rows = 5, {Row(0): None}
    else:
        worker.prefixes._group_of[Row(9)] = replace(group)
    with pytest.raises(InvariantViolation, match=message):
        bench.core.check_invariants()


def test_a_step_gap_is_noticed() -> None:
    bench = CoreBench(config(), card())
    bench.submit(0, [1], 3)
    bench.plan()
    bench.core._placement.workers[WorkerId("w")].in_flight[0].step_id = StepId(7)
    with pytest.raises(InvariantViolation, match="gap"):
        bench.core.check_invariants()


def test_a_move_that_is_not_in_the_table_is_refused() -> None:
    broken = Broken()
    with pytest.raises(InvariantViolation, match="cannot go from waiting to held"):
        broken.core._registry.get(3).move(State.HELD)  # type: ignore[union-attr,arg-type]


def test_an_unplaced_request_has_no_worker() -> None:
    broken = Broken()
    request = broken.core._registry.get(3)  # type: ignore[arg-type]
    assert request is not None
    request.worker_id = None
    with pytest.raises(InvariantViolation, match="on no worker"):
        broken.core._placement.worker_of(request)


def test_a_page_cannot_be_named_twice() -> None:
    broken = Broken()
    page = broken.pool.cached_pages()[0]
    assert not broken.pool.cache.bind(page, name(1), NO_PARENT)
    assert broken.pool.cache.page_of(name(1)) is None
    assert broken.pool.cache.name_of(PageId(15)) is None
