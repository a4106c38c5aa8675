"""A worker of two ranks on two GPUs, through the whole stack: sums by NCCL, in graphs and without."""

from pathlib import Path

import pytest
import torch
from support.greedy import run_many
from support.quantized_files import Scheme, awq, gptq, write_quantized
from support.stack import Stack
from support.tiny_models import greedy, make_model, random_prompt

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]
MAX_TOKENS = 24
LENGTHS = (1, 17, 60, 130, 300)
WORKER = (
    *("--tensor-parallel-size", "2", "--device", "cuda", "--dtype", "float32"),
    *("--max-model-len", "512", "--kv-cache-memory-bytes", "40000000"),
)


def outputs(path: Path, *options: str) -> list[tuple[int, ...]]:
    with Stack(path, worker=(*WORKER, *options)) as stack:
        return run_many(stack.target, [random_prompt(length) for length in LENGTHS], max_tokens=MAX_TOKENS)


@pytest.mark.parametrize("options", [(), ("--enforce-eager",)], ids=["graphs", "eager"])
def test_two_ranks_equal_transformers(tmp_path: Path, options: tuple[str, ...]) -> None:
    tiny = make_model(tmp_path, num_attention_heads=8, num_key_value_heads=2, head_dim=16)
    expected = [tuple(greedy(tiny.reference, random_prompt(length), MAX_TOKENS)) for length in LENGTHS]
    assert outputs(tiny.path, *options) == expected


@pytest.mark.parametrize("scheme", [awq(), gptq(act_order=True)], ids=["awq", "gptq-act-order"])
def test_quantised_weights_on_two_ranks(tmp_path: Path, scheme: Scheme) -> None:
    made = write_quantized(tmp_path, scheme)
    expected = [tuple(greedy(made.reference, random_prompt(length), MAX_TOKENS)) for length in LENGTHS]
    assert outputs(tmp_path) == expected
