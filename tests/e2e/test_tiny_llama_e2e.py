"""A random Llama from safetensors equals transformers through the whole stack, with a scaled rotary embedding."""

from pathlib import Path

import pytest
from support.greedy import run_many
from support.stack import ONE_THREAD, Stack
from support.tiny_models import LLAMA3_ROPE, greedy, make_model, random_prompt

LENGTHS = (1, 15, 16, 17, 33, 64, 100, 200)
MAX_TOKENS = 12


@pytest.mark.parametrize("kv_heads", [1, 4])
def test_a_random_llama_equals_transformers(tmp_path: Path, kv_heads: int) -> None:
    tiny = make_model(tmp_path, num_key_value_heads=kv_heads, head_dim=64, rope_parameters=LLAMA3_ROPE)
    prompts = [random_prompt(length, seed=kv_heads) for length in LENGTHS]
    expected = [tuple(greedy(tiny.reference, prompt, MAX_TOKENS)) for prompt in prompts]
    worker = (*ONE_THREAD, "--page-size", "16", "--max-num-batched-tokens", "40", "--kv-cache-memory-bytes", "20000000")
    with Stack(tiny.path, scheduler=("--max-num-batched-tokens", "40"), worker=worker) as stack:
        for _ in ("cold", "cached"):
            assert run_many(stack.target, prompts, max_tokens=MAX_TOKENS) == expected
            stack.await_idle()
