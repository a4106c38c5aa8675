"""The Llama family's decoder (arXiv 2302.13971): Llama 2 and 3, SmolLM2, TinyLlama, Mistral, Qwen2 and Qwen3.

Query, key and value projections are one matrix, gate and up projections another. The residual stream is added inside
the norms. After the last layer's attention only rows that sample go on: the rest of a chunk has done its work once its
keys and values are in their pages.

A rank of several computes its heads, its inner neurons and its part of the vocabulary; sums after the attention and
after the feed-forward layer, and the logits side by side, are the same on all.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from pagewire_kernels import AttentionBatch, KernelSet, QkNorm

from gpu_worker.layers.linear import Linear
from gpu_worker.layers.quantized_linear import QuantizedLinear
from gpu_worker.layers.rotary import make_cos_sin
from gpu_worker.layers.tensor_factory import AnyLinear, TensorFactory
from gpu_worker.model_config import ModelConfig
from gpu_worker.rank_group import ALONE, RankGroup
from gpu_worker.shard import Shard, config_of_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaLayer:
    """One decoder layer's parameters."""

    input_norm: torch.Tensor
    qkv: AnyLinear
    output: AnyLinear
    post_attention_norm: torch.Tensor
    gate_up: AnyLinear
    down: AnyLinear
    qk_norm: QkNorm | None

    @classmethod
    def allocate(cls, prefix: str, config: ModelConfig, make: TensorFactory) -> "LlamaLayer":
        """``prefix`` is the layer's in checkpoints' names, ``config`` the whole model's."""
        queries = Shard.even(config.num_heads, make.group).times(config.head_dim)
        keys = Shard.of_kv_heads(config.num_kv_heads, make.group).times(config.head_dim)
        inner, hidden = Shard.even(config.intermediate_size, make.group), config.hidden_size
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        return cls(
            input_norm=make.vector(f"{prefix}.input_layernorm.weight", hidden),
            qkv=make.linear(
                {f"{attention}.q_proj": queries, f"{attention}.k_proj": keys, f"{attention}.v_proj": keys},
                hidden,
                bias=config.attention_bias,
            ),
            output=make.divided_linear(f"{attention}.o_proj", hidden, queries, bias=config.output_bias),
            post_attention_norm=make.vector(f"{prefix}.post_attention_layernorm.weight", hidden),
            gate_up=make.linear({f"{mlp}.gate_proj": inner, f"{mlp}.up_proj": inner}, hidden, bias=config.mlp_bias),
            down=make.divided_linear(f"{mlp}.down_proj", hidden, inner, bias=config.mlp_bias),
            qk_norm=QkNorm(
                query_weight=make.vector(f"{attention}.q_norm.weight", config.head_dim),
                key_weight=make.vector(f"{attention}.k_norm.weight", config.head_dim),
                eps=config.rms_norm_eps,
            )
            if config.qk_norm
            else None,
        )

    def projections(self) -> tuple[AnyLinear, ...]:
        return self.qkv, self.output, self.gate_up, self.down


class LlamaModel:
    """Decoder and head over paged keys and values."""

    def __init__(
        self,
        config: ModelConfig,
        kernels: KernelSet,
        *,
        max_model_len: int,
        dtype: torch.dtype,
        device: torch.device,
        quantized: Collection[str] = (),
        group: RankGroup = ALONE,
    ) -> None:
        """``quantized`` names the checkpoint's quantised modules; a tied head may be one, its embedding is not."""
        make = TensorFactory(dtype, device, kernels.linear, frozenset(quantized), group)
        self.config = config_of_rank(config, group)
        self.group = group
        self.dtype = dtype
        self.device = device
        self._kernels = kernels
        self._scale = config.head_dim**-0.5
        self._cos_sin = make_cos_sin(config.rope, config.head_dim, max_model_len, device)
        vocabulary, hidden = Shard.all_of(config.vocab_size), Shard.all_of(config.hidden_size)
        self._embedding = make.matrix("model.embed_tokens.weight", vocabulary, hidden)
        self._layers = [
            LlamaLayer.allocate(f"model.layers.{number}", config, make) for number in range(config.num_layers)
        ]
        self._final_norm = make.vector("model.norm.weight", config.hidden_size)
        self._tokens = Shard.even(config.vocab_size, group)
        """Those whose logits this rank computes."""
        self._head: AnyLinear = Linear(self._embedding[self._tokens.indices])
        if not config.tie_word_embeddings or "lm_head" in make.quantized:
            self._head = make.linear({"lm_head": self._tokens}, config.hidden_size)
        self._vocab_size = config.vocab_size
        self._slots, self._shards = make.slots, make.shards
        self.quantized_linears: Sequence[QuantizedLinear] = make.quantized_linears
        """Layers to ``fill``, with the embedding's tensors and the rest in ``weight_slots``."""
        self.num_parameters = sum(slot.numel() for slot in self._slots.values()) + sum(
            projection.outputs.size * linear.inputs.size
            for linear in self.quantized_linears
            for projection in linear.projections
            if projection.weight is None
        )
        """A tied matrix counted once."""

    @property
    def num_weight_bytes(self) -> int:
        """As the loader filled them; a tied matrix counted once unless the head is quantised."""
        quantized = sum(linear.num_bytes for linear in self.quantized_linears)
        in_both = [part.weight for linear in self.quantized_linears for part in linear.projections]
        return (
            quantized
            + sum(slot.nbytes for slot in self._slots.values())
            - sum(weight.nbytes for weight in in_both if weight is not None)
        )

    def weight_slots(self) -> Mapping[str, torch.Tensor]:
        """Every plain parameter a checkpoint must fill, by its name there; valid until ``finish``."""
        return self._slots

    def weight_shards(self) -> Mapping[str, Sequence[Shard]]:
        """Which part of the checkpoint's tensor each of ``weight_slots`` is."""
        return self._shards

    def finish(self, vocab_size: int) -> None:
        """Call once all parameters are filled; they are final then.

        Never gives logits for ids from ``vocab_size`` on: rows that pad the vocabulary must not be sampled. On a CPU
        the projections are packed where that helps; a tied head then is a second copy of the embedding.
        """
        self._vocab_size = vocab_size
        if isinstance(self._head, Linear):
            self._head = Linear(self._head.weight[: max(0, vocab_size - self._tokens.start)])
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
        each = -(-self._tokens.whole // self.group.size)
        return self.group.join(self._head(hidden), each)[:, : self._vocab_size].contiguous()

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
