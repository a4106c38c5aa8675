"""GPTQ checkpoints: zero points of both versions, groups in any order, every number of bits."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pagewire_kernels.reference import dequantize
from support.quantized_files import (
    Codes,
    edit_json,
    edit_tensors,
    gptq,
    pack_gptq,
    pack_stream,
    random_codes,
    write_quantized,
)
from support.quantized_loading import DOWN, FIRST, check_weights, drop, load

from gpu_worker.errors import ModelLoadError
from gpu_worker.weights.bit_packing import unpack
from gpu_worker.weights.gptq import GptqFormat
from gpu_worker.weights.stored_module import StoredModule


def test_two_configurations_must_agree_on_the_version(tmp_path: Path) -> None:
    made = write_quantized(tmp_path, gptq(version=2))
    (tmp_path / "quantize_config.json").write_text('{"bits": 8, "checkpoint_format": "gptq_v2"}')
    check_weights(made)
    (tmp_path / "quantize_config.json").write_text('{"bits": 4, "checkpoint_format": "gptq"}')
    with pytest.raises(ModelLoadError, match=r"quantize_config\.json: checkpoint_format is not gptq_v2; config.json"):
        load(tmp_path)


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


def grouped_by(index: torch.Tensor, group_size: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """What is found and what is expected for a layer of 256 inputs and 64 outputs whose g_idx is given."""

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

    assert torch.equal(unpack(pack_stream(values, bits), bits, 32).long(), values)
    if bits == 3:
        words = pack_stream(values, 3).long() & 0xFFFFFFFF
        assert torch.equal(words[:, 0] >> 27 & 7, values[:, 9])
        assert torch.equal(words[:, 0] >> 30 | (words[:, 1] & 1) << 2, values[:, 10])
        assert torch.equal(words[:, 1] >> 28 & 7, values[:, 20])
        assert torch.equal(words[:, 1] >> 31 | (words[:, 2] & 3) << 1, values[:, 21])


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


def test_mixed_bits_stay_separate(tmp_path: Path) -> None:
    """GPTQModel's ``dynamic`` gives some modules other bits: their shapes say which."""
    made = write_quantized(tmp_path, gptq())
    eight = gptq(bits=8)

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
