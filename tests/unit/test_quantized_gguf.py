"""GGUF matrices that stay quantised stand for what ggml computes, bit for bit."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from pagewire_kernels import load_kernels
from pagewire_kernels.reference import dequantize
from support.tiny_gguf import write_gguf
from support.tiny_models import make_config
from transformers import LlamaForCausalLM

from gpu_worker.errors import ModelLoadError
from gpu_worker.models.llama import LlamaModel
from gpu_worker.weights.gguf import GgufCheckpoint
from gpu_worker.weights.gguf_blocks import FORMS, unpack_blocks
from gpu_worker.weights.load import load_quantized, load_weights

CPU = torch.device("cpu")


def everything(bits: int, group_size: int, has_offsets: bool) -> bool:
    return True


def random_blocks(kind: str, rows: int, blocks: int) -> np.ndarray:
    """Bytes of valid blocks: any, but float16 fields that are finite and small."""
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    generator = np.random.default_rng(3)
    raw = generator.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    fields = {"Q4_0": (0,), "Q4_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}[kind]
    for start in fields:
        values = generator.normal(0, 0.1, (rows, blocks, 1)).astype(np.float16)
        raw[:, :, start : start + 2] = values.view(np.uint8)
    return raw.reshape(rows, -1)


@pytest.mark.parametrize("kind", FORMS)
def test_blocks_are_what_ggml_computes(kind: str) -> None:
    raw = random_blocks(kind, 6, 3)
    weight = unpack_blocks(raw, kind)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    assert (weight.bits, weight.group_size) == (FORMS[kind].bits, FORMS[kind].group_size)
    assert (weight.offsets is not None) == FORMS[kind].has_offsets
    assert torch.equal(dequantize(weight, torch.float32), torch.from_numpy(expected))


@pytest.mark.parametrize("kind", FORMS)
def test_blocks_are_divided_at_any_group(kind: str) -> None:
    weight = unpack_blocks(random_blocks(kind, 6, 4), kind)
    whole, half = dequantize(weight, torch.float32), weight.shape[1] // 2
    parts = [weight.select_inputs(0, half), weight.select_inputs(half, 2 * half)]
    assert torch.equal(torch.cat([dequantize(part, torch.float32) for part in parts], dim=1), whole)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_file_gives_the_same_weights_either_way(tmp_path: Path, kind: str, tied: bool) -> None:
    """Heads' rows come in the same order; a tied head has the embedding's codes."""
    torch.manual_seed(2)
    shapes = {"hidden_size": 64, "intermediate_size": 96, "num_key_value_heads": 2, "tie_word_embeddings": tied}
    write_gguf(tmp_path / "x.gguf", LlamaForCausalLM(make_config(**shapes)), kind)
    plain, kept = GgufCheckpoint(tmp_path / "x.gguf"), GgufCheckpoint(tmp_path / "x.gguf")
    kept.keep_quantized(everything)
    assert len(kept.quantized_modules) == 2 * 7 + 1
    for name in kept.quantized_modules:
        stored = "model.embed_tokens.weight" if tied and name == "lm_head" else f"{name}.weight"
        expected = plain.read(stored)
        found = kept.read_quantized(name, *expected.shape, CPU)
        assert torch.equal(dequantize(found, torch.float32), expected), name
    with pytest.raises(
        ModelLoadError, match=r"down_proj\.weight' has shape \[64, 96\]; the config asks for \[64, 64\]"
    ):
        kept.read_quantized("model.layers.0.mlp.down_proj", 64, 64, CPU)


def test_only_what_the_kernels_take_is_kept(tmp_path: Path) -> None:
    shapes = {"hidden_size": 64, "intermediate_size": 96, "num_key_value_heads": 2}
    write_gguf(tmp_path / "x.gguf", LlamaForCausalLM(make_config(**shapes)), "Q4_1")
    checkpoint = GgufCheckpoint(tmp_path / "x.gguf")
    assert checkpoint.keep_quantized(lambda bits, group_size, has_offsets: not has_offsets) == ["Q4_1"]
    assert not checkpoint.quantized_modules
    assert checkpoint.keep_quantized(everything) == []
    kernels = load_kernels("cpu")
    model = LlamaModel(
        checkpoint.config,
        kernels,
        max_model_len=64,
        dtype=torch.bfloat16,
        device=CPU,
        quantized=checkpoint.quantized_modules,
    )
    load_weights(checkpoint, model.weight_slots(), pytest.fail)
    load_quantized(checkpoint, model.quantized_linears, kernels, torch.bfloat16, CPU)
    assert model.num_parameters == sum(
        tensor.numel() for tensor in LlamaForCausalLM(make_config(**shapes)).parameters()
    )


@pytest.mark.parametrize(("kind", "offset"), [("Q8_0", 0), ("Q4_1", 0), ("Q4_1", 2)])
def test_a_scale_or_minimum_that_is_no_number_is_named(tmp_path: Path, kind: str, offset: int) -> None:
    shapes = {"hidden_size": 64, "intermediate_size": 96}
    model = LlamaForCausalLM(make_config(**shapes))
    write_gguf(tmp_path / "x.gguf", model, kind)
    checkpoint = GgufCheckpoint(tmp_path / "x.gguf")
    place = checkpoint._tensors["model.layers.0.mlp.down_proj.weight"].start
    content = bytearray((tmp_path / "x.gguf").read_bytes())
    content[place + offset : place + offset + 2] = b"\x00\x7e"
    (tmp_path / "x.gguf").write_bytes(content)
    damaged = GgufCheckpoint(tmp_path / "x.gguf")
    damaged.keep_quantized(everything)
    with pytest.raises(ModelLoadError, match=r"down_proj\.weight' holds scales that are NaN"):
        damaged.read_quantized("model.layers.0.mlp.down_proj", 64, 96, CPU)
