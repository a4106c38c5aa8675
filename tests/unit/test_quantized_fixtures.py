"""Checkpoints that the real tools wrote (GPTQModel 7.6.0 and 7.7.0, llm-compressor 0.14.0.1; a random Llama of one
layer): every weight equals the tool's own dequantisation bit for bit, of which the fixture keeps a SHA-256."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from pagewire_kernels.reference import dequantize
from safetensors import safe_open

from gpu_worker.weights.open import open_checkpoint

FOLDER = Path(__file__).parent.parent / "fixtures" / "quantized"


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.iterdir()))
def test_weights_are_those_of_the_tool(name: str) -> None:
    checkpoint = open_checkpoint(FOLDER / name)
    expected = json.loads((FOLDER / name / "dequantised.json").read_text())
    assert set(checkpoint.quantized_modules) == set(expected)
    config = checkpoint.config
    inner, hidden = config.intermediate_size, config.hidden_size
    shapes = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    for module, digest in expected.items():
        shape = shapes.get(module.rpartition(".")[2], (hidden, hidden))
        weight = checkpoint.read_quantized(module, *shape, torch.device("cpu"))
        found = dequantize(weight, weight.scales.dtype).contiguous()
        assert hashlib.sha256(found.view(torch.uint8).numpy().tobytes()).hexdigest() == digest, module


def test_columns_were_ordered_by_activation() -> None:
    """Else the fixture would not show it."""
    path = FOLDER / "gptq-4-act-order" / "model.safetensors"
    with safe_open(str(path), framework="pt") as file:
        index = file.get_tensor("model.layers.0.mlp.down_proj.g_idx")
    assert not torch.equal(index, torch.arange(len(index)).int() // 32)
