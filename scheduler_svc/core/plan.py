"""A batch plan in the making: decisions of one step, turned into the columns of a BatchPlan and the record of the step.

Residences are kept up to date as decisions come; the worker's books change in ``build`` alone. A request that is
preempted while the plan is made is taken out again by ``forget``, so a plan computes nothing on a row that it releases.
"""

from array import array
from collections.abc import Sequence

from scheduler_svc.core.request import Request, Residence
from scheduler_svc.core.step import StepRecord
from scheduler_svc.core.types import BatchPlan, NewRow, PageId, Row, StepId
from scheduler_svc.core.worker import Worker


class PlanDraft:
    """What one step will do, so far."""

    __slots__ = ("_append_pages", "_append_rows", "_copies", "_new_rows", "_page_size", "_started", "parked", "record")

    def __init__(self, worker: Worker) -> None:
        self._page_size = worker.page_size
        self.record = StepRecord(worker.next_step)
        self._append_rows: array[int] = array("H")
        self._append_pages: array[int] = array("i")
        self._new_rows: list[NewRow] = []
        self._copies: dict[PageId, PageId] = {}  # by destination
        self._started: list[Residence] = []
        self.parked: list[tuple[Request, Request]] = []
        """Requests that wait for a page from now on, and who computes it."""

    def add_row(self, residence: Residence) -> None:
        """A request begins on a row; its cached pages are appended."""
        request = residence.request
        new_row = NewRow(
            row=residence.row,
            num_prompt_tokens=request.num_prompt,
            token_ids=request.known_tokens(),
            num_cached_tokens=residence.num_computed,
            sampling=request.new.sampling,
        )
        self._new_rows.append(new_row)
        self._append(residence.row, residence.pages)

    def add_copy(self, source: PageId, destination: PageId) -> None:
        """A page's content is copied before the step computes anything."""
        self._copies[destination] = source

    def append_page(self, residence: Residence, page: PageId) -> None:
        """One page comes to a row's table."""
        residence.pages.append(page)
        self._append_rows.append(residence.row)
        self._append_pages.append(page)

    def append_pages(self, residence: Residence, pages: Sequence[PageId]) -> None:
        """Pages come to a row's table."""
        residence.pages += pages
        self._append(residence.row, pages)

    def add_chunk(self, residence: Residence, num_tokens: int) -> None:
        """A row computes tokens it knows; it samples if these are the last of them."""
        record = self.record
        residence.num_computed += num_tokens
        residence.last_step = record.step_id
        record.chunks.append((residence, num_tokens, residence.num_computed))
        if not residence.is_prefilling:
            lane = record.firsts[residence.row] = residence.lane_from(record.step_id + 1)
            if residence.num_computed == residence.most_computed:
                record.finals.append(lane)
            self._started.append(residence)

    def add_fills(self, residence: Residence, first: int) -> None:
        """The pages of a row's table from ``first`` on are full after the step, as far as it computes."""
        request, pages = residence.request, residence.pages
        stop = residence.num_computed // self._page_size
        self.record.fills += [(request, index, pages[index]) for index in range(first, stop)]

    def forget(self, residence: Residence) -> None:
        """Takes a decoding row out that was preempted after the draft had seen it."""
        row = residence.row
        kept = [index for index, other in enumerate(self._append_rows) if other != row]
        if len(kept) < len(self._append_rows):
            self._append_rows = array("H", [self._append_rows[index] for index in kept])
            self._append_pages = array("i", [self._append_pages[index] for index in kept])

    def build(self, worker: Worker) -> BatchPlan | None:
        """Puts the step in flight. None, and nothing done, if it computes nothing."""
        record, decoding = self.record, worker.decoding
        record.decoders = decoding.snapshot()
        if not record.decoders.rows and not record.chunks:
            return None
        self._see_due(worker)
        plan = self._plan(worker)
        for residence in self._started:
            decoding.ready[residence.row] = residence
        worker.in_flight.append(record)
        worker.next_step = StepId(record.step_id + 1)
        worker.num_steps += 1
        return plan

    def _see_due(self, worker: Worker) -> None:
        """Which lanes fill their page with the step, and which sample the last token they may have."""
        record, page_size, next_step = self.record, self._page_size, self.record.step_id + 1
        for residence in worker.decoding.due(next_step):
            pages, computed = residence.pages, residence.computed_before(next_step)
            if computed == len(pages) * page_size:
                record.fills.append((residence.request, len(pages) - 1, pages[-1]))
            if computed == residence.most_computed and residence.lane is not None:
                record.finals.append(residence.lane)

    def _plan(self, worker: Worker) -> BatchPlan:
        record = self.record
        published, parent_pages, evicted = worker.pool.take_changes()
        releases, worker.released = worker.released, []
        return BatchPlan(
            worker_id=worker.card.worker_id,
            step_id=record.step_id,
            releases=releases,
            new_rows=self._new_rows,
            append_rows=self._append_rows,
            append_pages=self._append_pages,
            copy_sources=array("i", self._copies.values()),
            copy_destinations=array("i", self._copies),
            chunk_rows=array("H", [chunk[0].row for chunk in record.chunks]),
            chunk_tokens=array("i", [chunk[1] for chunk in record.chunks]),
            idle_rows=array("H", sorted(worker.decoding.ready)),
            published=published,
            parent_pages=parent_pages,
            evicted_pages=evicted,
            groups=worker.prefixes.take_changes(),
            num_scheduled_rows=record.num_rows,
            num_scheduled_tokens=record.num_tokens,
        )

    def _append(self, row: Row, pages: Sequence[PageId]) -> None:
        self._append_rows.extend(array("H", (row,)) * len(pages))
        self._append_pages.extend(pages)
