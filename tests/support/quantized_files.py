"""Writes quantised checkpoints of tiny models in every packing: integers and scales are random, and what they stand for
is computed here from the formula, independently of the readers under test."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from support.tiny_models import make_model
from transformers import LlamaForCausalLM

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Codes:
    """What a packer is given. codes [out, in], scales and zeros [out, groups], group_index [in]."""

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    group_index: torch.Tensor
    bits: int

    @property
    def weight(self) -> torch.Tensor:
        """The product is rounded in the scales' dtype."""
        zeros = self.zeros[:, self.group_index]
        return (self.codes - zeros).to(self.scales.dtype) * self.scales[:, self.group_index]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How a checkpoint is quantised; ``config`` is its quantization_config."""

    pack: Callable[[Codes], dict[str, torch.Tensor]]
    config: Mapping[str, Any]
    bits: int = 4
    group_size: int = 32
    is_symmetric: bool = False
    act_order: bool = False
    scale_dtype: torch.dtype = torch.float16
    modules: Callable[[str], bool] = field(default=lambda name: name.rpartition(".")[2] in PROJECTIONS)


def random_codes(scheme: Scheme, num_outputs: int, num_inputs: int, seed: int) -> Codes:
    generator = torch.Generator().manual_seed(seed)
    size = num_inputs if scheme.group_size == -1 else scheme.group_size
    groups = -(-num_inputs // size)
    maximum, middle = 2**scheme.bits, 2 ** (scheme.bits - 1)
    zeros = torch.randint(1, maximum, (num_outputs, groups), generator=generator)
    index = torch.arange(num_inputs) // size
    if scheme.act_order:
        index = index[torch.randperm(num_inputs, generator=torch.Generator().manual_seed(7))]
    return Codes(
        codes=torch.randint(0, maximum, (num_outputs, num_inputs), generator=generator),
        scales=((torch.rand(num_outputs, groups, generator=generator) + 0.5) / maximum).to(scheme.scale_dtype),
        zeros=torch.full_like(zeros, middle) if scheme.is_symmetric else zeros,
        group_index=index,
        bits=scheme.bits,
    )


def pack_stream(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """int [rows, n] -> int32 words of each row: bit i of the stream is bit i % bits of code i // bits."""
    rows, count = codes.shape
    stream = torch.zeros(rows, -(-count * bits // 32) * 32, dtype=torch.int64)
    stream[:, : count * bits] = ((codes[:, :, None] >> torch.arange(bits)) & 1).flatten(1)
    words = (stream.view(rows, -1, 32) << torch.arange(32)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def pack_gptq(codes: Codes, *, version: int = 1) -> dict[str, torch.Tensor]:
    stored = codes.zeros if version == 2 else (codes.zeros - 1) % 2**codes.bits
    return {
        "qweight": pack_stream(codes.codes, codes.bits).t().contiguous(),
        "qzeros": pack_stream(stored.t(), codes.bits).contiguous(),
        "scales": codes.scales.t().contiguous(),
        "g_idx": codes.group_index.to(torch.int32),
    }


def pack_awq(codes: Codes) -> dict[str, torch.Tensor]:
    def pack(values: torch.Tensor) -> torch.Tensor:
        return pack_stream(values.view(len(values), -1, 8)[:, :, list(AWQ_ORDER)].flatten(1), 4)

    return {
        "qweight": pack(codes.codes.t().contiguous()),
        "qzeros": pack(codes.zeros.t().contiguous()),
        "scales": codes.scales.t().contiguous(),
    }


def pack_compressed(codes: Codes, *, is_symmetric: bool) -> dict[str, torch.Tensor]:
    tensors = {
        "weight_packed": pack_stream(codes.codes, codes.bits),
        "weight_scale": codes.scales,
        "weight_shape": torch.tensor(codes.codes.shape),
    }
    if not is_symmetric:
        tensors["weight_zero_point"] = pack_stream(codes.zeros.t().contiguous(), codes.bits).t().contiguous()
    return tensors


@dataclass(frozen=True, slots=True)
class QuantizedModel:
    """A directory, the model of its dequantised weights, and the codes by module."""

    path: Path
    reference: LlamaForCausalLM
    codes: Mapping[str, Codes]


def write_quantized(path: Path, scheme: Scheme, **shape: Any) -> QuantizedModel:
    """A tiny model of which the scheme's modules are quantised."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_key_value_heads": 2, **shape}
    model = make_model(path, **sizes)
    weights = load_file(path / "model.safetensors")
    made: dict[str, Codes] = {}
    with torch.no_grad():
        for name, module in model.reference.named_modules():
            if f"{name}.weight" in weights and scheme.modules(name):
                num_outputs, num_inputs = weights.pop(f"{name}.weight").shape
                made[name] = random_codes(scheme, num_outputs, num_inputs, len(made))
                weights.update({f"{name}.{ending}": part for ending, part in scheme.pack(made[name]).items()})
                module.weight.copy_(made[name].weight)
    save_file(weights, path / "model.safetensors")
    edit_json(path / "config.json", quantization_config=dict(scheme.config))
    return QuantizedModel(path, model.reference, made)


def edit_json(path: Path, **changes: Any) -> None:
    """Fields given as ``...`` are taken out."""
    value = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: entry for name, entry in value.items() if entry is not ...}))


def edit_tensors(path: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    weights = load_file(path / "model.safetensors")
    change(weights)
    save_file(weights, path / "model.safetensors")


def gptq(*, bits: int = 4, group_size: int = 32, sym: bool = False, version: int = 1, **options: Any) -> Scheme:
    fields = options.pop("fields", {})
    return Scheme(
        pack=lambda codes: pack_gptq(codes, version=version),
        config={
            "quant_method": "gptq",
            "bits": bits,
            "group_size": group_size,
            "sym": sym,
            "desc_act": options.get("act_order", False),
            "checkpoint_format": "gptq_v2" if version == 2 else "gptq",
            **fields,
        },
        bits=bits,
        group_size=group_size,
        is_symmetric=sym,
        **options,
    )


def awq(*, group_size: int = 32, **options: Any) -> Scheme:
    fields = {"quant_method": "awq", "bits": 4, "group_size": group_size, "zero_point": True, "version": "gemm"}
    return Scheme(pack=pack_awq, config=fields, group_size=group_size, **options)


def compressed(*, bits: int = 4, group_size: int = 32, sym: bool = True, **options: Any) -> Scheme:
    weights = {
        "num_bits": bits,
        "type": "int",
        "symmetric": sym,
        "strategy": "channel" if group_size == -1 else "group",
        "group_size": None if group_size == -1 else group_size,
    }
    return Scheme(
        pack=lambda codes: pack_compressed(codes, is_symmetric=sym),
        config={
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
            "ignore": ["lm_head"],
        },
        bits=bits,
        group_size=group_size,
        is_symmetric=sym,
        **options,
    )
