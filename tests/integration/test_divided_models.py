"""A model divided over ranks gives what transformers and one rank give: in float32 the same tokens."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.plan_driver import Generation, generate
from support.quantized_files import PROJECTIONS, Scheme, awq, compressed, gptq, write_quantized
from support.thread_ranks import ThreadRanks
from support.tiny_models import greedy, make_model, random_prompt

from gpu_worker.batch_plan import RowOptions
from gpu_worker.errors import ConfigError
from scheduler_svc.front.grammar_process import MAKERS

LENGTHS = (1, 17, 40)
MAX_TOKENS = 10
SAMPLED: dict[str, Any] = {"max_tokens": MAX_TOKENS, "temperature": 1.0, "top_k": 50, "seed": 5}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"family": "Llama", "attention_bias": True, "mlp_bias": True},
    "llama-tied-uneven-vocabulary": {"family": "Llama", "tie_word_embeddings": True, "vocab_size": 301},
    "llama-one-kv-head": {"family": "Llama", "num_key_value_heads": 1},
    "mistral": {"family": "Mistral", "num_key_value_heads": 2, "sliding_window": None},
    "qwen2": {"family": "Qwen2", "num_key_value_heads": 2},
    "qwen3": {"family": "Qwen3", "num_key_value_heads": 2, "head_dim": 16},
}


def with_head(name: str) -> bool:
    return name == "lm_head" or name.rpartition(".")[2] in PROJECTIONS


SCHEMES: dict[str, tuple[Scheme, dict[str, Any]]] = {
    "awq": (awq(), {}),
    "gptq-4-act-order": (gptq(act_order=True), {"attention_bias": True, "mlp_bias": True}),
    "gptq-8-with-head": (replace(gptq(bits=8), modules=with_head), {"vocab_size": 304}),
    "compressed-channel": (compressed(group_size=-1), {"family": "Qwen3", "head_dim": 16}),
}


def check_tokens(path: Path, reference: Any, num_ranks: int) -> None:
    with ThreadRanks(num_ranks, path) as ranks:
        generations = [Generation(prompt=random_prompt(length), max_tokens=MAX_TOKENS) for length in LENGTHS]
        generate(ranks, generations, chunk=16)
        for generation in generations:
            assert generation.output == greedy(reference, generation.prompt, MAX_TOKENS)


@pytest.mark.parametrize("name", FAMILIES)
def test_two_ranks_give_the_tokens_of_transformers(tmp_path: Path, name: str) -> None:
    tiny = make_model(tmp_path, **FAMILIES[name])
    check_tokens(tmp_path, tiny.reference, 2)


def test_mod_08_more_ranks_than_key_value_heads(tmp_path: Path) -> None:
    tiny = make_model(tmp_path, num_key_value_heads=2)
    check_tokens(tmp_path, tiny.reference, 4)


@pytest.mark.parametrize("name", SCHEMES)
def test_quantised_models_too(tmp_path: Path, name: str) -> None:
    scheme, shape = SCHEMES[name]
    made = write_quantized(tmp_path, scheme, **shape)
    check_tokens(tmp_path, made.reference, 2)


def test_sampling_on_two_ranks_is_that_of_one(tmp_path: Path) -> None:
    """Every rank counts tokens, follows grammars and tells log probabilities for itself."""
    make_model(tmp_path, num_key_value_heads=2)
    options = (
        None,
        RowOptions(repetition_penalty=1.3, frequency_penalty=0.5, logprobs=3, prompt_logprobs=2),
        RowOptions(grammar=MAKERS["regex"]("[a-p]+")),
    )
    outputs = []
    for num_ranks in (1, 2):
        with ThreadRanks(num_ranks, tmp_path) as ranks:
            rows = [Generation(prompt=random_prompt(20), options=each, **SAMPLED) for each in options]
            outputs.append(generate(ranks, rows))
    assert outputs[0] == outputs[1]


def test_each_rank_holds_its_part(tmp_path: Path) -> None:
    """Matrices but the embedding are halved, and so are pages: the same bytes hold twice as many."""
    make_model(tmp_path)
    sizes = []
    for num_ranks in (1, 2):
        with ThreadRanks(num_ranks, tmp_path, max_num_seqs=64, kv_cache_memory_bytes=1 << 19) as ranks:
            sizes.append((ranks.runners[0].model.num_weight_bytes, ranks.limits.num_pages))
            assert ranks.built[0].card.num_ranks == num_ranks
    (whole_bytes, whole_pages), (half_bytes, half_pages) = sizes
    replicated = 4 * (300 * 48 + 5 * 48)
    assert (half_bytes - replicated) * 2 == whole_bytes - replicated
    assert half_pages // 2 == whole_pages


@pytest.mark.parametrize(
    ("num_ranks", "changes", "field"),
    [
        (3, {}, "num_attention_heads 4"),
        (2, {"num_attention_heads": 6, "num_key_value_heads": 3}, "num_key_value_heads 3"),
        (2, {"intermediate_size": 81}, "intermediate_size 81"),
    ],
)
def test_mod_08_what_does_not_divide_is_named(
    tmp_path: Path, num_ranks: int, changes: dict[str, int], field: str
) -> None:
    make_model(tmp_path, **changes)
    with pytest.raises(ConfigError, match=rf"--tensor-parallel-size {num_ranks}: not allowed: .*{field}; allowed"):
        ThreadRanks(num_ranks, tmp_path)
