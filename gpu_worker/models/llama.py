"""The Llama family's decoder (arXiv 2302.13971): Llama 2 and 3, SmolLM2, TinyLlama, Mistral, Qwen2 and Qwen3.

Query, key and value projections are one matrix, gate and up projections another. The residual stream is added inside
the norms. After the last layer's attention only rows that sample go on: the rest of a chunk has done its work once its
keys and values are in their pages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from pagewire_kernels import AttentionBatch, KernelSet, QkNorm

from gpu_worker.layers.linear import Linear, TensorFactory
from gpu_worker.layers.rotary import make_cos_sin
from gpu_worker.model_config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaLayer:
    """One decoder layer's parameters."""

    input_norm: torch.Tensor
    qkv: Linear
    output: Linear
    post_attention_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    qk_norm: QkNorm | None

    @classmethod
    def allocate(cls, config: ModelConfig, make: TensorFactory) -> "LlamaLayer":
        query_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        hidden, inner = config.hidden_size, config.intermediate_size
        return cls(
            input_norm=make.vector(hidden),
            qkv=make.linear(query_size + 2 * kv_size, hidden, bias=config.attention_bias),
            output=make.linear(hidden, query_size, bias=config.output_bias),
            post_attention_norm=make.vector(hidden),
            gate_up=make.linear(2 * inner, hidden, bias=config.mlp_bias),
            down=make.linear(hidden, inner, bias=config.mlp_bias),
            qk_norm=QkNorm(
                query_weight=make.vector(config.head_dim),
                key_weight=make.vector(config.head_dim),
                eps=config.rms_norm_eps,
            )
            if config.qk_norm
            else None,
        )

    def projections(self) -> tuple[Linear, ...]:
        return self.qkv, self.output, self.gate_up, self.down

    def slots(self, config: ModelConfig) -> dict[str, torch.Tensor]:
        """Views of the parameters by the names checkpoints use, without the layer's prefix."""
        query_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        parts = (
            ("self_attn.q_proj", self.qkv, slice(0, query_size)),
            ("self_attn.k_proj", self.qkv, slice(query_size, query_size + kv_size)),
            ("self_attn.v_proj", self.qkv, slice(query_size + kv_size, None)),
            ("self_attn.o_proj", self.output, slice(None)),
            ("mlp.gate_proj", self.gate_up, slice(0, config.intermediate_size)),
            ("mlp.up_proj", self.gate_up, slice(config.intermediate_size, None)),
            ("mlp.down_proj", self.down, slice(None)),
        )
        slots = {
            "input_layernorm.weight": self.input_norm,
            "post_attention_layernorm.weight": self.post_attention_norm,
        }
        if self.qk_norm is not None:
            slots["self_attn.q_norm.weight"] = self.qk_norm.query_weight
            slots["self_attn.k_norm.weight"] = self.qk_norm.key_weight
        for name, linear, rows in parts:
            slots[f"{name}.weight"] = linear.weight[rows]
            if linear.bias is not None:
                slots[f"{name}.bias"] = linear.bias[rows]
        return slots


class LlamaModel:
    """Decoder and head over paged keys and values."""

    def __init__(
        self, config: ModelConfig, kernels: KernelSet, *, max_model_len: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        make = TensorFactory(dtype, device, kernels.linear)
        self.config = config
        self.dtype = dtype
        self.device = device
        self._kernels = kernels
        self._scale = config.head_dim**-0.5
        self._cos_sin = make_cos_sin(config.rope, config.head_dim, max_model_len, device)
        self._embedding = make.linear(config.vocab_size, config.hidden_size).weight
        self._layers = [LlamaLayer.allocate(config, make) for _ in range(config.num_layers)]
        self._final_norm = make.vector(config.hidden_size)
        self._head = Linear(self._embedding)
        if not config.tie_word_embeddings:
            self._head = make.linear(config.vocab_size, config.hidden_size)
        self.num_parameters = sum(slot.numel() for slot in self.weight_slots().values())
        """A tied matrix counted once."""
        self.num_weight_bytes = self.num_parameters * dtype.itemsize

    def weight_slots(self) -> Mapping[str, torch.Tensor]:
        """Every parameter a checkpoint must fill, by its name there; valid until ``finish``."""
        slots = {"model.embed_tokens.weight": self._embedding, "model.norm.weight": self._final_norm}
        if not self.config.tie_word_embeddings:
            slots["lm_head.weight"] = self._head.weight
        for number, layer in enumerate(self._layers):
            slots.update({f"model.layers.{number}.{name}": slot for name, slot in layer.slots(self.config).items()})
        return slots

    def finish(self, vocab_size: int) -> None:
        """Call once all parameters are filled; they are final then.

        Never gives logits for ids from ``vocab_size`` on: rows that pad the vocabulary must not be sampled. On a CPU
        the projections are packed where that helps; a tied head then is a second copy of the embedding.
        """
        self._head = Linear(self._head.weight[:vocab_size])
        for linear in (self._head, *(linear for layer in self._layers for linear in layer.projections())):
            linear.pack()

    def forward(
        self,
        token_ids: torch.Tensor,
        batch: AttentionBatch,
        kv_pages: Sequence[torch.Tensor],
        sampling_tokens: torch.Tensor,
    ) -> torch.Tensor:
        """Compute packed tokens and write their keys and values.

        token_ids [T]; kv_pages one tensor a layer; sampling_tokens int64 [R]: packed tokens whose logits are wanted,
        may be empty. Returns logits [R, vocabulary] in the model's dtype, or [0, 0].
        """
        x = self.hidden(token_ids, batch, kv_pages, sampling_tokens)
        return self.logits(x) if len(x) else x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [R, H] -> logits [R, vocabulary]."""
        return self._head(hidden)

    def hidden(
        self,
        token_ids: torch.Tensor,
        batch: AttentionBatch,
        kv_pages: Sequence[torch.Tensor],
        wanted: torch.Tensor,
    ) -> torch.Tensor:
        """As ``forward``, up to what the head takes: [R, H] of the R packed tokens ``wanted``, or [0, 0]."""
        config, kernels = self.config, self._kernels
        residual = F.embedding(token_ids, self._embedding)
        x = kernels.rms_norm(residual, self._layers[0].input_norm, config.rms_norm_eps)
        last = len(self._layers) - 1
        for number, layer in enumerate(self._layers):
            qkv = layer.qkv(x)
            q = kernels.rotary_kv_write(
                qkv, self._cos_sin, kv_pages[number], batch, config.num_heads, config.num_kv_heads, layer.qk_norm
            )
            if number == last and wanted.numel() == 0:
                break
            attended = kernels.paged_attention(q, kv_pages[number], batch, self._scale).flatten(1)
            if number == last:
                attended = attended.index_select(0, wanted)
                residual = residual.index_select(0, wanted)
            x = kernels.add_rms_norm(layer.output(attended), residual, layer.post_attention_norm, config.rms_norm_eps)
            x = layer.down(kernels.silu_mul(layer.gate_up(x)))
            next_norm = self._final_norm if number == last else self._layers[number + 1].input_norm
            x = kernels.add_rms_norm(x, residual, next_norm, config.rms_norm_eps)
        else:
            return x
        return x.new_empty(0, 0)
