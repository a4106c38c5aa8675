"""Random weights for a directory that holds only a config and a tokenizer: for measuring speed without a checkpoint.

Quantised where the config says so, or ``--quantization`` does: the decoder's projections then have random codes of 4
bits in groups of 128, or of the config's bits and groups.
"""

import hashlib
import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch
from pagewire_kernels import QuantizedWeight

from gpu_worker.errors import ModelLoadError
from gpu_worker.weights.checkpoint import TakesQuantized, TextAssets
from gpu_worker.weights.hf_text import read_text_assets
from gpu_worker.weights.safetensors import read_config, read_json

_SEED = 0
_SPREAD = 0.02
"""Standard deviation of matrices, as models are usually initialised."""
_METHODS = ("awq", "gptq")
_PROJECTIONS = (
    *(f"self_attn.{name}_proj" for name in ("q", "k", "v", "o")),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)


class DummyCheckpoint:
    """A Hugging Face directory whose weights, if there are any, are not read."""

    def __init__(self, path: Path, quantization: str = "auto") -> None:
        """``quantization`` is the flag's. Raises ModelLoadError."""
        if not path.is_dir():
            raise ModelLoadError(f"{path}: dummy weights need a directory with config.json and tokenizer.json")
        self.path = path
        self._raw_config = read_json(path / "config.json")
        self.config = read_config(path, self._raw_config)
        fields = self._raw_config.get("quantization_config") or {}
        self.quantization_method = str(fields.get("quant_method", quantization if quantization in _METHODS else "none"))
        self.quantization = ""
        self.quantized_modules: Collection[str] = ()
        self._bits, self._group_size = int(fields.get("bits", 4)), int(fields.get("group_size", 128))
        if self.quantization_method != "none":
            self._quantize()

    def _quantize(self) -> None:
        if self.quantization_method not in _METHODS or self._bits not in (2, 3, 4, 8):
            raise ModelLoadError(
                f"{self.path}: quant_method {self.quantization_method!r} of {self._bits} bits: "
                f"dummy weights can be {' or '.join(_METHODS)} of 2, 3, 4 or 8 bits"
            )
        self.quantization = f"{self.quantization_method} {self._bits} bit"
        self.quantized_modules = tuple(
            f"model.layers.{layer}.{name}" for layer in range(self.config.num_layers) for name in _PROJECTIONS
        )

    def keep_quantized(self, takes: TakesQuantized) -> Sequence[str]:
        """Nothing is quantised."""
        return ()

    def names(self) -> Sequence[str]:
        return ()

    def read(self, name: str) -> torch.Tensor:
        raise ModelLoadError(f"{self.path}: tensor {name!r} is missing: the weights are dummies")

    def read_quantized(self, module: str, num_outputs: int, num_inputs: int, device: torch.device) -> QuantizedWeight:
        """Equal for equal names; numbers spread as those of plain matrices are."""
        generator = torch.Generator(device).manual_seed(zlib.crc32(module.encode()))
        group_size = self._group_size if self._group_size > 0 else num_inputs
        groups, codes = -(-num_inputs // group_size), 1 << self._bits

        def draw(low: int, high: int, size: tuple[int, int]) -> torch.Tensor:
            return torch.randint(low, high, size, dtype=torch.uint8, generator=generator, device=device)

        spread = (torch.rand(num_outputs, groups, generator=generator, device=device) + 0.5) * _SPREAD
        return QuantizedWeight(
            codes=draw(0, codes, (num_outputs, num_inputs)),
            scales=(spread * (12**0.5 / codes)).to(torch.float16),
            zeros=draw(codes // 2 - 1, codes // 2 + 1, (num_outputs, groups)),
            group_size=group_size,
            bits=self._bits,
        )

    def text_assets(self) -> TextAssets:
        return read_text_assets(self.path, self._raw_config)

    def digest(self) -> str:
        """Of the config: equal configs get equal weights on one kind of device."""
        config = json.dumps([self._raw_config, self.quantization], sort_keys=True)
        return hashlib.sha256(b"dummy" + config.encode()).hexdigest()


def fill_with_noise(slots: Mapping[str, torch.Tensor]) -> None:
    """Norms of one, everything else normal, from a fixed seed."""
    device = next(iter(slots.values())).device
    generator = torch.Generator(device).manual_seed(_SEED)
    for name, slot in slots.items():
        if name.endswith("norm.weight"):
            slot.fill_(1)
        else:
            slot.normal_(0, _SPREAD, generator=generator)
