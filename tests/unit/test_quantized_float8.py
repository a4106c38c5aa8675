"""FP8 checkpoints: scales as the configuration says, and inputs that are rounded or not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.float8_files import FLOAT8, write_float8
from support.quantized_files import edit_json, edit_tensors
from support.quantized_loading import CPU, DOWN, drop, load, set_tensor

from gpu_worker.errors import ModelLoadError
from gpu_worker.weights.open import open_checkpoint


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
        (
            "channel",
            {},
            lambda weights: weights.update({f"{DOWN}.weight_scale_inv": torch.tensor(0.5)}),
            r"weight_scale_inv' is beside 'weight_scale'",
        ),
        ("tensor", {"kv_cache_scheme": "static"}, lambda weights: None, r"kv_cache_scheme 'static' is not supported"),
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


@pytest.mark.parametrize("kind", FLOAT8)
def test_inputs_are_rounded_unless_the_weights_alone_are_quantized(tmp_path: Path, kind: str) -> None:
    write_float8(tmp_path, kind)
    weight = open_checkpoint(tmp_path).read_quantized(DOWN, 64, 96, CPU)
    assert weight.rounds_inputs is (kind != "weights-only")
    assert weight.input_scale == (0.5 if kind == "tensor" else None)


def test_a_scale_of_inputs_means_nothing_where_these_stay_floats(tmp_path: Path) -> None:
    write_float8(tmp_path, "weights-only")
    edit_tensors(tmp_path, lambda weights: weights.update({f"{DOWN}.input_scale": torch.tensor(0.5)}))
    weight = open_checkpoint(tmp_path).read_quantized(DOWN, 64, 96, CPU)
    assert (weight.rounds_inputs, weight.input_scale) == (False, None)
    load(tmp_path)
