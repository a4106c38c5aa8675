"""Fills a model's parameters from a checkpoint, strictly.

Every tensor of the checkpoint is used and every parameter is filled, or loading stops with the tensor's name. Two
exceptions, both without effect on the result: old checkpoints store ``rotary_emb.inv_freq``, which is computed here;
and a checkpoint with tied embeddings may carry a copy of them as ``lm_head.weight`` (the embedding wins).
"""

from collections.abc import Callable, Mapping

import torch

from gpu_worker.errors import ModelLoadError
from gpu_worker.weights.checkpoint import Checkpoint

_COMPUTED_HERE = ".rotary_emb.inv_freq"
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def load_weights(checkpoint: Checkpoint, slots: Mapping[str, torch.Tensor], warn: Callable[[str], None]) -> None:
    """Copy every tensor into its slot, converting the dtype.

    ``warn`` gets one sentence if a stored head differs from the embedding it is tied to. Raises ModelLoadError.
    """
    names = [name for name in checkpoint.names() if not name.endswith(_COMPUTED_HERE)]
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
        _fill(checkpoint, name, slot)
    if tied and _HEAD in names and not torch.equal(checkpoint.read(_HEAD), checkpoint.read(_EMBEDDING)):
        warn("lm_head.weight differs from the embedding that config.json ties it to; the embedding is used")


def _fill(checkpoint: Checkpoint, name: str, slot: torch.Tensor) -> None:
    tensor = checkpoint.read(name)
    if tensor.shape != slot.shape:
        raise ModelLoadError(
            f"{checkpoint.path}: tensor {name!r} has shape {list(tensor.shape)}; the config asks for {list(slot.shape)}"
        )
    slot.copy_(tensor)
