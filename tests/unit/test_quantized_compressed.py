"""compressed-tensors checkpoints: their schemes, and which of them are refused."""

from pathlib import Path

import pytest
import torch
from support.quantized_files import compressed, edit_json, edit_tensors, write_quantized
from support.quantized_loading import DOWN, check_weights, load

from gpu_worker.errors import ModelLoadError
from gpu_worker.weights.open import open_checkpoint

WEIGHTS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}


@pytest.mark.parametrize(
    ("order", "needs_index"), [("Group", True), ("dynamic", True), (True, True), ("static", False)]
)
def test_columns_in_the_order_of_activation_need_their_groups(tmp_path: Path, order: object, needs_index: bool) -> None:
    """Without them every column but a few would get another's scale."""
    scheme = compressed()
    made = write_quantized(tmp_path, scheme)
    groups = {"group_0": {"targets": ["Linear"], "weights": {**WEIGHTS, "actorder": order}}}
    edit_json(tmp_path / "config.json", quantization_config={**scheme.config, "config_groups": groups})
    if needs_index:
        with pytest.raises(ModelLoadError, match=r"q_proj\.weight_g_idx' is missing; actorder of the config"):
            load(tmp_path)
        index = {f"{name}.weight_g_idx": codes.group_index.int() for name, codes in made.codes.items()}
        edit_tensors(tmp_path, lambda weights: weights.update(index))
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


def test_a_scheme_of_quantized_inputs_is_refused(tmp_path: Path) -> None:
    scheme = compressed()
    write_quantized(tmp_path, scheme)
    for field, value, named in (
        ("input_activations", {"num_bits": 8}, "config_groups.group_0.input_activations"),
        ("weights", {"num_bits": 5, "type": "int", "strategy": "group"}, "config_groups.group_0.weights.num_bits 5"),
        ("weights", {"num_bits": 4, "type": "float", "strategy": "group"}, "config_groups.group_0.type 'float'"),
        ("weights", None, "config_groups.group_0.weights is missing"),
        ("output_activations", {"num_bits": 8}, "config_groups.group_0.output_activations"),
        ("weights", {**WEIGHTS, "actorder": "columns"}, "config_groups.group_0.weights.actorder 'columns'"),
    ):
        group = {**scheme.config["config_groups"]["group_0"], field: value}
        edit_json(tmp_path / "config.json", quantization_config={**scheme.config, "config_groups": {"group_0": group}})
        with pytest.raises(ModelLoadError, match=named):
            open_checkpoint(tmp_path)
