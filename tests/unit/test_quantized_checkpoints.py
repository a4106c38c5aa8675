"""Quantised checkpoints: every packing stands for exactly the weights its formula says, and damage is named."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pagewire_kernels import load_kernels
from pagewire_kernels.reference import dequantize
from support.float8_files import FLOAT8, write_float8
from support.quantized_files import (
    PROJECTIONS,
    Codes,
    QuantizedModel,
    Scheme,
    awq,
    compressed,
    edit_json,
    edit_tensors,
    gptq,
    pack_gptq,
    pack_stream,
    write_quantized,
)

from gpu_worker.errors import ModelLoadError
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


def test_two_configurations_must_agree_on_the_version(tmp_path: Path) -> None:
    made = write_quantized(tmp_path, gptq(version=2))
    (tmp_path / "quantize_config.json").write_text('{"bits": 8, "checkpoint_format": "gptq_v2"}')
    check_weights(made)
    (tmp_path / "quantize_config.json").write_text('{"bits": 4, "checkpoint_format": "gptq"}')
    with pytest.raises(ModelLoadError, match=r"quantize_config\.json: checkpoint_format is not gptq_v2; config.json"):
        load(tmp_path)


def test_shards_are_read_by_the_index(tmp_path: Path) -> None:
    made = write_quantized(tmp_path, awq())
    whole: dict[str, torch.Tensor] = {}
    edit_tensors(tmp_path, whole.update)
    (tmp_path / "model.safetensors").unlink()
    from safetensors.torch import save_file

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


# Zero points


def made_layer(zeros: torch.Tensor | int, *, version: int, bits: int = 4) -> dict[str, torch.Tensor]:
    """QNT-01's layer of 64 inputs, 16 outputs and groups of 32, as tensors; stored zero points are the version's."""
    generator = torch.Generator().manual_seed(3)
    values = torch.full((16, 2), zeros) if isinstance(zeros, int) else zeros
    codes = Codes(
        codes=torch.randint(0, 2**bits, (16, 64), generator=generator),
        scales=torch.rand(16, 2, generator=generator).half(),
        zeros=values,
        group_index=torch.arange(64) // 32,
        bits=bits,
    )
    return {**pack_gptq(codes, version=version), "expected": codes.weight}


def unpacked(tensors: dict[str, torch.Tensor], **fields: Any) -> torch.Tensor:
    from gpu_worker.weights.gptq import GptqFormat
    from gpu_worker.weights.stored_module import StoredModule

    given = {"bits": 4, "group_size": 32, **fields}
    module = StoredModule(path=Path("x"), name="m", tensors=tensors, num_outputs=16, num_inputs=64)
    return dequantize(GptqFormat.parse(given).unpack(module), torch.float16)


@pytest.mark.parametrize("label", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("version", [1, 2])
def test_QNT_01_symmetric_zero_points_are_known_by_content(version: int, label: str) -> None:
    """Stored 7 (version 1) and 8 (version 2) both stand for 8, whatever the label."""
    tensors = made_layer(8, version=version)
    found = unpacked(tensors, sym=True, checkpoint_format=label)
    assert torch.equal(found, tensors["expected"])


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_QNT_01_a_zero_point_of_zero_wraps_code_by_code(bits: int) -> None:
    zeros = torch.arange(32).view(16, 2) % 2**bits
    for version, label in ((1, "gptq"), (2, "gptq_v2")):
        tensors = made_layer(zeros, version=version, bits=bits)
        found = unpacked(tensors, sym=False, bits=bits, checkpoint_format=label)
        assert torch.equal(found, tensors["expected"])


def test_QNT_01_what_gptqmodel_lent_between_codes_is_given_back() -> None:
    """It subtracts 0x11111111 from whole words: below a zero point of 0, the neighbour lends one."""
    zeros = torch.arange(32).view(16, 2) % 16
    tensors = made_layer(zeros, version=2)
    tensors["qzeros"] = tensors["qzeros"] - 0x11111111
    found = unpacked(tensors, sym=False, meta={"quantizer": ["gptqmodel:7.7.0"]})
    assert torch.equal(found, tensors["expected"])


def test_QNT_01_ones_that_earlier_gptqmodels_misplaced_are_given_back() -> None:
    """Of 3 bits they took them at bits 2, 5, ... of the first of three words and 0, 3, ... of the last."""
    tensors = made_layer(4, version=2, bits=3)
    words = tensors["qzeros"].long() - torch.tensor([0x24924924, 0x92492492])
    tensors["qzeros"] = torch.where(words < -(2**31), words + 2**32, words).to(torch.int32)
    found = unpacked(tensors, sym=True, bits=3, meta={"quantizer": ["gptqmodel:2.0.0"]})
    assert torch.equal(found, tensors["expected"])


# Groups


def grouped_by(index: torch.Tensor, group_size: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """What is found and what is expected for a layer of 256 inputs and 64 outputs whose g_idx is given."""
    from gpu_worker.weights.gptq import GptqFormat
    from gpu_worker.weights.stored_module import StoredModule

    generator = torch.Generator().manual_seed(5)
    groups = 1 if group_size == -1 else 256 // group_size
    codes = Codes(
        codes=torch.randint(0, 16, (64, 256), generator=generator),
        scales=torch.rand(64, groups, generator=generator).half(),
        zeros=torch.randint(0, 16, (64, groups), generator=generator),
        group_index=index if index.numel() else torch.arange(256) * groups // 256,
        bits=4,
    )
    tensors = {**pack_gptq(codes), "g_idx": index.to(torch.int32)}
    if not index.numel() and group_size == 64:
        del tensors["g_idx"]
    module = StoredModule(path=Path("x"), name="m", tensors=tensors, num_outputs=64, num_inputs=256)
    scheme = GptqFormat.parse({"bits": 4, "group_size": group_size, "sym": False, "desc_act": True})
    return dequantize(scheme.unpack(module), torch.float16), codes.weight


ORDERS = {
    "trivial": torch.arange(256) // 64,
    "permuted": (torch.arange(256) // 64)[torch.randperm(256, generator=torch.Generator().manual_seed(2))],
    "groups-permuted": torch.tensor([2, 0, 3, 1]).repeat_interleave(64),
    "interleaved": torch.arange(256) % 4,
    "all-zero": torch.zeros(256, dtype=torch.long),
    "uneven": torch.randint(0, 4, (256,), generator=torch.Generator().manual_seed(4)),
    "missing": torch.empty(0, dtype=torch.long),
}


@pytest.mark.parametrize("order", ORDERS)
def test_QNT_02_every_column_uses_the_group_it_names(order: str) -> None:
    found, expected = grouped_by(ORDERS[order])
    assert torch.equal(found, expected)


def test_QNT_02_an_empty_index_and_one_group() -> None:
    for index in (torch.empty(0, dtype=torch.long), torch.zeros(256, dtype=torch.long)):
        found, expected = grouped_by(index, group_size=-1)
        assert torch.equal(found, expected)


def test_QNT_02_fused_projections_keep_an_order_each(tmp_path: Path) -> None:
    """Query, key and value with three different g_idx are three products; equal ones are one."""
    made = write_quantized(tmp_path, gptq(act_order=True))
    model = load(tmp_path)
    assert len(model._layers[0].qkv._runs) == 1  # type: ignore[union-attr]
    index = made.codes[FIRST].group_index

    def reverse(weights: dict[str, torch.Tensor]) -> None:
        weights["model.layers.0.self_attn.k_proj.g_idx"] = index.flip(0).to(torch.int32)

    edit_tensors(tmp_path, reverse)
    key = "model.layers.0.self_attn.k_proj"
    expected = replace(made.codes[key], group_index=index.flip(0)).weight.float()
    layer = load(tmp_path)._layers[0].qkv
    assert len(layer._runs) == 3  # type: ignore[union-attr]
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(layer(x)[:, 64:96], x @ expected.T, atol=1e-5)


@pytest.mark.parametrize(("num_inputs", "group_size"), [(200, 128), (4096, -1), (4096, 32), (4096, 64), (4096, 128)])
def test_QNT_03_groups_cover_all_inputs(num_inputs: int, group_size: int) -> None:
    """A last group may be shorter; -1 is one group."""
    from gpu_worker.weights.gptq import GptqFormat
    from gpu_worker.weights.stored_module import StoredModule

    size = num_inputs if group_size == -1 else group_size
    groups = -(-num_inputs // size)
    codes = Codes(
        codes=torch.randint(0, 16, (8, num_inputs), generator=torch.Generator().manual_seed(1)),
        scales=torch.rand(8, groups).half(),
        zeros=torch.full((8, groups), 8),
        group_index=torch.arange(num_inputs) // size,
        bits=4,
    )
    module = StoredModule(path=Path("x"), name="m", tensors=pack_gptq(codes), num_outputs=8, num_inputs=num_inputs)
    weight = GptqFormat.parse({"bits": 4, "group_size": group_size}).unpack(module)
    assert weight.num_groups == groups
    assert torch.equal(dequantize(weight, torch.float16), codes.weight)


@pytest.mark.parametrize("num_inputs", [64, 96, 128])
@pytest.mark.parametrize("bits", [2, 3, 8])
def test_QNT_05_other_bits_are_exact(bits: int, num_inputs: int) -> None:
    """Of 3 bits, 32 values lie in 3 words: 10, one cut, 10, one cut, 10."""
    values = torch.randint(0, 2**bits, (num_inputs, 32), generator=torch.Generator().manual_seed(bits))
    from gpu_worker.weights.bit_packing import unpack

    assert torch.equal(unpack(pack_stream(values, bits), bits, 32).long(), values)
    if bits == 3:
        words = pack_stream(values, 3).long() & 0xFFFFFFFF
        assert torch.equal(words[:, 0] >> 27 & 7, values[:, 9])
        assert torch.equal(words[:, 0] >> 30 | (words[:, 1] & 1) << 2, values[:, 10])
        assert torch.equal(words[:, 1] >> 28 & 7, values[:, 20])
        assert torch.equal(words[:, 1] >> 31 | (words[:, 2] & 3) << 1, values[:, 21])


# Damage


def set_tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, torch.Tensor]], None]:
    def apply(weights: dict[str, torch.Tensor]) -> None:
        weights[name] = change(weights[name])

    return apply


def with_nan(scales: torch.Tensor) -> torch.Tensor:
    scales[1, 3] = float("nan")
    return scales


def drop(name: str) -> Callable[[dict[str, torch.Tensor]], Any]:
    return lambda weights: weights.pop(name)


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
        (compressed(), {"kv_cache_scheme": {"num_bits": 8}}, r"kv_cache_scheme is not supported"),
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


def test_either_name_of_the_format_counts() -> None:
    """GPTQModel writes both; null is as good as none."""
    tensors = made_layer(torch.arange(32).view(16, 2) % 16, version=2)
    for fields in ({"format": "gptq_v2"}, {"format": "GPTQ_V2", "checkpoint_format": None}):
        assert torch.equal(unpacked(tensors, sym=False, **fields), tensors["expected"])


def test_exceptions_may_have_groups_whose_last_is_shorter(tmp_path: Path) -> None:
    """96 inputs in groups of 64, where the configuration says 32 for most: also without g_idx."""
    scheme = gptq(group_size=64)
    made = write_quantized(tmp_path, scheme)
    edit_tensors(tmp_path, drop(f"{DOWN}.g_idx"))
    fields = {**scheme.config, "group_size": 32, "dynamic": {"+:.*": {"group_size": 64}}}
    edit_json(tmp_path / "config.json", quantization_config=fields)
    check_weights(made)


def test_compressed_groups_are_those_of_a_scheme(tmp_path: Path) -> None:
    """Columns that were never ordered have the index -1; a last group may be shorter."""
    scheme = compressed(group_size=64)
    made = write_quantized(tmp_path, scheme)
    index = torch.full((96,), -1, dtype=torch.int32)
    edit_tensors(tmp_path, lambda weights: weights.update({f"{DOWN}.weight_g_idx": index}))
    check_weights(made)
    weights = {**scheme.config["config_groups"]["group_0"]["weights"], "group_size": 32}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    edit_json(tmp_path / "config.json", quantization_config={**scheme.config, "config_groups": groups})
    with pytest.raises(ModelLoadError, match=r"q_proj\.weight_scale' has shape \[64, 1\].*group_size \[32\]"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("kind", "fields", "damage", "named"),
    [
        ("tensor", {}, drop(f"{DOWN}.input_scale"), r"down_proj\.input_scale' is missing"),
        (
            "compressed",
            {"input_activations": {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}},
            lambda weights: None,
            r"input_scale' is missing",
        ),
        ("compressed", {"input_activations": "dynamic"}, lambda weights: None, r"group_0\.input_activations 'dynamic'"),
        (
            "block",
            {},
            set_tensor(f"{DOWN}.weight_scale_inv", lambda scales: scales[0, 0].clone()),
            r"weight_scale_inv' has shape \[\]; \[2, 3\] is needed",
        ),
        ("block", {"weight_block_size": [2**60, 32]}, lambda weights: None, r"has shape \[2, 2\]; \[1, 2\] is needed"),
    ],
)
def test_float8_scales_are_those_of_the_configuration(
    tmp_path: Path, kind: str, fields: dict[str, Any], damage: Callable[[dict[str, torch.Tensor]], Any], named: str
) -> None:
    write_float8(tmp_path, kind)
    edit_tensors(tmp_path, damage)
    scheme = dict(FLOAT8[kind])
    if kind == "compressed":
        scheme["config_groups"] = {"group_0": {**scheme["config_groups"]["group_0"], **fields}}
    else:
        scheme.update(fields)
    edit_json(tmp_path / "config.json", quantization_config=scheme)
    with pytest.raises(ModelLoadError, match=named):
        load(tmp_path)


def test_a_scheme_of_quantized_inputs_is_refused(tmp_path: Path) -> None:
    scheme = compressed()
    write_quantized(tmp_path, scheme)
    for field, value, named in (
        ("input_activations", {"num_bits": 8}, "config_groups.group_0.input_activations"),
        ("weights", {"num_bits": 5, "type": "int", "strategy": "group"}, "config_groups.group_0.weights.num_bits 5"),
        ("weights", {"num_bits": 4, "type": "float", "strategy": "group"}, "config_groups.group_0.type 'float'"),
        ("weights", None, "config_groups.group_0.weights is missing"),
    ):
        group = {**scheme.config["config_groups"]["group_0"], field: value}
        edit_json(tmp_path / "config.json", quantization_config={**scheme.config, "config_groups": {"group_0": group}})
        with pytest.raises(ModelLoadError, match=named):
            open_checkpoint(tmp_path)


def test_mixed_bits_stay_separate(tmp_path: Path) -> None:
    """GPTQModel's ``dynamic`` gives some modules other bits: their shapes say which."""
    made = write_quantized(tmp_path, gptq())
    eight = gptq(bits=8)
    from support.quantized_files import random_codes

    name = "model.layers.0.self_attn.v_proj"
    codes = random_codes(eight, 32, 64, 99)

    def replace_value(weights: dict[str, torch.Tensor]) -> None:
        weights.update({f"{name}.{ending}": part for ending, part in pack_gptq(codes).items()})

    edit_tensors(tmp_path, replace_value)
    with pytest.raises(ModelLoadError, match=r"v_proj\.qweight' has 16 rows; 8 are needed for the 4 bits"):
        load(tmp_path)
    edit_json(
        tmp_path / "config.json",
        quantization_config={**gptq().config, "dynamic": {r"+:.*\.0\..*v_proj": {"bits": 8}}},
    )
    layer = load(tmp_path)._layers[0].qkv
    assert len(layer._runs) == 2  # type: ignore[union-attr]
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(layer(x)[:, 96:], x @ codes.weight.float().T, atol=1e-5)
    assert torch.allclose(layer(x)[:, :64], x @ made.codes[FIRST].weight.float().T, atol=1e-5)


def test_the_projections_are_those_of_the_model(tmp_path: Path) -> None:
    write_quantized(tmp_path, gptq())

    def rename(weights: dict[str, torch.Tensor]) -> None:
        for ending in ("qweight", "qzeros", "scales", "g_idx"):
            weights[f"model.layers.7.mlp.up_proj.{ending}"] = weights[f"{DOWN}.{ending}"].clone()

    edit_tensors(tmp_path, rename)
    with pytest.raises(ModelLoadError, match=r"quantised module 'model\.layers\.7\.mlp\.up_proj' has no place"):
        load(tmp_path)
