"""Loads quantised checkpoints as a worker does, compares each weight with its formula, and damages files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pagewire_kernels import load_kernels
from pagewire_kernels.reference import dequantize
from support.quantized_files import QuantizedModel

from gpu_worker.models.llama import LlamaModel
from gpu_worker.weights.load import load_quantized, load_weights
from gpu_worker.weights.open import open_checkpoint

CPU = torch.device("cpu")
FIRST = "model.layers.0.self_attn.q_proj"
DOWN = "model.layers.1.mlp.down_proj"


def load(path: Path, warn: Callable[[str], None] = pytest.fail) -> LlamaModel:
    checkpoint, kernels = open_checkpoint(path), load_kernels("reference")
    model = LlamaModel(
        checkpoint.config,
        kernels,
        max_model_len=64,
        dtype=torch.float32,
        device=CPU,
        quantized=checkpoint.quantized_modules,
    )
    load_weights(checkpoint, model.weight_slots(), warn)
    load_quantized(checkpoint, model.quantized_linears, kernels, torch.float32, CPU)
    model.finish(checkpoint.config.vocab_size)
    return model


def check_weights(made: QuantizedModel) -> None:
    """Every module's weight is bit for bit that of the formula, in the scales' dtype."""
    checkpoint = open_checkpoint(made.path)
    assert set(checkpoint.quantized_modules) == set(made.codes)
    for name, codes in made.codes.items():
        num_outputs, num_inputs = codes.codes.shape
        found = dequantize(checkpoint.read_quantized(name, num_outputs, num_inputs, CPU), codes.scales.dtype)
        assert torch.equal(found, codes.weight), name
    load(made.path)


def set_tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, torch.Tensor]], None]:
    def apply(weights: dict[str, torch.Tensor]) -> None:
        weights[name] = change(weights[name])

    return apply


def drop(name: str) -> Callable[[dict[str, torch.Tensor]], Any]:
    return lambda weights: weights.pop(name)
