"""Tiny random Llama checkpoints, made by transformers' own classes, and what transformers generates from them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

VOCAB_SIZE = 300
BOS_ID, EOS_ID = 256, 257
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}


@dataclass(frozen=True, slots=True)
class TinyModel:
    """A checkpoint directory and the model it was saved from."""

    path: Path
    reference: LlamaForCausalLM


def make_config(family: str = "Llama", **changes: Any) -> LlamaConfig:
    """Two small layers; every option of the family's config may be changed."""
    options: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 2048,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "tie_word_embeddings": False,
        "initializer_range": 0.3,
        **changes,
    }
    config: LlamaConfig = getattr(transformers, f"{family}Config")(**options)
    return config


def make_model(
    path: Path, *, seed: int = 0, max_shard_size: str = "1GB", family: str = "Llama", **changes: Any
) -> TinyModel:
    """Save a random model with its tokenizer under ``path``; families as transformers names its classes."""
    torch.manual_seed(seed)
    model = getattr(transformers, f"{family}ForCausalLM")(make_config(family, **changes)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.add_(torch.randn_like(parameter) * 0.1)
            elif name.endswith("bias"):
                parameter.copy_(torch.randn_like(parameter) * 0.2)
    model.generation_config = GenerationConfig(
        bos_token_id=BOS_ID, eos_token_id=[EOS_ID], do_sample=True, temperature=0.75
    )
    model.save_pretrained(path, max_shard_size=max_shard_size)
    write_tokenizer(path)
    return TinyModel(path, model)


def write_tokenizer(path: Path) -> None:
    """A byte-level tokenizer: ids 0..255 are bytes, then the special tokens and a few words."""
    (path / "tokenizer.json").write_text(_tokenizer_json(), encoding="utf-8")
    (path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": CHAT_TEMPLATE}),
        encoding="utf-8",
    )


@lru_cache
def _tokenizer_json() -> str:
    texts = sorted(pre_tokenizers.ByteLevel.alphabet())
    texts += ["<s>", "</s>", *(f"<extra_{number}>" for number in range(VOCAB_SIZE - 258))]
    tokenizer = Tokenizer(models.BPE({text: number for number, text in enumerate(texts)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer.to_str()


def greedy(model: LlamaForCausalLM, prompt: Sequence[int], max_tokens: int) -> list[int]:
    """What transformers generates, going on after end-of-sequence ids."""
    config = GenerationConfig(max_new_tokens=max_tokens, do_sample=False, pad_token_id=0, eos_token_id=-1)
    with torch.inference_mode():
        ids = torch.tensor([list(prompt)])
        output = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    return output[0, len(prompt) :].tolist()


def random_prompt(length: int, seed: int = 0) -> list[int]:
    """Ids of bytes."""
    generator = torch.Generator().manual_seed(seed * 1000 + length)
    return torch.randint(0, 256, (length,), generator=generator).tolist()
