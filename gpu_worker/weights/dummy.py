"""Random weights for a directory that holds only a config and a tokenizer: for measuring speed without a checkpoint."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch
from pagewire_kernels import QuantizedWeight

from gpu_worker.errors import ModelLoadError
from gpu_worker.model_config import from_hf_config
from gpu_worker.weights.checkpoint import TextAssets
from gpu_worker.weights.hf_text import read_text_assets
from gpu_worker.weights.safetensors import read_json

_SEED = 0
_SPREAD = 0.02
"""Standard deviation of matrices, as models are usually initialised."""


class DummyCheckpoint:
    """A Hugging Face directory whose weights, if there are any, are not read."""

    quantization = ""
    quantization_method = "none"
    quantized_modules: Collection[str] = ()

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise ModelLoadError(f"{path}: dummy weights need a directory with config.json and tokenizer.json")
        self.path = path
        self._raw_config = read_json(path / "config.json")
        self.config = from_hf_config(self._raw_config)

    def names(self) -> Sequence[str]:
        return ()

    def read(self, name: str) -> torch.Tensor:
        raise ModelLoadError(f"{self.path}: tensor {name!r} is missing: the weights are dummies")

    def read_quantized(self, module: str, num_outputs: int, num_inputs: int, device: torch.device) -> QuantizedWeight:
        raise ModelLoadError(f"{self.path}: {module!r} is missing: the weights are dummies")

    def text_assets(self) -> TextAssets:
        return read_text_assets(self.path, self._raw_config)

    def digest(self) -> str:
        """Of the config: equal configs get equal weights on one kind of device."""
        return hashlib.sha256(b"dummy" + json.dumps(self._raw_config, sort_keys=True).encode()).hexdigest()


def fill_with_noise(slots: Mapping[str, torch.Tensor]) -> None:
    """Norms of one, everything else normal, from a fixed seed."""
    device = next(iter(slots.values())).device
    generator = torch.Generator(device).manual_seed(_SEED)
    for name, slot in slots.items():
        if name.endswith("norm.weight"):
            slot.fill_(1)
        else:
            slot.normal_(0, _SPREAD, generator=generator)
