"""Models by shape alone, for speed on a GPU: a config, a tokenizer and dummy weights; and what bounds their speed.

The shape ``tiny`` is there to try the harness.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.gpu_workloads import SERVED_VOCABULARY
from benchmarks.workloads import Request, Workload

CONFIGS: dict[str, dict[str, Any]] = {
    "tiny": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128, "intermediate_size": 256,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "vocab_size": 16384, "tie_word_embeddings": True, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "max_position_embeddings": 16384, "hidden_act": "silu", "attention_bias": False, "torch_dtype": "bfloat16",
        "bos_token_id": 1, "eos_token_id": 2,
    },
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
    "llama-2-13b": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 5120, "intermediate_size": 13824,
        "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 40, "head_dim": 128,
        "vocab_size": 32000, "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "max_position_embeddings": 16384, "hidden_act": "silu", "attention_bias": False, "torch_dtype": "float16",
        "bos_token_id": 1, "eos_token_id": 2,
    },
}  # fmt: skip
BYTES_PER_S = 4.3e12
FLOPS_PER_S = 7.9e14
"""Of an H200, measured: a device-to-device copy, and one large bfloat16 product."""


QUANTIZATIONS: dict[str, dict[str, Any]] = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True},
}


def write_model(shape: str, directory: Path, quantization: str | None = None, tokenizer: Path | None = None) -> Path:
    """A directory that ``--load-format dummy`` serves.

    With ``tokenizer``, a folder, the model has that one's vocabulary, else its shape's own with letters alone.
    """
    path = directory / shape
    path.mkdir(parents=True, exist_ok=True)
    config = dict(CONFIGS[shape])
    if quantization is not None:
        config |= {"quantization_config": QUANTIZATIONS[quantization], "torch_dtype": "float16"}
    if tokenizer is None:
        (path / "tokenizer.json").write_text(_letters(config["vocab_size"]))
    else:
        config |= {"vocab_size": SERVED_VOCABULARY, "bos_token_id": 1, "eos_token_id": 2}
        for file in tokenizer.glob("*token*"):
            shutil.copy(file, path)
    (path / "config.json").write_text(json.dumps(config))
    return path


def _letters(vocab_size: int) -> str:
    """A tokenizer of single bytes."""
    texts = sorted(pre_tokenizers.ByteLevel.alphabet())
    texts += [f"<extra_{number}>" for number in range(vocab_size - len(texts))]
    tokenizer = Tokenizer(models.BPE({text: number for number, text in enumerate(texts)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return str(tokenizer.to_str())


@dataclass(frozen=True, slots=True)
class Floor:
    """What a model needs at least: bytes at BYTES_PER_S, operations at FLOPS_PER_S."""

    layer_parameters: int
    head_parameters: int
    kv_bytes: int
    """Of one token."""
    layer_bits: float = 16
    """Of a parameter of the layers; those of the head have 16."""

    @classmethod
    def of(cls, shape: str, quantization: str | None = None, *, served: bool = False) -> "Floor":
        config = CONFIGS[shape]
        hidden, head_dim = config["hidden_size"], config["head_dim"]
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
        layers = config["num_hidden_layers"]
        return cls(
            layers * (attention + 3 * hidden * config["intermediate_size"]),
            hidden * (SERVED_VOCABULARY if served else config["vocab_size"]),
            layers * 2 * kv_heads * head_dim * 2,
            16 if quantization is None else 4 + (16 + 4) / QUANTIZATIONS[quantization]["group_size"],
        )

    def step_seconds(self, num_rows: int, kv_tokens: int) -> float:
        """One decode step: weights and keys and values once, or the products if they take longer."""
        weights = self.layer_parameters * self.layer_bits / 8 + 2 * self.head_parameters
        products = 2 * (self.layer_parameters + self.head_parameters) * num_rows
        return kv_tokens * self.kv_bytes / BYTES_PER_S + max(weights / BYTES_PER_S, products / FLOPS_PER_S)

    def prefill_seconds(self, num_tokens: int) -> float:
        return 2 * self.layer_parameters * num_tokens / FLOPS_PER_S

    def run_seconds(self, requests: Sequence[Request], num_shared: int = 0) -> float:
        """All requests at once, each position's step with every request still running; shared tokens count once."""
        computed = sum(len(prompt) for prompt, _ in requests) - num_shared * (len(requests) - 1)
        total = self.prefill_seconds(computed)
        for step in range(1, max(count for _, count in requests)):
            running = [len(prompt) + step for prompt, count in requests if count > step]
            total += self.step_seconds(len(running), sum(running) - num_shared * (len(running) - 1))
        return total

    def share(self, work: Workload, metric: str, value: float) -> float | None:
        """Of the floor that a figure of an offline workload, or of closed-loop streams of one shape, reaches."""
        prompt, count = work.requests[0]
        if metric == "ttft":
            return self.prefill_seconds(len(prompt)) / (value / 1e3)
        if metric == "tpot":
            return self.step_seconds(1, len(prompt) + count // 2) / (value / 1e3)
        if metric not in ("time", "output_tokens_per_s") or work.arrivals or work.first_token_requests:
            return None
        seconds = value if metric == "time" else work.num_output_tokens / value
        if not work.num_clients:
            return self.run_seconds(work.requests, work.num_shared) / seconds
        step = self.step_seconds(work.num_clients, work.num_clients * (len(prompt) + count // 2))
        least = self.prefill_seconds(work.num_prompt_tokens) + work.num_output_tokens / work.num_clients * step
        return least / seconds
