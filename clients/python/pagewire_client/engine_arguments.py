"""What ``LLM`` takes beside the model, and the flags of the services that each becomes.

The services check values; here only names are known. Every name is one of four kinds: it becomes a flag, ``LLM`` uses
it itself, it has no effect here and says so once, or it is refused with the reason.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from .known_names import check_known


class EngineArguments(TypedDict, total=False):
    """Keywords of ``LLM``; those with an equal among the flags mean what docs/operations.md says of it."""

    tokenizer: str | None
    dtype: Any
    quantization: str | None
    kv_cache_dtype: str
    max_model_len: int | None
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    enable_prefix_caching: bool | None
    long_prefill_token_threshold: int
    gpu_memory_utilization: float
    kv_cache_memory_bytes: int | None
    block_size: int | None
    page_size: int | None
    tensor_parallel_size: int
    served_model_name: str | None
    device: str
    cpu_threads: int
    num_workers: int
    seed: int | None
    trust_remote_code: bool
    swap_space: float
    enforce_eager: bool
    disable_log_stats: bool


_WORKER = {
    **{name: name for name in ("dtype", "quantization", "kv_cache_dtype", "gpu_memory_utilization", "tokenizer")},
    **{name: name for name in ("kv_cache_memory_bytes", "tensor_parallel_size", "served_model_name", "device")},
    **{"cpu_threads": "cpu_threads", "page_size": "page_size", "block_size": "page_size"},
}
_BOTH = ("max_model_len", "max_num_batched_tokens", "max_num_seqs")
_SCHEDULER = ("enable_prefix_caching", "long_prefill_token_threshold")
_OWN = ("seed", "num_workers")
_NO_EFFECT = {
    "swap_space": "preempted requests are recomputed",
    "enforce_eager": "every shape runs",
    "disable_log_stats": "no statistics are logged",
}
_REFUSED = {"trust_remote_code": "code from a model directory is never executed"}
_DTYPES = {"half": "float16", "float": "float32"}


@dataclass(slots=True, kw_only=True)
class StackArguments:
    """What a private stack is started with."""

    scheduler: list[str] = field(default_factory=list)
    worker: list[str] = field(default_factory=list)
    num_workers: int = 1
    num_ranks: int = 1
    """Of each worker; a flag of theirs as well."""
    seed: int | None = None


def stack_arguments(given: Mapping[str, Any]) -> StackArguments:
    """The flags for what ``LLM`` was given; None stands for the default.

    Raises: TypeError for an unknown name, ValueError for a refused one.
    """
    check_known("LLM", given, ("model", *EngineArguments.__annotations__))
    made = StackArguments()
    for name, value in given.items():
        if name in _REFUSED and value:
            raise ValueError(f"{name}={value!r} is refused: {_REFUSED[name]}")
        if name in _NO_EFFECT:
            warnings.warn(f"{name} has no effect: {_NO_EFFECT[name]}", UserWarning, stacklevel=3)
        elif value is not None and name in _OWN:
            setattr(made, name, value)
        elif value is not None and name not in _REFUSED:
            _add_flags(made, name, value)
            if name == "tensor_parallel_size":
                made.num_ranks = value
    return made


def _add_flags(made: StackArguments, name: str, value: Any) -> None:
    if name in _WORKER or name in _BOTH:
        made.worker += _flag(_WORKER.get(name, name), value)
    if name in _SCHEDULER or name in _BOTH:
        made.scheduler += _flag(name, value)


def _flag(name: str, value: Any) -> list[str]:
    """One flag's words."""
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{dashed}" if value else f"--no-{dashed}"]
    text = str(value).removeprefix("torch.")
    return [f"--{dashed}", _DTYPES.get(text, text) if name == "dtype" else text]
