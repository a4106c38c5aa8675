"""On which terms a worker joins: what its hello must say, and which of its pages are taken over.

The first worker that joins decides what the deployment serves; the others must serve the same. Pages are taken all or
none, and only if they were named as this deployment names them.
"""

from collections.abc import Sequence

from scheduler_svc.core.inventory import in_order
from scheduler_svc.core.page_hash import cache_identity
from scheduler_svc.core.types import Published, StepId, WorkerCard, WorkerId
from scheduler_svc.messages import PROTOCOL_VERSION, WorkerHello

FIRST_STEP_ID = StepId(1)
GPU_STEP_SECONDS = 0.05
"""How long a step keeps running streams waiting on a GPU, if nothing else is said: readers do not notice."""
_MAX_PAGES = 2**23
"""The books of more pages would take so long to make that every stream stalls meanwhile."""


class JoinTerms:
    """Of one deployment: the first worker sets the model."""

    def __init__(self, hash_key: bytes, takes_inventories: bool) -> None:
        """``takes_inventories``: workers may bring pages that were named under ``hash_key``."""
        self.model: WorkerHello | None = None
        """The model of the deployment: that of the first worker."""
        self._hash_key = hash_key
        self._takes_inventories = takes_inventories
        self._num_joined = 0

    def refusal(self, hello: WorkerHello, epoch: int) -> str:
        """Why the worker cannot join; empty if it can."""
        if hello.protocol_version != PROTOCOL_VERSION:
            return f"protocol version {hello.protocol_version}; this scheduler speaks {PROTOCOL_VERSION}"
        limits = (hello.page_size, hello.num_pages, hello.max_num_seqs, hello.max_num_batched_tokens)
        if not (epoch and all(limits) and hello.max_model_len and hello.vocab_size):
            return "the hello holds a zero where a limit must be"
        if hello.num_pages > _MAX_PAGES:
            return f"{hello.num_pages} pages; this scheduler keeps books of at most {_MAX_PAGES}, use larger pages"
        if hello.rank:
            return f"rank {hello.rank} of a worker; rank 0 alone speaks for it"
        model = self.model
        if model is None:
            return ""
        if hello.digest != model.digest:
            return f"model digest {hello.digest} ({hello.model_name}); {model.digest} ({model.model_name}) is served"
        if hello.vocab_size != model.vocab_size:
            return f"vocabulary of {hello.vocab_size}; the served model has {model.vocab_size}"
        if hello.page_size != model.page_size:
            return f"page size {hello.page_size}; this deployment uses {model.page_size}"
        return ""

    def inventory(self, hello: WorkerHello) -> Sequence[Published]:
        """What of the worker's inventory is taken.

        Raises: WorkerRejected: it contradicts itself.
        """
        if not hello.inventory or not self._takes_inventories or hello.inventory_identity != self.identity(hello):
            return ()
        return in_order(hello.inventory, hello.num_pages)

    def identity(self, hello: WorkerHello) -> bytes:
        """What the names of the worker's pages depend on."""
        return cache_identity(self._hash_key, hello.cache_fingerprint, hello.page_size)

    def card(self, hello: WorkerHello, inventory: Sequence[Published]) -> WorkerCard:
        """Of a worker that is not refused, which joins herewith: ids are never used twice."""
        self.model = self.model or hello
        self._num_joined += 1
        return WorkerCard(
            worker_id=WorkerId(f"worker-{self._num_joined}"),
            num_pages=hello.num_pages,
            page_size=hello.page_size,
            max_num_seqs=hello.max_num_seqs,
            max_num_batched_tokens=hello.max_num_batched_tokens,
            max_model_len=hello.max_model_len,
            target_step_seconds=GPU_STEP_SECONDS if hello.device.startswith("cuda") else 0.0,
            first_step_id=FIRST_STEP_ID,
            inventory=inventory,
        )
