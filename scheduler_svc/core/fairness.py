"""What a request costs its tenant, in tenths of tokens: a prompt token computed 10, found in the cache 1, an output
token 20.

Charged when it is scheduled; output tokens that were scheduled and did not come to count (overrun, a step that failed,
a worker that was lost) are given back. Tokens computed again cost nothing, nor does the prompt for outputs of a request
but the first. So at its end a request has cost what its usage says, however it was scheduled.

Decoding rows are charged by their number for each tenant, which changes only when a row begins or pauses.
"""

from scheduler_svc.core.request import Request, Residence
from scheduler_svc.core.worker import Worker

PROMPT, CACHED, OUTPUT = 10, 1, 20


def charge_cached(residence: Residence) -> None:
    """A row begins with cached pages; those it had before cost nothing."""
    _charge_prompt(residence.request, 0, residence.num_computed, CACHED)


def charge_chunk(residence: Residence, start: int) -> None:
    """A row computes its known tokens from ``start`` on; it samples if these are the last of them."""
    _charge_prompt(residence.request, start, residence.num_computed, PROMPT)
    if not residence.is_prefilling:
        residence.request.account.charge(OUTPUT)


def charge_decodes(worker: Worker) -> None:
    """One step of all decoding rows. Costs the number of tenants among them."""
    for account, num_lanes in worker.decoding.num_lanes.items():
        account.charge(OUTPUT * num_lanes)


def settle(request: Request, num_kept: int) -> None:
    """Of all output tokens that a request had scheduled, ``num_kept`` count; it has no row now."""
    request.account.charge(OUTPUT * (num_kept - request.num_sampled))
    request.num_sampled = num_kept


def _charge_prompt(request: Request, start: int, stop: int, cost: int) -> None:
    num_new = min(stop, request.num_prompt) - max(start, request.num_seen)
    if num_new > 0 and not request.is_fork:
        request.account.charge(cost * num_new)
