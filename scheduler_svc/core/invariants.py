"""Every rule of the core's books, checked from scratch. For tests: the cost is the size of the books."""

from collections import Counter
from collections.abc import Iterable

from scheduler_svc.core.accounts import Accounts
from scheduler_svc.core.errors import InvariantViolation
from scheduler_svc.core.page_hash import NO_PARENT
from scheduler_svc.core.page_pool import PagePool
from scheduler_svc.core.pins import Pins
from scheduler_svc.core.placement import Placement
from scheduler_svc.core.registry import Registry
from scheduler_svc.core.request import Request, Residence, State
from scheduler_svc.core.types import PageId, Row
from scheduler_svc.core.worker import Worker


def check(placement: Placement, registry: Registry, accounts: Accounts, pins: Pins) -> None:
    """Raises InvariantViolation at the first rule that is broken."""
    for worker in placement.workers.values():
        _rule({key for key, _ in worker.pool.pins()} <= {*pins}, "a worker keeps pages for a pin that is gone")
        check_pool(worker.pool, [residence.pages for residence in worker.rows.values()])
        _check_rows(worker)
        _check_tables(worker)
        _check_sharing(worker)
        _check_groups(worker)
        _check_steps(worker)
        _check_claims(worker)
    _check_requests(placement, registry)
    for worker in placement.workers.values():
        _check_load(worker, placement, registry)
    _check_accounts(registry, accounts)


def _rule(holds: bool, text: str, *values: object) -> None:
    if not holds:
        raise InvariantViolation(text.format(*values) if values else text)


def check_pool(pool: PagePool, tables: Iterable[list[PageId]]) -> None:
    """free + held + cached = all; reference counts equal the tables; names and pages are a bijection."""
    free, cached = set(pool.free_pages()), set(pool.cached_pages())
    _rule(len(free) == pool.num_free, "a page is free twice")
    _rule(not free & cached, "a page is free and cached")
    refs: Counter[PageId] = Counter()
    for table in [*tables, *pool.waiting_tables()]:
        _rule(len(set(table)) == len(table), "a page is twice in a table")
        refs.update(table)
    refs.update(_pinned(pool))
    pages, is_named = range(pool.num_pages), pool.cache.is_named
    wrong = [page for page in pages if pool.refs[page] != refs[PageId(page)]]
    _rule(not wrong, f"pages {wrong} count other references than there are tables")
    wrong = [page for page in pages if (page in free or page in cached) != (pool.refs[page] == 0)]
    _rule(not wrong, f"pages {wrong} are lost, or in use and available")
    _rule(not any(is_named(page) for page in free), "a free page has a name")
    names = list(pool.cache)
    _rule(len({page for _, page in names}) == len(names), "two names lead to one page")
    for page_hash, page in names:
        name = pool.cache.name_of(page)
        _rule(name is not None and name[0] == page_hash, f"page {page} has another name than the one that leads to it")
    _check_eviction_order(pool)


def _pinned(pool: PagePool) -> list[PageId]:
    """Pages whose names pins have."""
    pages = [pool.cache.page_of(name) for name in dict.fromkeys(name for _, names in pool.pins() for name in names)]
    return [page for page in pages if page is not None]


def _check_eviction_order(pool: PagePool) -> None:
    """Of a chain tails are evicted before heads, and what is evictable has a name."""
    evicted_before: set[bytes] = set()
    for page in pool.cached_pages():
        name = pool.cache.name_of(page)
        if name is None:
            raise InvariantViolation(f"cached page {page} has no name")
        _rule(name[1] not in evicted_before, f"page {page} would be evicted after its parent")
        evicted_before.add(name[0])


def _check_rows(worker: Worker) -> None:
    """Every row is free or has one request, which is prefilling, in a lane or ready."""
    rows = set(worker.rows)
    _rule(sorted([*rows, *worker.free_rows]) == list(range(worker.num_rows)), "a row is lost or doubled")
    lanes, ready = worker.decoding.lanes, worker.decoding.ready
    prefilling = [residence.row for residence in worker.prefilling]
    _rule(sorted([*lanes, *ready, *prefilling]) == sorted(rows), "a running row is in no or in two places")
    columns = worker.decoding.snapshot()
    _rule(list(columns.rows) == sorted(lanes), "the columns have other rows than there are lanes")
    _rule(columns.lanes == [lanes[row] for row in columns.rows], "the columns have other lanes")
    _rule(list(columns.keys) == [lane.request.key for lane in columns.lanes], "the columns have other keys")
    runs = [row + index for row, start, stop in columns.runs for index in range(stop - start)]
    _rule(runs == list(columns.rows), "the runs are of other rows")
    orders = [residence.request.order for residence in worker.prefilling]
    _rule(orders == sorted(orders), "prompts are out of order")
    for row, residence in worker.rows.items():
        request = residence.request
        _rule(residence.row == row and request.residence is residence, "row {} is not its request's row", row)
        _rule(request.state is State.RUNNING, "row {} has a request that is {}", row, request.state.value)
        _rule(residence.lane is lanes.get(row), "row {} has another lane than its request", row)
        _rule(residence.is_prefilling == (row in prefilling), "row {} is at another stage than its place", row)
        _rule((residence.due_step >= worker.next_step) == (row in lanes), "row {} has no appointment", row)


def _check_tables(worker: Worker) -> None:
    """A table has the pages that its computed tokens fill; a page with a name is full and holds those tokens."""
    size = worker.page_size
    for row, residence in worker.rows.items():
        request, computed = residence.request, residence.computed_before(worker.next_step)
        _rule(len(residence.pages) == worker.num_pages_for(computed), "row {} has too many or too few pages", row)
        names = request.names(computed // size, size)
        for index, page in enumerate(residence.pages):
            name = worker.pool.cache.name_of(page)
            if name is None:
                continue
            is_right = index < len(names) and name[0] == names[index]
            _rule(is_right, "page {} of row {} is named for other tokens", page, row)
            parent = names[index - 1] if index else NO_PARENT
            _rule(name[1] == parent, "page {} of row {} is named for another parent", page, row)


def _check_sharing(worker: Worker) -> None:
    """Rows share a page only at one place of their tables, and a full one; without a name only in a family's prompt."""
    seen: dict[PageId, tuple[int, Request, bool]] = {}
    for residence in worker.rows.values():
        request = residence.request
        num_full = residence.computed_before(worker.next_step) // worker.page_size
        for index, page in enumerate(residence.pages):
            is_full = index < num_full
            other_index, other, other_is_full = seen.setdefault(page, (index, request, is_full))
            if other is request:
                continue
            sound = other_index == index and is_full and other_is_full
            _rule(sound, "page {} is shared and not full, or at two places", page)
            if not worker.pool.cache.is_named(page):
                kin = any(member is request for member in other.family)
                _rule(kin and index < request.num_prompt // worker.page_size, f"page {page} is shared without a name")


def _check_groups(worker: Worker) -> None:
    """Groups have running rows, each one, whose tables agree over the shared pages, which are full."""
    rows: list[Row] = []
    for group in worker.prefixes.groups():
        tables = [worker.rows[row].pages[: group.num_pages] for row in group.rows]
        _rule(all(table == tables[0] for table in tables), f"tables of group {group.group_id} do not agree")
        full = [worker.rows[row].computed_before(worker.next_step) // worker.page_size for row in group.rows]
        _rule(min(full) >= group.num_pages, f"group {group.group_id} shares pages that are not full")
        rows += group.rows
    _rule(len(set(rows)) == len(rows), "a row is in two groups")


def _check_steps(worker: Worker) -> None:
    """Steps in flight are contiguous; pages wait for such steps only."""
    steps = [record.step_id for record in worker.in_flight]
    _rule(steps == list(range(worker.next_step - len(steps), worker.next_step)), "steps in flight have a gap")
    closing = Counter(lane.request.key for record in worker.in_flight for lane in record.closing)
    wrong = [
        lane.request.key
        for record in worker.in_flight
        for lane in record.closing
        if lane.request.num_closing != closing[lane.request.key]
    ]
    _rule(not wrong, f"requests {wrong} miscount the lanes that are closing")
    _rule(set(worker.pool.waiting_steps()) <= set(steps), "pages wait for a step that is done")


def _check_claims(worker: Worker) -> None:
    """A claim is on a page that a request running or landing here has yet to publish."""
    here = {residence.request.key for residence in worker.rows.values()} | {request.key for request in worker.landing()}
    for page_hash, claimer, _ in worker.claims.items():
        _rule(claimer.key in here and claimer.accepts_tokens, "a claimer does not run here")
        if claimer.family and page_hash == claimer.family_name:
            continue
        _rule(worker.pool.cache.page_of(page_hash) is None, "a claimed page is cached")
        _rule(claimer.hashes is not None and page_hash in claimer.hashes, "a claim is on a page of somebody else")


def _check_load(worker: Worker, placement: Placement, registry: Registry) -> None:
    """A worker's load is what the requests placed on it make."""
    placed = (request for request in registry if request.key not in placement.unplaced)
    mine = [request for request in placed if request.worker_id == worker.card.worker_id]
    load = sum(request.load for request in mine if request.state is not State.HELD)
    _rule(worker.load == load, f"load is {worker.load}, its requests make {load}")
    backlog = sum(request.backlog for request in mine)
    _rule(worker.backlog == backlog, f"backlog is {worker.backlog}, its waiting requests make {backlog}")
    num_placed = sum(1 for request in mine if request.state is not State.HELD)
    _rule(worker.num_placed == num_placed, f"{num_placed} requests are placed here, not {worker.num_placed}")


def _check_accounts(registry: Registry, accounts: Accounts) -> None:
    """What waits is what the accounts say."""
    waiting = [request.num_tokens for request in registry if request.state is State.WAITING]
    _rule(accounts.num_waiting == len(waiting), f"{len(waiting)} requests wait, not {accounts.num_waiting}")
    _rule(accounts.num_waiting_tokens == sum(waiting), "tokens that wait are miscounted")
    charges = accounts.charges()
    _rule(all(charged >= 0 for charged in charges.values()), f"a tenant was given back too much: {charges}")


def _check_requests(placement: Placement, registry: Registry) -> None:
    """Every live request is in one place, the one that its state says."""
    waiting: Counter[int] = Counter(list(placement.unplaced))
    running: dict[int, Residence] = {}
    landing: set[int] = set()
    for worker in placement.workers.values():
        heaps = [heap for _, _, parked in worker.claims.items() for heap in parked.values()]
        parked = [request for heap in heaps for _, request in heap]
        waiting.update(request.key for request in worker.queue.requests())
        waiting.update(request.key for request in parked if request.state is State.WAITING)
        running.update((residence.request.key, residence) for residence in worker.rows.values())
        landing |= {request.key for request in worker.landing() if request.state is State.LANDING}
    live: dict[State, set[int]] = {state: set() for state in State}
    for request in registry:
        live[request.state].add(request.key)
    _rule(not live[State.ENDED], "a request has ended and is live")
    _rule({*waiting, *running, *landing} <= set().union(*live.values()), "an ended request is still somewhere")
    _rule(waiting == Counter(live[State.WAITING]), "a request waits in no or two places")
    _rule(running.keys() == live[State.RUNNING], "a request has lost its row")
    _rule(landing == live[State.LANDING], "a request will never land")
    _rule(registry.num_held == len(live[State.HELD]), "held requests are miscounted")
