"""Writes a tiny Llama as a GGUF file, the way converters for llama.cpp do."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import LlamaForCausalLM

_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOKENS = [*(f"t{number}" for number in range(290)), "Ġ", "h", "i", "hi", "Ġhi", "1", "2", "12", "<s>", "</s>"]
MERGES = ["h i", "Ġ hi", "1 2"]


def write_gguf(path: Path, model: LlamaForCausalLM, kind: str = "F32", **metadata: Any) -> None:
    """Matrices as ``kind``, vectors as F32. ``metadata`` replaces values; None leaves one out."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    values: dict[str, Any] = {
        "llama.block_count": config.num_hidden_layers,
        "llama.context_length": config.max_position_embeddings,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.token_type": [1] * 298 + [3, 3],
        "tokenizer.ggml.bos_token_id": 298,
        "tokenizer.ggml.eos_token_id": 299,
        "tokenizer.chat_template": "{{ messages }}",
        **metadata,
    }
    for key, value in values.items():
        _add(writer, key, value)
    for name, tensor in model.state_dict().items():
        if name != "lm_head.weight" or not config.tie_word_embeddings:
            _add_tensor(writer, name, tensor, kind, config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _add_tensor(writer: gguf.GGUFWriter, name: str, tensor: torch.Tensor, kind: str, config: Any) -> None:
    if ".q_proj." in name:
        tensor = _interleave(tensor, config.num_attention_heads)
    elif ".k_proj." in name:
        tensor = _interleave(tensor, config.num_key_value_heads)
    array = np.ascontiguousarray(tensor.float().numpy())
    if array.ndim < 2 or kind == "F32":
        writer.add_tensor(translate(name), array)
        return
    quant = gguf.GGMLQuantizationType[kind]
    writer.add_tensor(translate(name), gguf.quants.quantize(array, quant), raw_dtype=quant)


def _interleave(tensor: torch.Tensor, num_heads: int) -> torch.Tensor:
    halves = tensor.reshape(num_heads, 2, tensor.shape[0] // num_heads // 2, *tensor.shape[1:])
    return halves.transpose(1, 2).reshape(tensor.shape)


def translate(name: str) -> str:
    """The GGUF name of a Hugging Face tensor."""
    if name.startswith("model.layers."):
        _, _, number, rest = name.split(".", 3)
        stem, _, ending = rest.rpartition(".")
        return f"blk.{number}.{_NAMES[stem]}.{ending}"
    return {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }[name]
