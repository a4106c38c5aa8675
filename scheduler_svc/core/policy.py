"""In which order one tenant's waiting requests are served: a key for each, made once when it is submitted.

A key is ``(time, deadline, arrival)``; the least is served first. It never changes, so queues are heaps, and it ends
with the number of the arrival, so it is unique. With S for ``aging_seconds`` the time is

    fcfs      0: in the order of arrival, whatever priorities and deadlines are
    priority  min(deadline, submitted + S) - 2 S x priority: the earliest deadline first within a priority
    sjf       submitted + S x its share of the longest request - 2 S x priority: the shortest first

Starvation bound, by the sums above: a request that is submitted at t is passed only by requests of the same tenant
that are submitted no later than t + S x (1 + 2 x levels), where levels is how much higher their priority is; under
fcfs by none. The other way round, a priority holds against every request of a lower one that came up to S seconds
before it, whatever its deadline or length.
"""

from collections.abc import Callable
from math import inf
from typing import Final

from scheduler_svc.core.request import Order
from scheduler_svc.core.types import CoreConfig, NewRequest, SchedulingPolicy

Policy = Callable[[NewRequest, float, float, int], float]
"""(request, now, aging seconds, most tokens of one request) -> the key's time."""


def fcfs(new: NewRequest, now: float, aging: float, capacity: int) -> float:
    """First come, first served."""
    return 0.0


def priority(new: NewRequest, now: float, aging: float, capacity: int) -> float:
    """Higher priority first, then the earlier deadline; who has none gets one of the longest wait."""
    latest = now + aging
    start_by = latest if new.deadline is None else min(new.deadline, latest)
    return start_by - 2 * aging * new.priority


def sjf(new: NewRequest, now: float, aging: float, capacity: int) -> float:
    """Higher priority first, then the shorter request, prompt and output together."""
    share = min(1.0, (len(new.prompt) + new.max_tokens) / capacity)
    return now + aging * share - 2 * aging * new.priority


POLICIES: Final[dict[SchedulingPolicy, Policy]] = {
    SchedulingPolicy.FCFS: fcfs,
    SchedulingPolicy.PRIORITY: priority,
    SchedulingPolicy.SJF: sjf,
}


def order_of(new: NewRequest, config: CoreConfig, capacity: int, arrival: int, now: float) -> Order:
    """The key of a request; ``capacity`` is the most tokens that one request can have."""
    policy = config.scheduling_policy
    time = POLICIES[policy](new, now, config.aging_seconds, capacity)
    deadline = inf if policy is SchedulingPolicy.FCFS or new.deadline is None else new.deadline
    return time, deadline, arrival


def priority_of(new: NewRequest, config: CoreConfig) -> int:
    """The priority that counts under the policy."""
    return 0 if config.scheduling_policy is SchedulingPolicy.FCFS else new.priority
