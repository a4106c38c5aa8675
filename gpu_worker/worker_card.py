"""What a worker says of itself when it joins."""

from dataclasses import dataclass

from gpu_worker.model_card import ModelCard


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCard:
    """What a hello says of the worker."""

    device: str
    page_size: int
    num_pages: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    model_card: ModelCard
    cache_fingerprint: bytes
    pid: int
    version: str
    num_ranks: int = 1
