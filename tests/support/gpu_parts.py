"""A worker's parts on a GPU, built without the settings library, the link and the messages."""

import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from gpu_worker import startup


def build(path: Path, **options: Any) -> startup.Parts:
    settings: dict[str, Any] = {
        "model": path,
        "device": "cuda",
        "dtype": "float32",
        "kv_cache_dtype": "auto",
        "load_format": "auto",
        "tokenizer": None,
        "quantization": "auto",
        "quantization_prefill": "auto",
        "enforce_eager": False,
        "kernels": "triton",
        "page_size": 16,
        "max_num_seqs": 8,
        "max_num_batched_tokens": None,
        "max_model_len": 512,
        "gpu_memory_utilization": 0.9,
        "kv_cache_memory_bytes": 256 << 20,
        "cpu_threads": 1,
        "served_model_name": None,
        **options,
    }
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()  # what tests before this one took does not count as the worker's
    return startup.build(SimpleNamespace(**settings), print)  # type: ignore[arg-type]
