"""Quantised checkpoints through rows, pages and kernels: in float32 equal to transformers with the dequantised weights,
token for token; in bfloat16 close to it."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pagewire_kernels.reference import dequantize
from support.float8_files import FLOAT8, write_float8
from support.plan_driver import Generation, generate
from support.quantized_files import PROJECTIONS, Scheme, awq, compressed, edit_json, edit_tensors, gptq, write_quantized
from support.thread_ranks import SETTINGS
from support.tiny_models import greedy, random_prompt, write_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from gpu_worker import startup
from gpu_worker.config import WorkerConfig
from gpu_worker.errors import ConfigError, ModelLoadError
from gpu_worker.weights.open import open_checkpoint

LENGTHS = (1, 17, 40)
MAX_TOKENS = 10
FIXTURES = Path(__file__).parent.parent / "fixtures" / "quantized"


def with_head(name: str) -> bool:
    return name == "lm_head" or name.rpartition(".")[2] in PROJECTIONS


def build(path: Path, **options: Any) -> startup.Parts:
    settings = SETTINGS | options
    return startup.build(WorkerConfig(model=path, scheduler="ipc:///unused", **settings), print)


SCHEMES: dict[str, tuple[Scheme, dict[str, Any]]] = {
    "awq": (awq(), {}),
    "gptq-4-act-order": (gptq(act_order=True), {"attention_bias": True}),
    "gptq-3": (gptq(bits=3, sym=True), {}),
    "gptq-2-v2": (gptq(bits=2, version=2), {}),
    "gptq-8-with-head": (replace(gptq(bits=8), modules=with_head), {"vocab_size": 304}),
    "compressed-4": (compressed(scale_dtype=torch.bfloat16), {"tie_word_embeddings": True}),
    "compressed-8": (compressed(bits=8, group_size=-1), {"family": "Qwen3", "head_dim": 16}),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_tokens_equal_transformers_with_the_dequantised_weights(tmp_path: Path, name: str) -> None:
    scheme, shape = SCHEMES[name]
    made = write_quantized(tmp_path, scheme, **shape)
    runner = build(tmp_path).runner
    generations = [Generation(prompt=random_prompt(length), max_tokens=MAX_TOKENS) for length in LENGTHS]
    generate(runner, generations, chunk=16)
    for generation in generations:
        assert generation.output == greedy(made.reference, generation.prompt, MAX_TOKENS)


def test_the_card_and_the_table_say_what_it_is(tmp_path: Path) -> None:
    write_quantized(tmp_path, awq())
    parts = build(tmp_path, dtype="bfloat16", quantization="awq")
    assert parts.card.model_card.quantization == "awq 4-bit, group 32"
    assert "from awq 4-bit, group 32" in parts.summary
    floats = build(tmp_path).runner.model.num_weight_bytes
    if parts.runner.model.num_weight_bytes * 2 == floats:
        pytest.skip("this processor has no kernels for quantised weights")
    projections = 2 * (64 * (64 + 32 + 32 + 64) + 3 * 64 * 96)
    others = 2 * (2 * 300 * 64 + 5 * 64)
    assert parts.runner.model.num_weight_bytes == others + projections // 2 + projections // 32 * 4


@pytest.mark.parametrize("asked", ["gptq", "none", "gguf", "fp8"])
def test_another_quantization_than_asked_for_is_refused(tmp_path: Path, asked: str) -> None:
    write_quantized(tmp_path, awq())
    with pytest.raises(ConfigError, match=rf"--quantization {asked}: .*holds awq 4-bit.*allowed: auto, awq"):
        build(tmp_path, quantization=asked)


def damage_weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    return lambda path: edit_tensors(path, change)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (damage_weights(lambda weights: weights.pop("model.layers.0.mlp.up_proj.qzeros")), "up_proj.qzeros"),
        (lambda path: edit_json(path / "config.json", quantization_config={"quant_method": "hqq"}), "'hqq'"),
        (lambda path: edit_json(path / "config.json", quantization_config=...), "qweight' has no place|is missing"),
    ],
)
def test_a_damaged_checkpoint_ends_the_start_with_a_sentence(
    tmp_path: Path, damage: Callable[[Path], None], named: str
) -> None:
    write_quantized(tmp_path, gptq())
    damage(tmp_path)
    with pytest.raises(ModelLoadError, match=named):
        build(tmp_path)


@pytest.mark.parametrize("kind", FLOAT8)
def test_fp8_checkpoints_are_dequantised_on_a_cpu(tmp_path: Path, kind: str) -> None:
    made = write_float8(tmp_path, kind)
    parts = build(tmp_path)
    assert parts.card.model_card.quantization.startswith("fp8")
    generations = [Generation(prompt=random_prompt(17), max_tokens=MAX_TOKENS)]
    generate(parts.runner, generations)
    assert generations[0].output == greedy(made.reference, random_prompt(17), MAX_TOKENS)

    def bad_scale(weights: dict[str, torch.Tensor]) -> None:
        name = next(name for name in sorted(weights) if "down_proj.weight_scale" in name)
        weights[name] = torch.full((3, 5), 0.1)

    edit_tensors(tmp_path, bad_scale)
    with pytest.raises(ModelLoadError, match=r"down_proj\.weight_scale(_inv)?' has shape \[3, 5\]"):
        build(tmp_path)


def test_two_loads_hold_the_same(tmp_path: Path) -> None:
    """Packing is deterministic: equal products of equal inputs."""
    write_quantized(tmp_path, gptq(act_order=True))
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    digests = {
        hashlib.sha256(build(tmp_path, dtype="bfloat16").runner.model._layers[0].qkv(x).float().numpy()).hexdigest()
        for _ in range(2)
    }
    assert len(digests) == 1


@pytest.mark.parametrize("name", sorted(path.name for path in FIXTURES.iterdir()))
def test_checkpoints_of_the_real_tools_give_the_tokens_of_their_weights(tmp_path: Path, name: str) -> None:
    """Their weights are the tools' own, as ``test_quantized_fixtures.py`` shows."""
    shutil.copytree(FIXTURES / name, tmp_path, dirs_exist_ok=True)
    write_tokenizer(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    del fields["quantization_config"]
    reference = LlamaForCausalLM(LlamaConfig.from_dict(fields)).float().eval()
    weights = {each: checkpoint.read(each).float() for each in checkpoint.names()}
    for module in checkpoint.quantized_modules:
        weight = checkpoint.read_quantized(module, *reference.get_submodule(module).weight.shape, torch.device("cpu"))
        weights[f"{module}.weight"] = dequantize(weight, torch.float32)
    reference.load_state_dict(weights, strict=False)
    generations = [Generation(prompt=random_prompt(length), max_tokens=MAX_TOKENS) for length in LENGTHS]
    generate(build(tmp_path).runner, generations, chunk=16)
    for generation in generations:
        assert generation.output == greedy(reference, generation.prompt, MAX_TOKENS)
