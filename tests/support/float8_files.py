"""Writes FP8 checkpoints of tiny models with scales of every kind."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from support.quantized_files import PROJECTIONS, QuantizedModel, edit_json, edit_tensors, gptq, write_quantized


def float8_codes(shape: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and a scale for each block of 32 by 32."""
    generator = torch.Generator().manual_seed(shape[0] * shape[1])
    codes = torch.randn(shape, generator=generator).to(torch.float8_e4m3fn)
    return codes, torch.rand(-(-shape[0] // 32), -(-shape[1] // 32), generator=generator) * 0.2 + 0.05


FLOAT8: dict[str, dict[str, Any]] = {
    "tensor": {"quant_method": "fp8", "activation_scheme": "static"},
    "channel": {"quant_method": "fbgemm_fp8"},
    "block": {"quant_method": "fp8", "weight_block_size": [32, 32], "fmt": "e4m3"},
    "compressed": {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
                "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
            }
        },
    },
    "weights-only": {
        "quant_method": "compressed-tensors",
        "format": "naive-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
                "input_activations": None,
            }
        },
    },
}


def write_float8(path: Path, kind: str) -> QuantizedModel:
    """A tiny model whose projections are FP8."""
    made = write_quantized(path, replace(gptq(), modules=lambda name: False))

    def quantize(weights: dict[str, torch.Tensor]) -> None:
        for name, module in made.reference.named_modules():
            if name.rpartition(".")[2] not in PROJECTIONS:
                continue
            codes, blocks = float8_codes(tuple(module.weight.shape))
            weights[f"{name}.weight"] = codes
            if kind == "block":
                weights[f"{name}.weight_scale_inv"] = blocks
                scales = blocks.repeat_interleave(32, 0).repeat_interleave(32, 1)
            elif kind == "tensor":
                weights[f"{name}.weight_scale"] = blocks[0, 0].clone()
                weights[f"{name}.input_scale"] = torch.tensor(0.5)
                scales = blocks[0, 0]
            else:
                scales = torch.linspace(0.05, 0.2, len(codes))[:, None]
                weights[f"{name}.weight_scale"] = scales
            with torch.no_grad():
                module.weight.copy_(codes.float() * scales)

    edit_tensors(path, quantize)
    edit_json(path / "config.json", quantization_config=FLOAT8[kind])
    return made
