"""Which model a name means: a directory, a file, a hub id, or the embedded one."""

from __future__ import annotations

from pathlib import Path

from .errors import FetchError
from .fetch import Progress, fetch_embedded
from .hub import fetch_from_hub, is_hub_id


def local_model(name: str | None, progress: Progress | None = None) -> str:
    """Path of a model on this machine, fetched if need be; None is the embedded one. Raises: FetchError."""
    if name is None:
        return str(fetch_embedded(progress))
    path = Path(name).expanduser()
    if path.exists():
        return str(path.resolve())
    if path.suffix == ".gguf" or not is_hub_id(name):
        raise FetchError(f"no model at {name}: MODEL is a directory, a .gguf file, a hub id (owner/name), or left out")
    return str(fetch_from_hub(name))
