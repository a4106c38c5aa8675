"""Quantising a model with llm-compressor (extra ``quantize``): which library calls make which checkpoint.

The only module that imports it. What it writes is compressed-tensors, pack-quantized: loaded like any other checkpoint.
Both methods look at what the calibration text does to the inputs of each projection: GPTQ (arXiv 2210.17323) corrects
the error of each column in the following ones; AWQ (arXiv 2306.00978) scales inputs that matter into the weights before
rounding.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gpu_worker.errors import ConfigError

METHODS = ("awq", "gptq")
TEXT_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)


def check_library() -> None:
    """Raises ConfigError if llm-compressor cannot be imported. It logs errors only: bars show how far it is."""
    os.environ.setdefault("LLM_COMPRESSOR_LOG_LEVEL", "ERROR")
    try:
        import llmcompressor  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f'llm-compressor is needed ({error}): pip install ".[worker,quantize]" in a checkout, '
            "in an environment of its own"
        ) from None


def quantize(model: Path, out: Path, *, method: str, bits: int, group_size: int, samples: Sequence[list[int]]) -> None:
    """Write a quantised copy of ``model``, a Hugging Face directory, to ``out``. Shows a progress bar a layer.

    ``samples`` are token ids of calibration texts. The library must be installed (``check_library``).
    """
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.pipelines.cache import IntermediatesCache
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    if not torch.accelerator.is_available():
        # Version 0.14 pins the inputs it keeps without asking whether there is a device to copy them to.
        IntermediatesCache.pin_memory = lambda *unused: None
    rows = [{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in samples]
    loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype="auto", local_files_only=True)
    oneshot(
        model=loaded,
        # Never used, the samples are ids already; without one the library fails where a config does not name its class.
        processor=PreTrainedTokenizerFast(tokenizer_file=str(model / "tokenizer.json")),
        recipe=_recipe(method, bits, group_size),
        dataset=Dataset.from_list(rows),
        num_calibration_samples=len(rows),
        max_seq_length=max(len(ids) for ids in samples),
    )
    loaded.save_pretrained(out, save_compressed=True)
    copy_text_files(model, out)


def copy_text_files(model: Path, out: Path) -> None:
    """The text side is the original's, byte for byte: transformers would rewrite it its own way."""
    for name in TEXT_FILES:
        if (model / name).is_file():
            shutil.copyfile(model / name, out / name)


def _recipe(method: str, bits: int, group_size: int) -> list[Any]:
    """GPTQ rounds symmetrically, AWQ with zero points: what each is usually published with."""
    from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQModifier

    weights = {
        "num_bits": bits,
        "type": "int",
        "symmetric": method == "gptq",
        "strategy": "channel" if group_size == -1 else "group",
        "group_size": None if group_size == -1 else group_size,
    }
    options: dict[str, Any] = {
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }
    if method == "gptq":
        return [GPTQModifier(**options)]
    return [AWQModifier(offload_device=None), QuantizationModifier(**options)]
