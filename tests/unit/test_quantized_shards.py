"""The ranks' parts of every quantised form, put together, are the whole weight, bit for bit."""

import threading
from pathlib import Path

import pytest
import torch
from pagewire_kernels import load_kernels
from pagewire_kernels.reference import dequantize
from support.float8_files import FLOAT8, write_float8
from support.quantized_files import PROJECTIONS, Scheme, awq, compressed, gptq, write_quantized
from support.thread_ranks import ThreadGroup
from support.tiny_gguf import write_gguf
from support.tiny_models import make_config
from transformers import LlamaForCausalLM

from gpu_worker.models.llama import LlamaModel
from gpu_worker.weights.checkpoint import Checkpoint
from gpu_worker.weights.open import open_checkpoint

CPU = torch.device("cpu")
NUM_RANKS = 2


def check_parts(checkpoint: Checkpoint, by_inputs: tuple[str, ...] = ("o_proj", "down_proj")) -> None:
    """Of every quantised module; those in ``by_inputs`` are divided along their inputs, others along their outputs."""
    parts: dict[str, list[torch.Tensor]] = {}
    wholes: dict[str, torch.Tensor] = {}
    axes: dict[str, int] = {}
    for rank in range(NUM_RANKS):
        group = ThreadGroup(rank, [torch.empty(0)] * NUM_RANKS, threading.Barrier(NUM_RANKS))
        model = LlamaModel(
            checkpoint.config,
            load_kernels("reference"),
            max_model_len=64,
            dtype=torch.float32,
            device=CPU,
            quantized=checkpoint.quantized_modules,
            group=group,
        )
        for linear in model.quantized_linears:
            for projection in linear.projections:
                name = projection.name
                whole = checkpoint.read_quantized(name, projection.outputs.whole, linear.inputs.whole, CPU)
                part = linear.part_of(projection, whole)
                assert part.codes.is_contiguous()
                assert part.codes.numel() * NUM_RANKS == whole.codes.numel()
                wholes[name] = dequantize(whole, torch.float32)
                parts.setdefault(name, []).append(dequantize(part, torch.float32))
                axes[name] = 0 if linear.takes_all_inputs else 1
    assert set(wholes) == set(checkpoint.quantized_modules)
    for name, whole in wholes.items():
        assert torch.equal(torch.cat(parts[name], dim=axes[name]), whole), name
        assert axes[name] == int(name.endswith(by_inputs)), name


def with_head(name: str) -> bool:
    return name == "lm_head" or name.rpartition(".")[2] in PROJECTIONS


SCHEMES: dict[str, Scheme] = {
    "awq": awq(),
    "awq-one-group": awq(group_size=-1),
    **{f"gptq-{bits}-bit": gptq(bits=bits) for bits in (2, 3, 4, 8)},
    "gptq-symmetric-wrong-version": gptq(sym=True, fields={"checkpoint_format": "gptq_v2"}),
    "gptq-one-group": gptq(group_size=-1),
    "gptq-with-head": gptq(modules=with_head),
    "compressed": compressed(),
    "compressed-8-bit-asymmetric": compressed(bits=8, sym=False),
    "compressed-channel": compressed(group_size=-1),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_integers(tmp_path: Path, name: str) -> None:
    sizes = {"intermediate_size": 128, "num_key_value_heads": 2, "vocab_size": 304}
    check_parts(open_checkpoint(write_quantized(tmp_path, SCHEMES[name], **sizes).path))


@pytest.mark.parametrize("scheme", [gptq(group_size=64), awq(), compressed()], ids=["ragged", "awq", "compressed"])
def test_groups_across_the_border(tmp_path: Path, scheme: Scheme) -> None:
    """Of 96 inputs each rank would have 48."""
    checkpoint = open_checkpoint(write_quantized(tmp_path, scheme, head_dim=32).path)
    check_parts(checkpoint, ("o_proj",))


def test_columns_ordered_by_activation(tmp_path: Path) -> None:
    check_parts(open_checkpoint(write_quantized(tmp_path, gptq(act_order=True)).path), ())


@pytest.mark.parametrize("kind", FLOAT8)
def test_float8(tmp_path: Path, kind: str) -> None:
    """Blocks of 32 inputs cross the border of 48."""
    check_parts(
        open_checkpoint(write_float8(tmp_path, kind).path), ("o_proj",) if kind == "block" else ("o_proj", "down_proj")
    )


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_gguf(tmp_path: Path, kind: str) -> None:
    shapes = {"hidden_size": 256, "intermediate_size": 512, "num_key_value_heads": 2, "tie_word_embeddings": True}
    write_gguf(tmp_path / "x.gguf", LlamaForCausalLM(make_config(**shapes)), kind)
    checkpoint = open_checkpoint(tmp_path / "x.gguf")
    checkpoint.keep_quantized(lambda bits, group_size, has_offsets: True)
    check_parts(checkpoint)
