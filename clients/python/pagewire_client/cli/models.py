"""Which model a command means: a directory, a file, a hub id, or the embedded one."""

from __future__ import annotations

from pathlib import Path

from ..fetch import fetch_embedded
from ..hub import fetch_from_hub, is_hub_id
from .failures import UsageError
from .output import progress_bars


def local_model(name: str | None) -> str:
    """Path of a model on this machine, fetched if need be. Raises: UsageError, FetchError."""
    if name is None:
        with progress_bars() as progress:
            return str(fetch_embedded(progress))
    path = Path(name).expanduser()
    if path.exists():
        return str(path.resolve())
    if path.suffix == ".gguf" or not is_hub_id(name):
        raise UsageError(f"no model at {name}: MODEL is a directory, a .gguf file, a hub id (owner/name), or left out")
    return str(fetch_from_hub(name))


def size_on_disk(model: str) -> int:
    """Bytes of a model's weights."""
    path = Path(model)
    files = [path] if path.is_file() else [*path.glob("*.safetensors"), *path.glob("*.gguf")]
    return sum(file.stat().st_size for file in files)
