"""What a request would meet if it came now: where it would wait, what is cached there, and how long it would take.

Nothing is changed by asking. Times are those measured on the worker lately (rates); what was never measured is not
guessed. Output of others is not foreseen: when rows or pages have to become free first, and nothing was seen to begin
lately, the wait is not known.
"""

from scheduler_svc.core.placement import Placement
from scheduler_svc.core.request import Request
from scheduler_svc.core.types import Quote
from scheduler_svc.core.worker import Worker


def quote(request: Request, placement: Placement, now: float) -> Quote:
    """``request`` is one that was not added. Costs what placing it would, and the number of begun prompts."""
    chosen = placement.choose(request)
    if chosen is None:
        return Quote(num_cached_tokens=0, queue_seconds=None, first_token_seconds=None)
    worker, num_cached = chosen
    queue = _queue_seconds(worker, request.num_tokens, num_cached, now)
    ahead = sum(residence.num_known - residence.num_computed for residence in worker.prefilling)
    prefill = worker.rates.prefill(ahead + request.num_tokens - num_cached)
    first_token = None if queue is None or prefill is None else queue + prefill
    return Quote(num_cached_tokens=num_cached, queue_seconds=queue, first_token_seconds=first_token)


def _queue_seconds(worker: Worker, num_tokens: int, num_cached: int, now: float) -> float | None:
    if worker.queue.peek() is not None:
        return worker.rates.wait(worker.backlog // worker.queue.num_lines, now)
    num_pages = worker.num_pages_for(num_tokens) - num_cached // worker.page_size
    return 0.0 if worker.num_rows_left > 0 and num_pages <= worker.pool.num_available else None
