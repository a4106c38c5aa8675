"""Which part of a weight a rank holds, and which models can be divided over how many ranks.

Attention is divided by heads, the feed-forward layer by its inner neurons, the head by tokens of the vocabulary; the
embedding and the norms are whole on every rank. With more ranks than key/value heads, several ranks hold the same one.
"""

from dataclasses import dataclass, replace

from gpu_worker.errors import ConfigError
from gpu_worker.model_config import ModelConfig
from gpu_worker.rank_group import RankGroup


@dataclass(frozen=True, slots=True)
class Shard:
    """Neighbouring indices of a dimension of ``whole``: from ``start`` to before ``stop``."""

    whole: int
    start: int
    stop: int

    @classmethod
    def all_of(cls, whole: int) -> "Shard":
        return cls(whole, 0, whole)

    @classmethod
    def even(cls, whole: int, group: RankGroup) -> "Shard":
        """Equal parts, rounded up: the last ones are smaller where the ranks do not divide the whole."""
        each = -(-whole // group.size)
        return cls(whole, min(group.rank * each, whole), min((group.rank + 1) * each, whole))

    @classmethod
    def of_kv_heads(cls, whole: int, group: RankGroup) -> "Shard":
        if whole >= group.size:
            return cls.even(whole, group)
        start = group.rank * whole // group.size
        return cls(whole, start, start + 1)

    def times(self, size: int) -> "Shard":
        """The same of a dimension in which each index stands for ``size``."""
        return Shard(self.whole * size, self.start * size, self.stop * size)

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def is_all(self) -> bool:
        return self.size == self.whole

    @property
    def indices(self) -> slice:
        return slice(self.start, self.stop)


def config_of_rank(config: ModelConfig, group: RankGroup) -> ModelConfig:
    """The decoder as one rank computes it: fewer heads and inner neurons."""
    return replace(
        config,
        num_heads=Shard.even(config.num_heads, group).size,
        num_kv_heads=Shard.of_kv_heads(config.num_kv_heads, group).size,
        intermediate_size=Shard.even(config.intermediate_size, group).size,
    )


def check_divides(config: ModelConfig, num_ranks: int) -> None:
    """Raises ConfigError naming the field that cannot be divided and the numbers of ranks that can be."""
    fault = _fault(config, num_ranks)
    if fault:
        allowed = [str(number) for number in range(1, config.num_heads + 1) if not _fault(config, number)]
        raise ConfigError(
            f"--tensor-parallel-size {num_ranks}: not allowed: {fault}; allowed for this model: {', '.join(allowed)}"
        )


def _fault(config: ModelConfig, num_ranks: int) -> str:
    """What does not divide; empty if everything does."""
    if config.num_heads % num_ranks:
        return f"it does not divide the model's num_attention_heads {config.num_heads}"
    if config.num_kv_heads % num_ranks and num_ranks % config.num_kv_heads:
        return f"it neither divides nor is a multiple of the model's num_key_value_heads {config.num_kv_heads}"
    if config.intermediate_size % num_ranks:
        return f"it does not divide the model's intermediate_size {config.intermediate_size}"
    return ""
