"""Fills a model's parameters from a checkpoint, strictly.

Every tensor of the checkpoint is used and every parameter is filled, or loading stops with the tensor's name. Three
exceptions, all without effect on the result: old checkpoints store ``rotary_emb.inv_freq``, which is computed here;
a checkpoint with tied embeddings may carry a copy of them as ``lm_head.weight`` (the embedding wins); and tools that
quantise give modules without a bias one of zeros.

A weight that is no number is told and loaded all the same: it may be a row of the embedding that nobody asks for.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from pagewire_kernels import KernelSet

from gpu_worker.errors import ModelLoadError
from gpu_worker.layers.quantized_linear import QuantizedLinear
from gpu_worker.shard import Shard
from gpu_worker.weights.checkpoint import Checkpoint

_COMPUTED_HERE = ".rotary_emb.inv_freq"
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def load_weights(
    checkpoint: Checkpoint,
    slots: Mapping[str, torch.Tensor],
    warn: Callable[[str], None],
    shards: Mapping[str, Sequence[Shard]] = MappingProxyType({}),
) -> None:
    """Copy every tensor, or of those in ``shards`` this part, into its slot, converting the dtype.

    ``warn`` gets a sentence for each tensor that holds NaN or infinity, and if a stored head differs from the embedding
    it is tied to. Raises ModelLoadError.
    """
    names = [name for name in checkpoint.names() if not name.endswith(_COMPUTED_HERE)]
    names = [name for name in names if name in slots or not _is_zero_bias(checkpoint, name)]
    tied = _HEAD not in slots
    missing = sorted(slots.keys() - set(names))
    if missing:
        raise ModelLoadError(f"{checkpoint.path}: tensor {missing[0]!r} is missing ({len(missing)} missing in all)")
    strangers = sorted(set(names) - slots.keys() - ({_HEAD} if tied else set()))
    if strangers:
        raise ModelLoadError(
            f"{checkpoint.path}: tensor {strangers[0]!r} has no place in the model ({len(strangers)} such)"
        )
    for name, slot in slots.items():
        _fill(checkpoint, name, slot, shards.get(name) or [Shard.all_of(size) for size in slot.shape])
        if not _is_finite(slot):
            dtype = str(slot.dtype).removeprefix("torch.")
            warn(f"tensor {name!r} holds NaN or infinity in {dtype}: requests that meet it fail")
    if tied and _HEAD in names and not torch.equal(checkpoint.read(_HEAD), checkpoint.read(_EMBEDDING)):
        warn("lm_head.weight differs from the embedding that config.json ties it to; the embedding is used")


def load_quantized(
    checkpoint: Checkpoint,
    linears: Sequence[QuantizedLinear],
    kernels: KernelSet,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Unpack and repack layer by layer, so that memory peaks at one layer's codes. Raises ModelLoadError.

    What a format checks and decides it does on whole modules, so every rank unpacks them whole and keeps its part.
    """
    wanted = {projection.name for linear in linears for projection in linear.projections if projection.weight is None}
    strangers = sorted(set(checkpoint.quantized_modules) - wanted)
    if strangers:
        raise ModelLoadError(f"{checkpoint.path}: quantised module {strangers[0]!r} has no place in the model")
    for linear in linears:
        weights = {
            projection.name: linear.part_of(
                projection,
                checkpoint.read_quantized(projection.name, projection.outputs.whole, linear.inputs.whole, device),
            )
            for projection in linear.projections
            if projection.weight is None
        }
        try:
            linear.fill(weights, kernels, dtype)
        except ValueError as error:
            raise ModelLoadError(f"{checkpoint.path}: {next(iter(weights))!r}: {error}") from None


def _is_finite(tensor: torch.Tensor) -> bool:
    """The extremes are NaN if anything is. Costs a tenth of a copy on a CPU."""
    return bool(torch.stack(tensor.aminmax()).isfinite().all())


def _is_zero_bias(checkpoint: Checkpoint, name: str) -> bool:
    module, _, ending = name.rpartition(".")
    return ending == "bias" and module in checkpoint.quantized_modules and not bool(checkpoint.read(name).any())


def _fill(checkpoint: Checkpoint, name: str, slot: torch.Tensor, shards: Sequence[Shard]) -> None:
    """Of a tensor mapped from a file only what is copied is read."""
    tensor, wanted = checkpoint.read(name), [shard.whole for shard in shards]
    if list(tensor.shape) != wanted:
        raise ModelLoadError(
            f"{checkpoint.path}: tensor {name!r} has shape {list(tensor.shape)}; the config asks for {wanted}"
        )
    slot.copy_(tensor[tuple(shard.indices for shard in shards)])
