"""Models by shape alone, for speed on a GPU: a config, a tokenizer and dummy weights; and what bounds their speed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 151936, "tie_word_embeddings": True, "rms_norm_eps": 1e-6, "rope_theta": 1000000,
        "max_position_embeddings": 40960, "hidden_act": "silu", "attention_bias": False, "torch_dtype": "bfloat16",
        "bos_token_id": 151643, "eos_token_id": 151645,
    },
    "llama-8b": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 128256, "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "max_position_embeddings": 131072, "hidden_act": "silu", "attention_bias": False, "torch_dtype": "bfloat16",
        "bos_token_id": 128000, "eos_token_id": 128001,
    },
}  # fmt: skip
BYTES_PER_S = 4.3e12
FLOPS_PER_S = 7.9e14
"""Of an H200, measured: a device-to-device copy, and one large bfloat16 product."""


def write_model(shape: str, directory: Path) -> Path:
    """A directory that ``--load-format dummy`` serves."""
    path = directory / shape
    path.mkdir(parents=True, exist_ok=True)
    config = CONFIGS[shape]
    (path / "config.json").write_text(json.dumps(config))
    texts = sorted(pre_tokenizers.ByteLevel.alphabet())
    texts += [f"<extra_{number}>" for number in range(config["vocab_size"] - len(texts))]
    tokenizer = Tokenizer(models.BPE({text: number for number, text in enumerate(texts)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    (path / "tokenizer.json").write_text(tokenizer.to_str())
    return path


@dataclass(frozen=True, slots=True)
class Floor:
    """What a model needs at least, in bfloat16: bytes at BYTES_PER_S, operations at FLOPS_PER_S."""

    layer_parameters: int
    head_parameters: int
    kv_bytes: int
    """Of one token."""

    @classmethod
    def of(cls, shape: str) -> "Floor":
        config = CONFIGS[shape]
        hidden, head_dim = config["hidden_size"], config["head_dim"]
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
        layers = config["num_hidden_layers"]
        return cls(
            layers * (attention + 3 * hidden * config["intermediate_size"]),
            hidden * config["vocab_size"],
            layers * 2 * kv_heads * head_dim * 2,
        )

    def step_seconds(self, num_rows: int, kv_tokens: int) -> float:
        """One decode step: weights and keys and values once, or the products if they take longer."""
        parameters = self.layer_parameters + self.head_parameters
        kv = kv_tokens * self.kv_bytes / BYTES_PER_S
        return kv + max(2 * parameters / BYTES_PER_S, 2 * parameters * num_rows / FLOPS_PER_S)

    def prefill_seconds(self, num_tokens: int) -> float:
        return 2 * self.layer_parameters * num_tokens / FLOPS_PER_S

    def run_seconds(self, requests: Sequence[tuple[Sequence[int], int]], num_shared: int = 0) -> float:
        """All requests at once, each position's step with every request still running; shared tokens count once."""
        computed = sum(len(prompt) for prompt, _ in requests) - num_shared * (len(requests) - 1)
        total = self.prefill_seconds(computed)
        for step in range(1, max(count for _, count in requests)):
            running = [len(prompt) + step for prompt, count in requests if count > step]
            total += self.step_seconds(len(running), sum(running) - num_shared * (len(running) - 1))
        return total
