"""Model configurations: what is understood equals transformers, and everything else is refused by name."""

from typing import Any

import pytest
import torch
from support.tiny_models import LINEAR_ROPE, LLAMA3_ROPE, make_config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from gpu_worker.errors import ModelLoadError
from gpu_worker.layers.rotary import make_cos_sin
from gpu_worker.model_config import RopeConfig, from_hf_config

CPU = torch.device("cpu")
MISTRAL = {"architectures": ["MistralForCausalLM"]}


def config(**changes: Any) -> dict[str, Any]:
    base = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 300,
        "max_position_embeddings": 128,
    }
    return {name: value for name, value in {**base, **changes}.items() if value is not ...}


def test_what_a_config_leaves_out_is_as_in_the_reference_class() -> None:
    read = from_hf_config(config(head_dim=None))
    assert (read.num_kv_heads, read.head_dim, read.rms_norm_eps) == (4, 12, 1e-6)
    assert (read.tie_word_embeddings, read.attention_bias, read.mlp_bias) == (False, False, False)
    assert read.rope == RopeConfig(original_max_positions=128)


def test_mod_01_head_dim_is_the_configs_not_derived() -> None:
    assert from_hf_config(config(head_dim=64)).head_dim == 64
    assert from_hf_config(config(hidden_size=50, head_dim=32)).head_dim == 32


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
        {"rope_theta": 500000.0},
        {"rope_theta": 500000.0, "rope_scaling": None},
        {"rope_parameters": LLAMA3_ROPE},
        {"rope_theta": 10000.0, "rope_scaling": {**LLAMA3_ROPE, "type": "llama3"}},
        {"rope_theta": 30000.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rope_parameters": LINEAR_ROPE},
    ],
)
def test_mod_02_cosines_equal_transformers(rope: dict[str, Any]) -> None:
    ours = make_cos_sin(from_hf_config(config(**rope)).rope, 12, 2000, CPU)
    theirs = LlamaRotaryEmbedding(make_config(**rope))
    cos, sin = theirs(torch.zeros(1), torch.arange(2000)[None])
    assert torch.equal(ours[:, :6], cos[0, :, :6])
    assert torch.equal(ours[:, 6:], sin[0, :, 6:])


def test_divisors_of_a_gguf_file_divide_the_frequencies() -> None:
    plain = make_cos_sin(RopeConfig(), 4, 10, CPU)
    divided = make_cos_sin(RopeConfig(freq_divisors=(1.0, 2.0)), 4, 10, CPU)
    assert torch.equal(plain[:, 0], divided[:, 0])
    assert not torch.equal(plain[:, 1], divided[:, 1])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel.*supported: LlamaForCausalLM, Mistral"),
        ({"architectures": ...}, "architectures"),
        ({"auto_map": {"AutoModel": "modeling.Evil"}}, "auto_map.*never run"),
        ({"sliding_window": 32}, "sliding_window 32"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"hidden_size": ...}, "hidden_size is None"),
        ({"num_hidden_layers": 0}, "num_layers is 0"),
        ({"hidden_size": 50}, "hidden_size 50 is not divisible by 4 heads"),
        ({"num_key_value_heads": 3}, "4 attention heads do not divide over 3"),
        ({"head_dim": 33}, "head_dim 33"),
        ({"head_dim": 512}, "head_dim 512"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic' is not supported"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "'yarn' is not supported"),
        ({"rope_scaling": {"rope_type": "foo"}}, "'foo' is not supported"),
        ({"rope_scaling": {"rope_type": "linear"}}, "'linear' needs the field 'factor'"),
        ({"rope_scaling": {**LLAMA3_ROPE, "low_freq_factor": ...}}, "needs the field .low_freq_factor."),
        ({"rope_scaling": {"rope_type": "linear", "type": "llama3", "factor": 2.0}}, "differ"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "mscale": 1.0}}, "'mscale' is not known"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"rope_scaling": "linear"}, "an object is needed"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "2"}}, "factor is '2'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": float("nan")}}, "factor is nan"),
        ({"num_hidden_layers": 2**31}, "num_layers is 2147483648; at most 1024"),
        ({"hidden_size": 2**63, "head_dim": 12}, "hidden_size is 9223372036854775808; at most"),
        ({"max_position_embeddings": 10**12}, "max_positions is 1000000000000; at most"),
        ({"num_attention_heads": 0}, "not divisible by 0 heads"),
        ({"head_dim": float("nan")}, "head_dim is nan; an integer is needed"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small'"),
        ({"partial_rotary_factor": []}, "partial_rotary_factor is"),
        ({"dtype": "complex64"}, "dtype 'complex64' is not supported; supported: float32, float16, bfloat16"),
        ({"torch_dtype": 16}, "torch_dtype 16 is not supported"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings is 'false'; true or false is needed"),
        ({"attention_bias": 1}, "attention_bias is 1"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types other than"),
        ({"layer_types": 5}, "layer_types other than"),
        (
            {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "max_position_embeddings": 4097},
            "sliding_window 4096 is not supported",
        ),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps is -1e-05"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps is 1000"),
        ({"rope_theta": 0}, "rope theta is 0.0; a positive number is needed"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "rope factor is 0.0"),
        ({"rope_scaling": {"rope_type": "linear", "factor": None}}, "'linear' needs the field 'factor'"),
        ({"rope_scaling": {**LLAMA3_ROPE, "low_freq_factor": 4.0}}, "low_freq_factor is 4.0; less than high_freq"),
        ({**MISTRAL, "use_sliding_window": False, "sliding_window": 127}, "sliding_window 127 is not supported"),
        ({**MISTRAL, "max_position_embeddings": 4097}, "sliding_window 4096 is not supported"),
        ({"attention_chunk_size": 16}, "attention_chunk_size 16 is not supported"),
        ({"is_causal": False}, "is_causal False is not supported"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0 is not supported"),
        ({"logits_scaling": 8}, "logits_scaling 8 is not supported"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": LLAMA3_ROPE},
            "of the rotary embedding, (rope_type is both 'linear' and 'llama3'|factor is both 2.0 and 4.0)",
        ),
        (
            {"rope_scaling": {"rope_type": "default"}, "rope_parameters": LINEAR_ROPE},
            "rope_type is both 'default' and 'linear'",
        ),
        (
            {"rope_scaling": LLAMA3_ROPE, "original_max_position_embeddings": 16},
            "original_max_position_embeddings is both 64 and 16",
        ),
        (
            {"rope_scaling": {**LLAMA3_ROPE, "original_max_position_embeddings": 0}},
            "max_position_embeddings is 0; 1 to",
        ),
    ],
)
def test_mod_01_02_06_what_is_not_supported_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    if isinstance(changes.get("rope_scaling"), dict):
        rope = {name: value for name, value in changes["rope_scaling"].items() if value is not ...}
        changes = {**changes, "rope_scaling": rope}
    with pytest.raises(ModelLoadError, match=named):
        from_hf_config(config(**changes))


def test_mod_06_a_window_that_is_switched_off_is_none() -> None:
    for family in ("Llama", "Qwen2", "Qwen3"):
        switched_off = config(architectures=[f"{family}ForCausalLM"], sliding_window=32, use_sliding_window=False)
        assert from_hf_config(switched_off).num_layers == 2


def test_mod_06_a_window_that_no_position_lies_outside_of_is_none() -> None:
    assert from_hf_config(config(**MISTRAL, sliding_window=128)).max_positions == 128


def test_fields_of_other_models_may_say_that_nothing_is_done() -> None:
    from_hf_config(config(logits_scaling=1.0, is_causal=True, attn_logit_softcapping=None, clip_qkv=0))


def test_mod_02_two_rope_blocks_that_agree_are_one() -> None:
    both = config(rope_scaling={"type": "linear", "factor": 2.0}, rope_parameters=LINEAR_ROPE)
    assert from_hf_config(both).rope == from_hf_config(config(rope_parameters=LINEAR_ROPE)).rope
