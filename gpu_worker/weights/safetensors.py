"""Reads a Hugging Face directory: config.json, safetensors (single or sharded), tokenizer.json and their neighbours.

With an index, only the files and tensors it names are read, each tensor from the file the index gives; strangers beside
them do not matter. Without one there must be exactly one safetensors file. Pickled weights (.bin, .pt) are never
opened: unpickling runs code from the file.
"""

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from pagewire_kernels import QuantizedWeight
from safetensors import SafetensorError, safe_open

from gpu_worker.errors import ModelLoadError
from gpu_worker.model_config import ModelConfig, from_hf_config
from gpu_worker.weights.checkpoint import ByteRange, TakesQuantized, TextAssets, digest_content
from gpu_worker.weights.hf_text import read_text_assets
from gpu_worker.weights.quantization import read_format
from gpu_worker.weights.stored_module import StoredModule

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_HEADER_BYTES = 100 << 20


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ModelLoadError naming the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelLoadError(f"{path}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: not readable as JSON ({error})") from None
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: a JSON object is needed")
    return value


def read_config(directory: Path, config: dict[str, Any]) -> ModelConfig:
    """What its config.json says. Raises ModelLoadError naming file and field."""
    try:
        return from_hf_config(config)
    except ModelLoadError as error:
        raise ModelLoadError(f"{directory / 'config.json'}: {str(error).removeprefix('config: ')}") from None


class SafetensorsCheckpoint:
    """A directory with config.json and safetensors weights."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._raw_config = read_json(path / "config.json")
        self.config = read_config(path, self._raw_config)
        self._format = read_format(path, self._raw_config, read_json)
        self._files = _locate_tensors(path)
        self._handles: dict[Path, Any] = {}
        self.quantization = "" if self._format is None else self._format.label
        self.quantization_method = "none" if self._format is None else self._format.method
        self.quantized_modules: Collection[str] = self._find_quantized()

    def keep_quantized(self, takes: TakesQuantized) -> Sequence[str]:
        """All that is quantised stays so."""
        return ()

    def names(self) -> Sequence[str]:
        return sorted(name for name in self._files if not self._is_part(name))

    def read_quantized(self, module: str, num_outputs: int, num_inputs: int, device: torch.device) -> QuantizedWeight:
        if self._format is None:
            raise ModelLoadError(f"{self.path}: {module!r} is not quantised")
        names = {ending: f"{module}.{ending}" for ending in self._format.endings}
        stored = StoredModule(
            path=self.path,
            name=module,
            tensors={ending: self._read(name).to(device) for ending, name in names.items() if name in self._files},
            num_outputs=num_outputs,
            num_inputs=num_inputs,
        )
        return self._format.unpack(stored)

    def _find_quantized(self) -> frozenset[str]:
        """Modules with a tensor that only quantised ones have."""
        markers = () if self._format is None else self._format.markers
        return frozenset(stem for stem, ending in map(_split, self._files) if ending in markers)

    def _is_part(self, name: str) -> bool:
        """Whether the tensor is read with its quantised module."""
        stem, ending = _split(name)
        return self._format is not None and ending in self._format.endings and stem in self.quantized_modules

    def _read(self, name: str) -> torch.Tensor:
        path = self._files[name]
        try:
            tensor: torch.Tensor = self._open(path).get_tensor(name)
        except SafetensorError as error:
            raise ModelLoadError(f"{path}: tensor {name!r} cannot be read ({error})") from None
        return tensor

    def read(self, name: str) -> torch.Tensor:
        path, tensor = self._files[name], self._read(name)
        if not tensor.dtype.is_floating_point or tensor.dtype.itemsize < 2:
            raise ModelLoadError(f"{path}: tensor {name!r} has dtype {tensor.dtype}; a plain float type is needed")
        return tensor

    def text_assets(self) -> TextAssets:
        return read_text_assets(self.path, self._raw_config)

    def digest(self) -> str:
        tokenizer = self.path / "tokenizer.json"
        header = json.dumps(self._raw_config, sort_keys=True).encode()
        header += tokenizer.read_bytes() if tokenizer.exists() else b""
        spans = {path: _tensor_spans(path) for path in set(self._files.values())}
        return digest_content(header, [ByteRange(path, name, *spans[path][name]) for name, path in self._files.items()])

    def _open(self, path: Path) -> Any:
        if path not in self._handles:
            self._handles[path] = _open_file(path)
        return self._handles[path]


def _split(name: str) -> tuple[str, str]:
    """A tensor's module and what follows its name."""
    module, _, ending = name.rpartition(".")
    return module, ending


def _open_file(path: Path) -> Any:
    try:
        return safe_open(str(path), framework="pt", device="cpu")
    except FileNotFoundError:
        raise ModelLoadError(f"{path}: no such file") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelLoadError(f"{path}: truncated or not a safetensors file ({error})") from None


def _locate_tensors(directory: Path) -> dict[str, Path]:
    """Which file each tensor is read from."""
    if (directory / INDEX).exists():
        return _from_index(directory)
    path = directory / SINGLE
    if not path.exists():
        path = _only_file(directory)
    return dict.fromkeys(_open_file(path).keys(), path)


def _from_index(directory: Path) -> dict[str, Path]:
    mapping = read_json(directory / INDEX).get("weight_map")
    if not isinstance(mapping, dict) or not mapping:
        raise ModelLoadError(f"{directory / INDEX}: weight_map is missing or empty")
    names_in: dict[str, set[str]] = {}
    for name, file in mapping.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise ModelLoadError(f"{directory / INDEX}: {name!r} is in {file!r}; files beside the index alone are read")
        if file not in names_in:
            names_in[file] = set(_open_file(directory / file).keys())
        if name not in names_in[file]:
            raise ModelLoadError(f"{directory / file}: tensor {name!r} is missing; the index says it is there")
    return {name: directory / file for name, file in mapping.items()}


def _only_file(directory: Path) -> Path:
    found = sorted(directory.glob("*.safetensors"))
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(path.name for path in found)
        raise ModelLoadError(
            f"{directory}: several safetensors files ({names}) and no {INDEX}; which belong together is unclear"
        )
    pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in directory.glob(pattern))
    if pickles:
        raise ModelLoadError(
            f"{directory}: only pickled weights ({pickles[0]}); unpickling can run code; safetensors or GGUF is needed"
        )
    raise ModelLoadError(f"{directory}: no safetensors file")


def _tensor_spans(path: Path) -> dict[str, tuple[int, int]]:
    """Start and size in bytes of each tensor, from the file's header."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > MAX_HEADER_BYTES:
            raise ModelLoadError(f"{path}: header of {size} bytes is not plausible")
        header = json.loads(file.read(size))
    spans = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            spans[name] = (8 + size + start, end - start)
    return spans
