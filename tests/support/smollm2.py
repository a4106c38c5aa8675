"""The embedded model's file, where it is on this machine, and what it says of itself."""

import os
from functools import lru_cache
from pathlib import Path

from gpu_worker.model_card import ModelCard, make_model_card
from gpu_worker.weights.open import open_checkpoint

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MISSING = "the embedded model is not in the cache; `pagewire fetch` gets it"


def find_gguf() -> Path | None:
    """Where PAGEWIRE_TEST_GGUF says, or where ``pagewire fetch`` puts it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pagewire" / "models" / FILE
    path = Path(os.environ.get("PAGEWIRE_TEST_GGUF") or cache)
    return path if path.exists() else None


@lru_cache
def model_card(path: Path) -> ModelCard:
    """Its tokenizer and ids, without its weights."""
    checkpoint = open_checkpoint(path)
    return make_model_card(checkpoint, name="smollm2", max_model_len=2048, dtype="float32", kv_cache_dtype="float32")
