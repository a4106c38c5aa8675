"""Fields of a checkpoint's quantisation config, checked one by one. All raise ModelLoadError naming the field."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpu_worker.errors import ModelLoadError

SECTION = "quantization_config"


def integer(fields: Mapping[str, Any], name: str, allowed: Sequence[int]) -> int:
    """An integer that must be there."""
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value not in allowed:
        raise unsupported(name, value, allowed)
    return value


def flag(fields: Mapping[str, Any], name: str, default: bool) -> bool:
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise unsupported(name, value, ("true", "false"))
    return value


def choice(fields: Mapping[str, Any], name: str, allowed: Sequence[str], default: str) -> str:
    """A word, whatever its case."""
    value = fields.get(name)
    word = default if value is None else str(value).lower()
    if word not in allowed:
        raise unsupported(name, value, allowed)
    return word


def unsupported(name: str, value: Any, allowed: Sequence[Any]) -> ModelLoadError:
    what = "is missing" if value is None else f"{repr(value)[:80]} is not supported"
    return ModelLoadError(f"config: {SECTION}.{name} {what}; supported: {', '.join(map(str, allowed))}")


def group_size_of(configured: int, num_inputs: int) -> int:
    """-1 stands for one group of all inputs."""
    return num_inputs if configured == -1 else min(configured, num_inputs)
