"""Which format a checkpoint's quantised modules are in, from its configuration.

The configuration names the format and its variant; a module counts as quantised if its tensors are, whatever the
configuration lists as left out (``modules_to_not_convert``, ``ignore``, ``lm_head``).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from pagewire_kernels import QuantizedWeight

from gpu_worker.errors import ModelLoadError
from gpu_worker.weights.awq import AwqFormat
from gpu_worker.weights.compressed_tensors import parse_compressed_tensors
from gpu_worker.weights.float8 import Float8Format
from gpu_worker.weights.gptq import LABELS, GptqFormat
from gpu_worker.weights.quantization_fields import unsupported
from gpu_worker.weights.stored_module import StoredModule

_FILES = ("quantize_config.json", "quant_config.json")
"""Where older tools wrote what is now ``quantization_config`` in config.json."""


class WeightFormat(Protocol):
    """How one checkpoint stores quantised modules."""

    @property
    def method(self) -> str:
        """The word that ``--quantization`` insists on."""
        ...

    @property
    def label(self) -> str:
        """For people and the model card."""
        ...

    @property
    def markers(self) -> tuple[str, ...]:
        """Endings of tensors that show their module to be quantised."""
        ...

    @property
    def endings(self) -> tuple[str, ...]:
        """Of all tensors that are read by ``unpack`` or have no effect."""
        ...

    def unpack(self, module: StoredModule) -> QuantizedWeight:
        """Raises ModelLoadError naming the tensor that does not fit."""
        ...


_PARSERS: dict[str, Callable[[Mapping[str, Any]], WeightFormat]] = {
    "awq": AwqFormat.parse,
    "gptq": GptqFormat.parse,
    "compressed-tensors": parse_compressed_tensors,
    "fp8": Float8Format.parse,
    "fbgemm_fp8": Float8Format.parse,
}
_FOREIGN = ("rotation", "activation", "adapter", "is_marlin_format", "transform_config", "kv_cache_scheme")
"""Fields that change what the weights mean; none is understood."""


def read_format(
    directory: Path, config: Mapping[str, Any], read_json: Callable[[Path], dict[str, Any]]
) -> WeightFormat | None:
    """None if the configuration says nothing of quantisation. Raises ModelLoadError naming the field."""
    fields = config.get("quantization_config") or config.get("compression_config")
    for name in _FILES:
        if not fields and (directory / name).exists():
            fields = read_json(directory / name)
            fields.setdefault("quant_method", "awq" if name == "quant_config.json" else "gptq")
    if not fields:
        return None
    if not isinstance(fields, dict):
        raise ModelLoadError("config: quantization_config is not an object")
    _check_neighbour(directory / _FILES[0], fields, read_json)
    method = str(fields.get("quant_method", "")).lower()
    if method not in _PARSERS:
        raise unsupported("quant_method", fields.get("quant_method"), tuple(_PARSERS))
    for name in _FOREIGN:
        if fields.get(name):
            raise unsupported(name, fields[name], ("null",))
    return _PARSERS[method](fields)


def _check_neighbour(path: Path, fields: Mapping[str, Any], read_json: Callable[[Path], dict[str, Any]]) -> None:
    """Of two configurations config.json's counts, and tensors show what it has wrong, but for GPTQ's version."""
    if not path.exists():
        return
    beside = read_json(path)
    ours, theirs = ("gptq_v2" in (str(each.get(name)).lower() for name in LABELS) for each in (fields, beside))
    if ours != theirs and any(beside.get(name) is not None for name in LABELS):
        raise ModelLoadError(f"{path}: {LABELS[0]} is {'not ' * ours}gptq_v2; config.json says otherwise")
