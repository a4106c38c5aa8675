"""Quantised checkpoints: every packing stands for exactly the weights its formula says, and damage is named."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support.quantized_files import PROJECTIONS, Scheme, awq, compressed, edit_json, edit_tensors, gptq, write_quantized
from support.quantized_loading import DOWN, FIRST, check_weights, drop, load, set_tensor

from gpu_worker.errors import ModelLoadError
from gpu_worker.weights.open import open_checkpoint

SCHEMES: dict[str, Scheme] = {
    **{f"gptq-{bits}-bit": gptq(bits=bits) for bits in (2, 3, 4, 8)},
    **{f"gptq-{bits}-bit-v2": gptq(bits=bits, version=2) for bits in (2, 3, 4, 8)},
    **{f"gptq-{bits}-bit-symmetric": gptq(bits=bits, sym=True) for bits in (2, 3, 4, 8)},
    "gptq-act-order": gptq(act_order=True),
    "gptq-act-order-one-group": gptq(act_order=True, group_size=-1),
    "gptq-act-order-3-bit": gptq(bits=3, act_order=True),
    "gptq-bfloat16-scales": gptq(scale_dtype=torch.bfloat16),
    "gptq-float32-scales": gptq(scale_dtype=torch.float32),
    "gptq-one-group": gptq(group_size=-1),
    "gptq-ragged": gptq(group_size=64),  # 96 inputs of down_proj: one group of 64, one of 32
    "gptq-group-of-128-larger-than-inputs": gptq(group_size=128),
    "awq": awq(),
    "awq-one-group": awq(group_size=-1),
    "awq-bfloat16-scales": awq(scale_dtype=torch.bfloat16),
    **{f"compressed-{bits}-bit": compressed(bits=bits) for bits in (2, 3, 4, 8)},
    "compressed-asymmetric": compressed(sym=False),
    "compressed-8-bit-asymmetric": compressed(bits=8, sym=False),
    "compressed-channel": compressed(group_size=-1, scale_dtype=torch.bfloat16),
    "compressed-channel-asymmetric": compressed(group_size=-1, sym=False, scale_dtype=torch.bfloat16),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_weights_are_what_the_format_says(tmp_path: Path, name: str) -> None:
    check_weights(write_quantized(tmp_path, SCHEMES[name]))


def test_a_quantized_head_and_projections_left_out(tmp_path: Path) -> None:
    """The head is quantised, one layer's values are not; the embedding never is."""
    left_out = "model.layers.1.self_attn.v_proj"

    def modules(name: str) -> bool:
        return name == "lm_head" or (name.rpartition(".")[2] in PROJECTIONS and name != left_out)

    made = write_quantized(tmp_path, replace(gptq(), modules=modules), vocab_size=304)
    check_weights(made)
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    qkv = load(made.path)._layers[1].qkv
    attention = made.reference.model.layers[1].self_attn
    expected = torch.cat([part(x) for part in (attention.q_proj, attention.k_proj, attention.v_proj)], dim=1)
    assert torch.allclose(qkv(x), expected, atol=1e-5)


def test_a_vocabulary_that_the_words_do_not_divide(tmp_path: Path) -> None:
    def modules(name: str) -> bool:
        return name == "lm_head"

    check_weights(write_quantized(tmp_path, replace(gptq(bits=3), modules=modules), vocab_size=301))


def test_qnt_07_biases_of_quantized_projections_are_added(tmp_path: Path) -> None:
    """QNT-07, and biases of zero that a tool gave to modules without one."""
    made = write_quantized(tmp_path, gptq(), attention_bias=True)

    def add_zeros(weights: dict[str, torch.Tensor]) -> None:
        weights[f"{DOWN}.bias"] = torch.zeros(64)

    edit_tensors(tmp_path, add_zeros)
    check_weights(made)
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    attention = made.reference.model.layers[0].self_attn
    expected = torch.cat([part(x) for part in (attention.q_proj, attention.k_proj, attention.v_proj)], dim=1)
    assert bool(attention.q_proj.bias.any())
    assert torch.allclose(load(tmp_path)._layers[0].qkv(x), expected, atol=1e-5)
    edit_tensors(tmp_path, lambda weights: weights[f"{DOWN}.bias"].add_(1))
    with pytest.raises(ModelLoadError, match=r"down_proj\.bias' has no place"):
        load(tmp_path)


def test_older_configuration_files_are_read(tmp_path: Path) -> None:
    made = write_quantized(tmp_path, gptq())
    edit_json(tmp_path / "config.json", quantization_config=...)
    (tmp_path / "quantize_config.json").write_text('{"bits": 4, "group_size": 32, "sym": false, "desc_act": false}')
    check_weights(made)
    assert open_checkpoint(tmp_path).quantization == "gptq 4-bit, group 32"


def test_shards_are_read_by_the_index(tmp_path: Path) -> None:
    made = write_quantized(tmp_path, awq())
    whole: dict[str, torch.Tensor] = {}
    edit_tensors(tmp_path, whole.update)
    (tmp_path / "model.safetensors").unlink()

    files = {name: f"model-{number % 3}.safetensors" for number, name in enumerate(sorted(whole))}
    for file in set(files.values()):
        save_file({name: whole[name] for name in whole if files[name] == file}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    edit_json(tmp_path / "model.safetensors.index.json", weight_map=files)
    check_weights(made)
    shard = tmp_path / "model-1.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ModelLoadError, match=r"model-1\.safetensors: truncated"):
        load(tmp_path)


def with_nan(scales: torch.Tensor) -> torch.Tensor:
    scales[1, 3] = float("nan")
    return scales


@pytest.mark.parametrize(
    ("scheme", "damage", "named"),
    [
        (gptq(), drop(f"{FIRST}.qzeros"), r"q_proj\.qzeros' is missing"),
        (gptq(), drop(f"{FIRST}.scales"), r"q_proj\.scales' is missing"),
        (gptq(), drop(f"{FIRST}.qweight"), r"q_proj\.(weight' is missing|.*has no place)"),
        (gptq(), set_tensor(f"{FIRST}.scales", with_nan), r"q_proj\.scales' holds NaN"),
        (gptq(), set_tensor(f"{FIRST}.g_idx", lambda index: index + 1), r"g_idx' names groups 1 to 2; there are 2"),
        (gptq(), set_tensor(f"{FIRST}.g_idx", lambda index: index - 1), r"g_idx' names groups -1 to 0"),
        (gptq(), set_tensor(f"{FIRST}.g_idx", lambda index: index[:8]), r"g_idx' has shape \[8\]; \[64\]"),
        (gptq(), set_tensor(f"{FIRST}.qzeros", torch.Tensor.float), r"qzeros' has dtype float32; int32"),
        (gptq(), set_tensor(f"{FIRST}.qzeros", lambda zeros: zeros[:1].clone()), r"qzeros' has shape \[1, 8\]"),
        (gptq(), set_tensor(f"{FIRST}.qweight", lambda words: words[:4].clone()), r"qweight' has 4 rows; 8 are"),
        (awq(), drop(f"{DOWN}.qzeros"), r"down_proj\.qzeros' is missing"),
        (awq(), set_tensor(f"{DOWN}.scales", with_nan), r"down_proj\.scales' holds NaN"),
        (awq(), set_tensor(f"{DOWN}.scales", lambda scales: scales[:2].clone()), r"scales' has shape \[2, 64\]"),
        (gptq(), set_tensor(f"{FIRST}.qweight", lambda words: words[0, 0].clone()), r"qweight' has 0 rows; 8 are"),
        (
            gptq(fields={"dynamic": {"x": {"bits": 8}}}),
            set_tensor(f"{FIRST}.scales", lambda scales: scales[:0].clone()),
            r"scales' has 0 groups",
        ),
        (
            compressed(),
            set_tensor(f"{DOWN}.weight_scale", lambda scales: scales[:, :0].clone()),
            r"weight_scale' has shape \[64, 0\]; \[64, groups\] is needed.*96 inputs by group_size \[32\]",
        ),
        (compressed(sym=False), drop(f"{DOWN}.weight_zero_point"), r"weight_zero_point' is missing"),
        (compressed(), drop(f"{DOWN}.weight_scale"), r"weight_scale' is missing"),
        (compressed(), drop(f"{DOWN}.weight_shape"), r"weight_shape' is missing"),
        (compressed(), set_tensor(f"{DOWN}.weight_shape", lambda shape: shape + 1), r"weight_shape' is \[65, 97\]"),
        (
            compressed(sym=False),
            set_tensor(f"{DOWN}.weight_zero_point", lambda zeros: zeros[1:].clone()),
            r"weight_zero_point' has shape \[7, 3\]; \[8, 3\]",
        ),
    ],
)
def test_damage_is_named(
    tmp_path: Path, scheme: Scheme, damage: Callable[[dict[str, torch.Tensor]], Any], named: str
) -> None:
    write_quantized(tmp_path, scheme)
    edit_tensors(tmp_path, damage)
    with pytest.raises(ModelLoadError, match=named):
        load(tmp_path)


@pytest.mark.parametrize(
    ("scheme", "fields", "named"),
    [
        (gptq(), {"bits": 8}, r"qweight' has 8 rows; 16 are needed for the 8 bits of quantization_config.bits"),
        (gptq(), {"bits": 5}, r"quantization_config.bits 5 is not supported; supported: 2, 3, 4, 8"),
        (gptq(), {"bits": "4"}, r"quantization_config.bits '4'"),
        (gptq(), {"bits": ...}, r"quantization_config.bits is missing"),
        (gptq(), {"group_size": 64}, r"scales' has 2 groups; quantization_config.group_size 64 makes 1"),
        (gptq(), {"group_size": 0}, r"quantization_config.group_size 0 is not supported"),
        (gptq(), {"checkpoint_format": "marlin"}, r"checkpoint_format 'marlin' is not supported; supported: gptq"),
        (gptq(), {"pack_dtype": "int16"}, r"pack_dtype 'int16'"),
        (gptq(), {"sym": "yes"}, r"quantization_config.sym 'yes'"),
        (gptq(), {"rotation": "hadamard"}, r"quantization_config.rotation 'hadamard'"),
        (gptq(), {"quant_method": "awq"}, r"checkpoint_format 'gptq' is not supported; supported: gemm"),
        (gptq(), {"quant_method": "bitsandbytes"}, r"quant_method 'bitsandbytes' is not supported; supported: awq"),
        (gptq(), {"quant_method": "x" * 100_000}, r"quant_method 'x{79} is not supported; supported: awq"),
        (gptq(), {"quant_method": ...}, r"quant_method is missing"),
        (awq(), {"bits": 8}, r"quantization_config.bits 8 is not supported; supported: 4"),
        (awq(), {"version": "gemv"}, r"quantization_config.version 'gemv' is not supported; supported: gemm"),
        (awq(), {"group_size": 64}, r"q_proj.scales' has shape \[2, 64\]; \[1, 64\]"),
        (awq(), {"quant_method": "gptq", "sym": True}, r"qweight' has 64 rows"),
        (compressed(), {"format": "nvfp4-pack-quantized"}, r"quantization_config.format 'nvfp4-pack-quantized'"),
        (compressed(), {"config_groups": {}}, r"quantization_config.config_groups"),
        (compressed(), {"kv_cache_scheme": {"num_bits": 8}}, r"kv_cache_scheme .* is not supported"),
        (compressed(), {"sparsity_config": {"format": "sparse-24-bitmask"}}, r"sparsity_config"),
        (compressed(), {"sparsity_config": "dense"}, r"sparsity_config"),
        (compressed(), {"transform_config": {"config_groups": {"u": {"type": "hadamard"}}}}, r"transform_config"),
        (gptq(), {"format": "gptq_v2"}, r"format 'gptq_v2' is not supported; supported: gptq as checkpoint_format"),
    ],
)
def test_labels_that_are_wrong_or_not_supported_are_named(
    tmp_path: Path, scheme: Scheme, fields: dict[str, Any], named: str
) -> None:
    write_quantized(tmp_path, scheme)
    changed = {name: value for name, value in {**scheme.config, **fields}.items() if value is not ...}
    edit_json(tmp_path / "config.json", quantization_config=changed)
    with pytest.raises(ModelLoadError, match=named):
        load(tmp_path)


def test_the_projections_are_those_of_the_model(tmp_path: Path) -> None:
    write_quantized(tmp_path, gptq())

    def rename(weights: dict[str, torch.Tensor]) -> None:
        for ending in ("qweight", "qzeros", "scales", "g_idx"):
            weights[f"model.layers.7.mlp.up_proj.{ending}"] = weights[f"{DOWN}.{ending}"].clone()

    edit_tensors(tmp_path, rename)
    with pytest.raises(ModelLoadError, match=r"quantised module 'model\.layers\.7\.mlp\.up_proj' has no place"):
        load(tmp_path)
