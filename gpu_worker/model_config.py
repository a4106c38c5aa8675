"""What a model of the Llama kind looks like, read from a Hugging Face config or from GGUF metadata.

Every field that changes the arithmetic is either understood or refused by name: an ignored rotary scaling block or
window is invisible on short prompts and ruins long ones.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_worker.errors import ModelLoadError

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""One decoder with small differences: Qwen2 has biases on query, key and value, Qwen3 norms their heads."""
DTYPES = ("float32", "float16", "bfloat16")
ROPE_KINDS = ("default", "linear", "llama3")
_SILENT: dict[str, float] = {
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar", "clip_qkv"), 0),
    **dict.fromkeys(("attention_chunk_size", "use_bidirectional_attention", "attention_multiplier"), 0),
    **dict.fromkeys(("embedding_multiplier", "residual_multiplier", "logits_scaling", "logit_scale", "scale_emb"), 1),
    **dict.fromkeys(("rotary_pct", "is_causal"), 1),
}
"""What other models do that no tensor shows, and the value that stands for not doing it."""
MAX_HEAD_DIM = 256
MAX_LAYERS = 1024
MAX_SIZE = 2**24
"""Of any dimension: a config with larger ones is broken, and would take all memory before a tensor's shape shows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary embedding. ``linear`` divides positions by ``factor``; ``llama3`` rescales low frequencies (Llama 3.1)."""

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 0
    freq_divisors: tuple[float, ...] = ()
    """One divisor a frequency, [head_dim / 2], where a GGUF file stores them; empty: none."""

    def __post_init__(self) -> None:
        """What is divided by or raised to a power here gives angles only while it is positive."""
        numbers = [(name, getattr(self, name)) for name in ("theta", "factor", "low_freq_factor", "high_freq_factor")]
        for name, value in (*numbers, *(("freq_divisors", divisor) for divisor in self.freq_divisors)):
            if not 0 < value < math.inf:
                raise ModelLoadError(f"config: rope {name} is {value}; a positive number is needed")
        if self.kind == "llama3" and self.low_freq_factor >= self.high_freq_factor:
            raise ModelLoadError(
                f"config: rope low_freq_factor is {self.low_freq_factor}; less than high_freq_factor "
                f"{self.high_freq_factor} is needed"
            )
        if self.kind == "llama3" and not 1 <= self.original_max_positions <= MAX_SIZE:
            raise ModelLoadError(
                f"config: rope original_max_position_embeddings is {self.original_max_positions}; "
                f"1 to {MAX_SIZE} is believed"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shapes and constants of the decoder; counts are per layer where a layer has them."""

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    """Rows of the embedding, padding included."""
    max_positions: int
    rms_norm_eps: float
    rope: RopeConfig
    attention_bias: bool = False
    """Of query, key and value."""
    output_bias: bool = False
    """Of the attention's output."""
    qk_norm: bool = False
    """Queries and keys are normed head by head before they are rotated."""
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    dtype: str = ""
    """Of the checkpoint: float32, float16, bfloat16, or empty where it does not say."""

    def __post_init__(self) -> None:
        for name in (
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "vocab_size",
            "max_positions",
        ):
            value, most = getattr(self, name), MAX_LAYERS if name == "num_layers" else MAX_SIZE
            if value < 1:
                raise ModelLoadError(f"config: {name} is {value}; it must be positive")
            if value > most:
                raise ModelLoadError(f"config: {name} is {value}; at most {most} is believed")
        if not 0 <= self.rms_norm_eps < math.inf:
            raise ModelLoadError(f"config: rms_norm_eps is {self.rms_norm_eps}; a number from 0 on is needed")
        if self.num_heads % self.num_kv_heads:
            raise ModelLoadError(
                f"config: {self.num_heads} attention heads do not divide over {self.num_kv_heads} key/value heads"
            )
        if self.head_dim % 2 or self.head_dim > MAX_HEAD_DIM:
            raise ModelLoadError(
                f"config: head_dim {self.head_dim} is not supported; even sizes up to {MAX_HEAD_DIM} are"
            )


def from_hf_config(config: Mapping[str, Any]) -> ModelConfig:
    """Read a ``config.json``. Raises ModelLoadError naming the field that is missing or not supported."""
    architecture = _architecture(config)
    _refuse_foreign(config, architecture)
    hidden, heads = _count(config, "hidden_size"), _count(config, "num_attention_heads")
    if config.get("head_dim") is not None or architecture == "Qwen3ForCausalLM":
        head_dim = _count(config, "head_dim", 128)
    elif heads < 1 or hidden % heads:
        raise ModelLoadError(
            f"config: hidden_size {hidden} is not divisible by {heads} heads and head_dim is not given"
        )
    else:
        head_dim = hidden // heads
    max_positions = _max_positions(config)
    bias = _switch(config, "attention_bias")
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden,
        intermediate_size=_count(config, "intermediate_size"),
        num_layers=_count(config, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=_count(config, "num_key_value_heads", heads),
        head_dim=head_dim,
        vocab_size=_count(config, "vocab_size"),
        max_positions=max_positions,
        rms_norm_eps=_number(config, "rms_norm_eps", 1e-6),
        rope=_rope(config, max_positions),
        attention_bias=bias or architecture == "Qwen2ForCausalLM",
        output_bias=bias and architecture != "Qwen2ForCausalLM",
        qk_norm=architecture == "Qwen3ForCausalLM",
        mlp_bias=_switch(config, "mlp_bias"),
        tie_word_embeddings=_switch(config, "tie_word_embeddings"),
        dtype=_dtype(config),
    )


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures") or []
    if not isinstance(names, list) or len(names) != 1 or names[0] not in ARCHITECTURES:
        raise ModelLoadError(f"config: architectures {names} is not supported; supported: {', '.join(ARCHITECTURES)}")
    return str(names[0])


def _refuse_foreign(config: Mapping[str, Any], architecture: str) -> None:
    if config.get("auto_map"):
        raise ModelLoadError("config: auto_map asks for code from the checkpoint; code from checkpoints is never run")
    for name, neutral in _SILENT.items():
        if config.get(name) not in (None, neutral):
            raise ModelLoadError(f"config: {name} {config[name]!r} is not supported")
    _refuse_window(config, architecture)
    kinds = config.get("layer_types")
    if kinds is not None and (not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds)):
        raise ModelLoadError("config: layer_types other than a list of full_attention are not supported")
    if config.get("hidden_act", "silu") != "silu":
        raise ModelLoadError(f"config: hidden_act {config['hidden_act']!r} is not supported; supported: silu")
    if _number(config, "partial_rotary_factor", 1.0) != 1.0:
        raise ModelLoadError(f"config: partial_rotary_factor {config['partial_rotary_factor']} is not supported")


def _refuse_window(config: Mapping[str, Any], architecture: str) -> None:
    """A window that no position lies outside of is none. Mistral's has no switch."""
    window = config.get("sliding_window", None if architecture == "LlamaForCausalLM" else 4096)
    is_on = architecture == "MistralForCausalLM" or _switch(
        config, "use_sliding_window", not architecture.startswith("Qwen")
    )
    if window is not None and is_on and _count(config, "sliding_window", window) < _max_positions(config):
        raise ModelLoadError(f"config: sliding_window {window} is not supported")


def _max_positions(config: Mapping[str, Any]) -> int:
    return _count(config, "max_position_embeddings", 2048)


def _dtype(config: Mapping[str, Any]) -> str:
    name = "dtype" if config.get("dtype") is not None else "torch_dtype"
    value = config.get(name)
    if value is None:
        return ""
    dtype = str(value).removeprefix("torch.")
    if dtype not in DTYPES:
        raise ModelLoadError(f"config: {name} {value!r} is not supported; supported: {', '.join(DTYPES)}")
    return dtype


def _switch(config: Mapping[str, Any], name: str, default: bool = False) -> bool:
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ModelLoadError(f"config: {name} is {value!r}; true or false is needed")
    return value


def _count(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = config.get(name)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool):
        raise ModelLoadError(f"config: {name} is {value!r}; an integer is needed")
    return value


def _number(config: Mapping[str, Any], name: str, default: float) -> float:
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= sys.float_info.max:
        raise ModelLoadError(f"config: {name} is {value!r}; a finite number is needed")
    return float(value)


def _rope(config: Mapping[str, Any], max_positions: int) -> RopeConfig:
    block = _rope_block(config)
    kind = block["rope_type"]
    if kind not in ROPE_KINDS:
        raise ModelLoadError(f"config: rope_type {kind!r} is not supported; supported: {', '.join(ROPE_KINDS)}")
    if _number(block, "partial_rotary_factor", 1.0) != 1.0:
        raise ModelLoadError("config: partial_rotary_factor in the rope block is not supported")
    unknown = set(block) - {"rope_type", "type", "rope_theta", "partial_rotary_factor", *_ROPE_FIELDS[kind]}
    if unknown:
        raise ModelLoadError(f"config: field {sorted(unknown)[0]!r} is not known for rope_type {kind!r}")
    missing = [name for name in _ROPE_FIELDS[kind] if block.get(name) is None]
    if missing:
        raise ModelLoadError(f"config: rope_type {kind!r} needs the field {missing[0]!r}")
    return RopeConfig(
        theta=_number(block if block.get("rope_theta") is not None else config, "rope_theta", 10000.0),
        kind=kind,
        factor=_number(block, "factor", 1.0),
        low_freq_factor=_number(block, "low_freq_factor", 1.0),
        high_freq_factor=_number(block, "high_freq_factor", 4.0),
        original_max_positions=_count(block, "original_max_position_embeddings", max_positions),
    )


def _rope_block(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the block says by its older name, its newer one, or beside it; ``rope_type`` is always there.

    Libraries disagree on which of these wins, so they must agree.
    """
    found: dict[str, Any] = {}
    for field in ("rope_scaling", "rope_parameters"):
        part = config.get(field)
        if part is not None and not isinstance(part, dict):
            raise ModelLoadError(f"config: {field} is {part!r}; an object is needed")
        if part:
            kind = part.get("rope_type", part.get("type", "default"))
            if part.get("type", kind) != kind:
                raise ModelLoadError(f"config: rope type {part['type']!r} and rope_type {kind!r} differ")
            _agree(found, {**part, "rope_type": kind})
    original = "original_max_position_embeddings"
    if found.get("rope_type") == "llama3" and config.get(original) is not None:
        _agree(found, {original: config[original]})
    return {"rope_type": "default", **found}


def _agree(found: dict[str, Any], part: Mapping[str, Any]) -> None:
    for name, value in part.items():
        if name in found and found[name] != value:
            raise ModelLoadError(f"config: of the rotary embedding, {name} is both {found[name]!r} and {value!r}")
        found[name] = value


_ROPE_FIELDS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
