"""Which model a command means, with progress bars while it is fetched."""

from __future__ import annotations

from pathlib import Path

from .. import model_path
from .output import progress_bars


def local_model(name: str | None) -> str:
    """Path of a model on this machine, fetched if need be. Raises: FetchError."""
    if name is not None:
        return model_path.local_model(name)
    with progress_bars() as progress:
        return model_path.local_model(None, progress)


def size_on_disk(model: str) -> int:
    """Bytes of the files of a model's weights."""
    path = Path(model)
    files = [path] if path.is_file() else [*path.glob("*.safetensors"), *path.glob("*.gguf")]
    return sum(file.stat().st_size for file in files)
