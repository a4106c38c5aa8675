"""Reads a GGUF file of the llama architecture.

Matrices stay quantised where the kernel set has products for their type, and are dequantised otherwise; the embedding
always is, and a head tied to it is a product of its own over the file's codes. The writer of GGUF files stores the rows
of the query and key projections with each head's rotary pairs interleaved; they are put back into half-split order
here. The tokenizer and the configuration come from the file's metadata.
"""

import math
from collections.abc import Collection, Sequence
from pathlib import Path

import torch
from pagewire_kernels import QuantizedWeight

from gpu_worker.errors import ModelLoadError
from gpu_worker.model_config import ModelConfig, RopeConfig
from gpu_worker.weights.checkpoint import ByteRange, TakesQuantized, TextAssets, digest_content
from gpu_worker.weights.dequantize import dequantize
from gpu_worker.weights.gguf_blocks import FORMS, unpack_blocks
from gpu_worker.weights.gguf_file import GgufTensor, read_gguf
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
_EMBEDDING, _HEAD = "model.embed_tokens", "lm_head"
_SILENT: dict[str, float] = {
    **dict.fromkeys(("expert_count", "attention.sliding_window", "attention.scale", "attention.clamp_kqv"), 0),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"), 0),
    **dict.fromkeys(("attention.causal", "rope.scaling.attn_factor"), 1),
    **dict.fromkeys(("logit_scale", "embedding_scale", "residual_scale"), 1),
}
"""What other models do that no tensor shows, and the value that stands for not doing it."""
_ROPE_DIVISORS = "rope_freqs.weight"
_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
SUPPORTED = (*_FLOATS, "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")


class GgufCheckpoint:
    """A GGUF file opened for reading."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = read_gguf(path)
        self._tensors: dict[str, GgufTensor] = {}
        for tensor in self._file.tensors.values():
            if tensor.kind.name not in SUPPORTED:
                raise ModelLoadError(
                    f"{path}: tensor {tensor.name!r} is stored as {tensor.kind.name}; supported: {', '.join(SUPPORTED)}"
                )
            if tensor.name != _ROPE_DIVISORS:
                self._tensors[_translate(path, tensor.name)] = tensor
        self.config = self._read_config()
        quantized = {tensor.kind.name for tensor in self._tensors.values()} - _FLOATS.keys()
        self.quantized_modules: Collection[str] = frozenset()
        self.quantization_method = "gguf"
        self.quantization = f"gguf {'+'.join(sorted(quantized))}" if quantized else ""

    def keep_quantized(self, takes: TakesQuantized) -> Sequence[str]:
        kept = {name.removesuffix(".weight") for name, tensor in self._tensors.items() if _is_kept(tensor, takes)}
        if self.config.tie_word_embeddings and _EMBEDDING in kept:
            kept.add(_HEAD)
        self.quantized_modules = frozenset(kept - {_EMBEDDING})
        others = {name: tensor for name, tensor in self._tensors.items() if name.removesuffix(".weight") not in kept}
        return sorted({tensor.kind.name for tensor in others.values()} - _FLOATS.keys())

    def names(self) -> Sequence[str]:
        return sorted(name for name in self._tensors if name.removesuffix(".weight") not in self.quantized_modules)

    def read(self, name: str) -> torch.Tensor:
        values = self._floats(self._tensors[name])
        reordered = self._reordered(name, values)
        return values if reordered is None else reordered

    def _reordered(self, name: str, values: torch.Tensor) -> torch.Tensor | None:
        """Rows of query and key projections in half-split order; None for other tensors."""
        if ".q_proj." in name:
            return self._split_halves(name, values, self.config.num_heads)
        if ".k_proj." in name:
            return self._split_halves(name, values, self.config.num_kv_heads)
        return None

    def read_quantized(self, module: str, num_outputs: int, num_inputs: int, device: torch.device) -> QuantizedWeight:
        name = f"{_EMBEDDING if module == _HEAD and self.config.tie_word_embeddings else module}.weight"
        tensor = self._tensors[name]
        if tensor.shape != (num_outputs, num_inputs):
            wanted = [num_outputs, num_inputs]
            raise ModelLoadError(
                f"{self.path}: tensor {name!r} has shape {list(tensor.shape)}; the config asks for {wanted}"
            )
        weight = unpack_blocks(self._file.raw(tensor), tensor.kind.name)
        constants = [weight.scales] if weight.offsets is None else [weight.scales, weight.offsets]
        if not all(bool(each.isfinite().all()) for each in constants):
            raise ModelLoadError(f"{self.path}: tensor {name!r} holds scales that are NaN or infinite")
        rows = self._reordered(name, torch.arange(num_outputs))
        return (weight if rows is None else weight.select_outputs(rows)).to(device)

    def text_assets(self) -> TextAssets:
        return read_text_assets(self.path, self._file.metadata)

    def digest(self) -> str:
        header = self._file.content[: self._file.data_start]
        ranges = [ByteRange(self.path, name, part.start, part.num_bytes) for name, part in self._tensors.items()]
        return digest_content(header, ranges)

    def _floats(self, tensor: GgufTensor) -> torch.Tensor:
        raw = self._file.raw(tensor)
        if tensor.kind.name in _FLOATS:
            return torch.from_numpy(raw.copy()).view(_FLOATS[tensor.kind.name]).view(tensor.shape)
        values = dequantize(raw, tensor.kind).view(tensor.shape)
        if not bool(values.isfinite().all()):
            raise ModelLoadError(f"{self.path}: tensor {tensor.name!r} holds scales that are NaN or infinite")
        return values

    def _split_halves(self, name: str, values: torch.Tensor, num_heads: int) -> torch.Tensor:
        """Rows of each head from interleaved pairs (0, h, 1, h + 1, ...) to halves (0, 1, ..., h, h + 1, ...)."""
        rows = values.shape[0]
        if rows % (2 * num_heads):
            raise ModelLoadError(
                f"{self.path}: tensor {name!r} of {rows} rows does not divide over {num_heads} heads of pairs"
            )
        pairs = values.reshape(num_heads, rows // num_heads // 2, 2, *values.shape[1:])
        return pairs.transpose(1, 2).reshape(values.shape)

    # Configuration

    def _number(self, key: str, default: float | None = None) -> float:
        value = self._file.metadata.get(key, default)
        if value is None:
            raise ModelLoadError(f"{self.path}: metadata {key!r} is missing")
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ModelLoadError(f"{self.path}: metadata {key!r} is not a number")
        return value

    def _integer(self, key: str, default: int | None = None) -> int:
        value = self._number(key, default)
        if value != int(value):
            raise ModelLoadError(f"{self.path}: metadata {key!r} is {value}; an integer is needed")
        return int(value)

    def _read_config(self) -> ModelConfig:
        metadata = self._file.metadata
        num_files = metadata.get("split.count", 0)
        if num_files not in (0, 1):
            raise ModelLoadError(f"{self.path}: metadata split.count is {num_files}; one whole file is supported")
        architecture = metadata.get("general.architecture")
        if architecture != "llama":
            raise ModelLoadError(f"{self.path}: architecture {architecture!r} is not supported; supported: llama")
        for name, neutral in _SILENT.items():
            value = metadata.get(f"llama.{name}", neutral)
            if value != neutral:
                raise ModelLoadError(f"{self.path}: metadata 'llama.{name}' is {value!r}; {neutral} is needed")
        hidden = self._integer("llama.embedding_length")
        heads = self._integer("llama.attention.head_count")
        head_dim = self._integer("llama.attention.key_length", hidden // max(heads, 1))
        embedding = self._tensors.get("model.embed_tokens.weight")
        if embedding is None:
            raise ModelLoadError(f"{self.path}: tensor 'token_embd.weight' is missing")
        return ModelConfig(
            architecture="LlamaForCausalLM",
            hidden_size=hidden,
            intermediate_size=self._integer("llama.feed_forward_length"),
            num_layers=self._integer("llama.block_count"),
            num_heads=heads,
            num_kv_heads=self._integer("llama.attention.head_count_kv", heads),
            head_dim=head_dim,
            vocab_size=embedding.shape[0],
            max_positions=self._integer("llama.context_length"),
            rms_norm_eps=float(self._number("llama.attention.layer_norm_rms_epsilon")),
            rope=self._rope(head_dim),
            attention_bias="model.layers.0.self_attn.q_proj.bias" in self._tensors,
            output_bias="model.layers.0.self_attn.o_proj.bias" in self._tensors,
            mlp_bias="model.layers.0.mlp.gate_proj.bias" in self._tensors,
            tie_word_embeddings="lm_head.weight" not in self._tensors,
        )

    def _rope(self, head_dim: int) -> RopeConfig:
        """As llama.cpp reads it: a factor without a type is linear, 0 is none, and older files call it scale_linear."""
        rotated = self._integer("llama.rope.dimension_count", head_dim)
        if rotated != head_dim:
            raise ModelLoadError(f"{self.path}: metadata llama.rope.dimension_count is {rotated}; {head_dim} is needed")
        kind = self._file.metadata.get("llama.rope.scaling.type", "linear")
        if kind not in ("none", "linear"):
            raise ModelLoadError(
                f"{self.path}: metadata llama.rope.scaling.type {kind!r} is not supported; supported: none, linear"
            )
        factor = self._number("llama.rope.scaling.factor", self._number("llama.rope.scale_linear", 1.0)) or 1.0
        return RopeConfig(
            theta=float(self._number("llama.rope.freq_base", 10000.0)),
            kind="linear" if kind == "linear" and factor != 1.0 else "default",
            factor=factor,
            freq_divisors=self._rope_divisors(head_dim),
        )

    def _rope_divisors(self, head_dim: int) -> tuple[float, ...]:
        """How Llama 3 files carry their rotary scaling."""
        tensor = self._file.tensors.get(_ROPE_DIVISORS)
        if tensor is None:
            return ()
        values = tuple(self._floats(tensor).flatten().tolist())
        if len(values) != head_dim // 2:
            raise ModelLoadError(
                f"{self.path}: tensor {_ROPE_DIVISORS!r} has {len(values)} values; {head_dim // 2} are needed"
            )
        return values


def _is_kept(tensor: GgufTensor, takes: TakesQuantized) -> bool:
    form = FORMS.get(tensor.kind.name)
    return form is not None and takes(form.bits, form.group_size, form.has_offsets)


def _translate(path: Path, name: str) -> str:
    """The Hugging Face name of a GGUF tensor."""
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[1].isdecimal() and parts[2] in _LAYER_NAMES:
        return f"model.layers.{int(parts[1])}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"
    if len(parts) == 2 and parts[0] in _MODEL_NAMES:
        return f"{_MODEL_NAMES[parts[0]]}.{parts[1]}"
    raise ModelLoadError(f"{path}: tensor {name!r} is not part of the llama architecture")
