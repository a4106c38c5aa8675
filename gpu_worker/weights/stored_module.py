"""The tensors of one quantised module, and the checks that every format makes of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from gpu_worker.errors import ModelLoadError

SCALE_TYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModule:
    """A projection as the checkpoint has it. Every ``take`` raises ModelLoadError naming the tensor."""

    path: Path
    name: str
    """For example ``model.layers.0.mlp.down_proj``."""
    tensors: Mapping[str, torch.Tensor]
    """By what follows the name: ``qweight``, ``scales``, ..."""
    num_outputs: int
    num_inputs: int

    def take(self, ending: str, dtypes: tuple[torch.dtype, ...], shape: tuple[int, ...] | None = None) -> torch.Tensor:
        """A tensor that must be there, of one of the types and, where given, of the shape."""
        tensor = self.tensors.get(ending)
        if tensor is None:
            raise self.error(ending, "is missing")
        if tensor.dtype not in dtypes:
            wanted = " or ".join(_name(dtype) for dtype in dtypes)
            raise self.error(ending, f"has dtype {_name(tensor.dtype)}; {wanted} is needed")
        if shape is not None and tuple(tensor.shape) != shape:
            raise self.error(ending, f"has shape {list(tensor.shape)}; {list(shape)} is needed")
        return tensor

    def take_scales(self, ending: str, shape: tuple[int, ...] | None = None) -> torch.Tensor:
        """Scales: finite floats."""
        scales = self.take(ending, SCALE_TYPES, shape)
        if not bool(scales.isfinite().all()):
            raise self.error(ending, "holds NaN or infinity")
        return scales

    def error(self, ending: str, what: str) -> ModelLoadError:
        return ModelLoadError(f"{self.path}: tensor {self.name + '.' + ending!r} {what}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
