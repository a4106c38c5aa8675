"""Reads a GGUF file of the llama architecture.

Weights are dequantised tensor by tensor. The writer of GGUF files stores the rows of the query and key projections with
each head's rotary pairs interleaved; they are put back into half-split order here. The tokenizer and the
configuration come from the file's metadata.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from gpu_worker.errors import ModelLoadError
from gpu_worker.model_config import ModelConfig, RopeConfig
from gpu_worker.weights.checkpoint import ByteRange, TextAssets, digest_content
from gpu_worker.weights.gguf_tokenizer import read_text_assets

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_MODEL_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ROPE_DIVISORS = "rope_freqs.weight"
_FLOATS = {"F32": torch.float32, "F16": torch.float16}
SUPPORTED = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")


class GgufCheckpoint:
    """A GGUF file opened for reading."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = _open(path)
        self._tensors = {
            _translate(path, tensor.name): tensor for tensor in self._reader.tensors if tensor.name != _ROPE_DIVISORS
        }
        for tensor in self._reader.tensors:
            if tensor.tensor_type.name not in SUPPORTED:
                raise ModelLoadError(
                    f"{path}: tensor {tensor.name!r} is stored as {tensor.tensor_type.name}; "
                    f"supported: {', '.join(SUPPORTED)}"
                )
        self.config = self._read_config()
        quantized = {tensor.tensor_type.name for tensor in self._reader.tensors} - {"F32", "F16", "BF16"}
        self.quantization = f"gguf {'+'.join(sorted(quantized))}" if quantized else ""

    def names(self) -> Sequence[str]:
        return sorted(self._tensors)

    def read(self, name: str) -> torch.Tensor:
        tensor = self._tensors[name]
        kind = tensor.tensor_type.name
        try:
            if kind in _FLOATS:
                values = torch.from_numpy(np.array(tensor.data))
            else:
                values = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
        except (ValueError, IndexError) as error:
            raise ModelLoadError(f"{self.path}: tensor {tensor.name!r} cannot be read ({error})") from None
        if ".q_proj." in name:
            return _split_halves(values, self.config.num_heads)
        if ".k_proj." in name:
            return _split_halves(values, self.config.num_kv_heads)
        return values

    def text_assets(self) -> TextAssets:
        return read_text_assets(self.path, self.metadata)

    def digest(self) -> str:
        with self.path.open("rb") as file:
            header = file.read(int(self._reader.data_offset))
        ranges = [ByteRange(self.path, name, int(t.data_offset), int(t.n_bytes)) for name, t in self._tensors.items()]
        return digest_content(header, ranges)

    def metadata(self, key: str, default: Any = None) -> Any:
        """A metadata value, or the default if the file does not have it."""
        field = self._reader.fields.get(key)
        if field is None:
            return default
        try:
            return field.contents()
        except (ValueError, IndexError, TypeError) as error:
            raise ModelLoadError(f"{self.path}: metadata {key!r} is not readable ({error})") from None

    def _required(self, key: str) -> Any:
        value = self.metadata(key)
        if value is None:
            raise ModelLoadError(f"{self.path}: metadata {key!r} is missing")
        return value

    def _read_config(self) -> ModelConfig:
        architecture = self._required("general.architecture")
        if architecture != "llama":
            raise ModelLoadError(f"{self.path}: architecture {architecture!r} is not supported; supported: llama")
        if self.metadata("llama.expert_count", 0):
            raise ModelLoadError(f"{self.path}: metadata llama.expert_count: mixtures of experts are not supported")
        hidden = int(self._required("llama.embedding_length"))
        heads = int(self._required("llama.attention.head_count"))
        head_dim = int(self.metadata("llama.attention.key_length", hidden // max(heads, 1)))
        embedding = self._tensors.get("model.embed_tokens.weight")
        if embedding is None:
            raise ModelLoadError(f"{self.path}: tensor 'token_embd.weight' is missing")
        return ModelConfig(
            architecture="LlamaForCausalLM",
            hidden_size=hidden,
            intermediate_size=int(self._required("llama.feed_forward_length")),
            num_layers=int(self._required("llama.block_count")),
            num_heads=heads,
            num_kv_heads=int(self.metadata("llama.attention.head_count_kv", heads)),
            head_dim=head_dim,
            vocab_size=int(embedding.shape[1]),
            max_positions=int(self._required("llama.context_length")),
            rms_norm_eps=float(self._required("llama.attention.layer_norm_rms_epsilon")),
            rope=self._rope(head_dim),
            attention_bias="model.layers.0.self_attn.q_proj.bias" in self._tensors,
            mlp_bias="model.layers.0.mlp.gate_proj.bias" in self._tensors,
            tie_word_embeddings="lm_head.weight" not in self._tensors,
        )

    def _rope(self, head_dim: int) -> RopeConfig:
        rotated = int(self.metadata("llama.rope.dimension_count", head_dim))
        if rotated != head_dim:
            raise ModelLoadError(f"{self.path}: metadata llama.rope.dimension_count is {rotated}; {head_dim} is needed")
        kind = self.metadata("llama.rope.scaling.type", "none")
        if kind not in ("none", "linear"):
            raise ModelLoadError(
                f"{self.path}: metadata llama.rope.scaling.type {kind!r} is not supported; supported: none, linear"
            )
        divisors: tuple[float, ...] = ()
        for tensor in self._reader.tensors:
            if tensor.name == _ROPE_DIVISORS:
                divisors = tuple(float(value) for value in tensor.data)
        if divisors and len(divisors) != head_dim // 2:
            raise ModelLoadError(
                f"{self.path}: tensor {_ROPE_DIVISORS!r} has {len(divisors)} values; {head_dim // 2} are needed"
            )
        return RopeConfig(
            theta=float(self.metadata("llama.rope.freq_base", 10000.0)),
            kind="linear" if kind == "linear" else "default",
            factor=float(self.metadata("llama.rope.scaling.factor", 1.0)),
            freq_divisors=divisors,
        )


def _open(path: Path) -> Any:
    try:
        return gguf.GGUFReader(path)
    except FileNotFoundError:
        raise ModelLoadError(f"{path}: no such file") from None
    except (ValueError, IndexError, KeyError, OverflowError, TypeError, MemoryError, OSError) as error:
        raise ModelLoadError(f"{path}: truncated, corrupt or not a GGUF file ({error})") from None


def _translate(path: Path, name: str) -> str:
    """The Hugging Face name of a GGUF tensor."""
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[1].isdecimal() and parts[2] in _LAYER_NAMES:
        return f"model.layers.{int(parts[1])}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"
    if len(parts) == 2 and parts[0] in _MODEL_NAMES:
        return f"{_MODEL_NAMES[parts[0]]}.{parts[1]}"
    raise ModelLoadError(f"{path}: tensor {name!r} is not part of the llama architecture")


def _split_halves(values: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows of each head from interleaved pairs (0, h, 1, h + 1, ...) to halves (0, 1, ..., h, h + 1, ...)."""
    rows = values.shape[0]
    if rows % (2 * num_heads):
        raise ModelLoadError(f"a projection of {rows} rows does not divide over {num_heads} heads")
    pairs = values.reshape(num_heads, rows // num_heads // 2, 2, *values.shape[1:])
    return pairs.transpose(1, 2).reshape(values.shape)
