"""What is refused when it is submitted: what could never be served, what would wait in a queue that is full, and what
would, by the rates measured, not begin to answer before its deadline.

A queue is full for a tenant when the limit is reached and of what waits as much as is the tenant's share, by weight
among those that wait, is its own. So one tenant cannot fill the queue for the others; all together stay below twice the
limit. Who comes when nobody waits is taken, however long its prompt and however many its outputs.
"""

from scheduler_svc.core.accounts import Account, Accounts
from scheduler_svc.core.errors import RejectCode, RequestRejected
from scheduler_svc.core.placement import Placement
from scheduler_svc.core.request import Request
from scheduler_svc.core.types import CoreConfig, NewRequest
from scheduler_svc.core.worker import Worker


def check_request(new: NewRequest, placement: Placement) -> None:
    """Raises: RequestRejected: no worker could ever serve it, or none is known yet."""
    capacity, page_size = placement.capacity, placement.page_size
    num_prompt, num_hashes = len(new.prompt), len(new.page_hashes)
    if num_prompt == 0:
        raise RequestRejected(RejectCode.INVALID, "prompt", "the prompt is empty")
    if new.max_tokens < 1:
        raise RequestRejected(RejectCode.INVALID, "max_tokens", f"max_tokens is {new.max_tokens}, must be at least 1")
    if capacity == 0:
        raise RequestRejected(RejectCode.NO_WORKER, "", "no worker has joined yet")
    if num_prompt >= capacity:
        message = f"the prompt has {num_prompt} tokens; with one more to generate at most {capacity} fit"
        raise RequestRejected(RejectCode.TOO_LARGE, "prompt", message)
    if num_hashes:
        check_hashes(num_hashes, num_prompt, page_size)


def check_hashes(num_hashes: int, num_prompt: int, page_size: int) -> None:
    """Raises: RequestRejected: a prompt's full pages are not so many."""
    if num_hashes != num_prompt // page_size:
        message = f"{num_hashes} hashes for {num_prompt} tokens are not those of pages of {page_size}"
        raise RequestRejected(RejectCode.INVALID, "page_hashes", message)


def check_queue(num_tokens: int, num_siblings: int, account: Account, accounts: Accounts, config: CoreConfig) -> None:
    """``num_siblings``: outputs of the same prompt, taken just before.

    Raises: RequestRejected: the queue is full for a request of so many tokens.
    """
    limit, token_limit = config.max_queued_requests, config.max_queued_tokens
    if accounts.num_waiting <= num_siblings:
        return
    share = accounts.share_of(account)
    if limit and accounts.num_waiting >= limit and account.num_waiting >= limit * share:
        raise _full(f"{accounts.num_waiting} requests are waiting already")
    with_it = accounts.num_waiting_tokens + num_tokens
    if token_limit and with_it > token_limit and account.num_waiting_tokens + num_tokens > token_limit * share:
        raise _full(f"requests of {accounts.num_waiting_tokens} tokens are waiting already")


def check_deadline(request: Request, chosen: tuple[Worker, int] | None, now: float) -> None:
    """Judges by the first token: nobody knows how many will follow. Waiting counts only for who comes last anyway.

    ``chosen`` is a worker and the tokens cached there. A deadline that has passed ends its request in the queue.

    Raises: RequestRejected: not even the first token can come before the deadline, as fast as the worker is.
    """
    deadline = request.new.deadline
    if chosen is None or deadline is None or deadline <= now:
        return
    worker, num_cached_tokens = chosen
    earliest = now + worker.rates.least_prefill(request.num_tokens - num_cached_tokens, now)
    if worker.queue.is_last(request):
        earliest += worker.rates.least_wait(worker.backlog // worker.queue.num_lines, now)
    if earliest > deadline:
        message = f"the first token would come {earliest - deadline:.1f} s after the deadline"
        raise RequestRejected(RejectCode.DEADLINE, "", message)


def _full(message: str) -> RequestRejected:
    return RequestRejected(RejectCode.QUEUE_FULL, "", message)
