"""What the library takes from the environment; nothing else in it reads ``os.environ``."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """Where fetched models live: ``$XDG_CACHE_HOME/pagewire/models``, or the same under ``~/.cache``."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "pagewire" / "models"


def state_directory() -> Path:
    """Default of ``--state-dir``: ``$XDG_RUNTIME_DIR/pagewire``, or ``/tmp/pagewire-UID``."""
    root = os.environ.get("XDG_RUNTIME_DIR")
    return Path(root) / "pagewire" if root else Path(f"/tmp/pagewire-{os.getuid()}")


def setting(name: str) -> str | None:
    """The value of the service flag ``name`` (such as "internal-port") in the environment."""
    return os.environ.get("PAGEWIRE_" + name.upper().replace("-", "_"))


def child_environment(**changes: str) -> dict[str, str]:
    """The environment of a child process: this one's, with changes."""
    return {**os.environ, **changes}


def visible_gpus() -> tuple[str, ...]:
    """Ids of the GPUs this process may use, without asking a driver."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return tuple(gpu.strip() for gpu in chosen.split(",") if gpu.strip())
    return tuple(str(i) for i in range(sum(1 for _ in Path("/dev").glob("nvidia[0-9]*"))))
