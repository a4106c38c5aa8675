"""What the link to the scheduler tells the worker's loop, besides plans and names of pages."""

from dataclasses import dataclass

from gpu_worker.batch_plan import BatchPlan, PageNames


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The scheduler took the hello; plans of this epoch follow."""

    epoch: int
    worker_id: str
    inventory_accepted: bool
    cache_identity: bytes
    """Comes back with the next inventory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The epoch is over: rows are worth nothing, and it is time to greet again."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The scheduler does not take this worker, for good."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Leave: asked for by a signal, or because the device or a thread is gone (``failure``)."""

    reason: str
    failure: bool = False


LinkEvent = Joined | Left | Refused | Stop | BatchPlan | PageNames
