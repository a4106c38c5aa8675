"""What every checkpoint reader offers, whatever the file format.

Tensor names are Hugging Face's (``model.layers.0.self_attn.q_proj.weight``); a reader of another format translates.
Tensors are memory-mapped and handed out one at a time, so that loading needs about one copy of the weights.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from pagewire_kernels import QuantizedWeight

from gpu_worker.model_config import ModelConfig

FULL_DIGEST_BYTES = 512 << 20
"""Checkpoints up to this size are hashed whole."""
DIGEST_WINDOWS = 64
DIGEST_WINDOW_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class TextAssets:
    """What turns text into token ids and back, and the checkpoint's sampling defaults."""

    tokenizer_json: bytes
    chat_template: str = ""
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    eos_token_ids: Sequence[int] = ()
    bos_token_id: int | None = None
    generation_defaults: Mapping[str, float | int] = field(default_factory=dict)


TakesQuantized = Callable[[int, int, bool], bool]
"""(bits, group size, whether there are offsets) -> whether products are computed from such codes."""


class Checkpoint(Protocol):
    """A checkpoint opened for reading."""

    path: Path
    config: ModelConfig
    quantization: str
    """Of the stored weights; empty if they are stored as plain floats."""
    quantization_method: str
    """The word that ``--quantization`` knows it by: ``none``, ``gguf``, ``awq``, ``gptq``, ..."""
    quantized_modules: Collection[str]
    """Modules whose weights ``read_quantized`` gives, and ``names`` does not list; for example ``lm_head``."""

    def keep_quantized(self, takes: TakesQuantized) -> Sequence[str]:
        """Call before reading: formats that can be dequantised instead stay quantised as far as ``takes`` says.

        Returns the types that are dequantised.
        """
        ...

    def names(self) -> Sequence[str]:
        """Names of all tensors that ``read`` gives."""
        ...

    def read(self, name: str) -> torch.Tensor:
        """One tensor on the CPU as floats; it may share memory with the file and must not be written."""
        ...

    def read_quantized(self, module: str, num_outputs: int, num_inputs: int, device: torch.device) -> QuantizedWeight:
        """A quantised module's weight, unpacked on ``device``. Raises ModelLoadError naming what does not fit."""
        ...

    def text_assets(self) -> TextAssets:
        """Tokenizer and defaults. Raises ModelLoadError naming what is missing."""
        ...

    def digest(self) -> str:
        """Hexadecimal SHA-256 of configuration, tokenizer and weights; the same for the same content at any path."""
        ...


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes of one tensor in one file."""

    path: Path
    name: str
    start: int
    num_bytes: int


def digest_content(header: bytes, ranges: Iterable[ByteRange]) -> str:
    """SHA-256 over a header and tensors in name order.

    All bytes count while they are at most ``FULL_DIGEST_BYTES``; of larger checkpoints every tensor contributes its
    name, size and evenly spaced windows, the first and the last bytes included: seconds instead of minutes, and two
    checkpoints that differ in training differ everywhere.
    """
    ordered = sorted(ranges, key=lambda part: part.name)
    whole = sum(part.num_bytes for part in ordered) <= FULL_DIGEST_BYTES
    digest = hashlib.sha256(len(header).to_bytes(8, "little") + header)
    for part in ordered:
        digest.update(f"\0{part.name}\0{part.num_bytes}\0".encode())
        with part.path.open("rb") as file:
            for start, size in _windows(part.num_bytes, whole):
                file.seek(part.start + start)
                digest.update(file.read(size))
    return digest.hexdigest()


def _windows(num_bytes: int, whole: bool) -> Iterable[tuple[int, int]]:
    if whole:
        step = 8 << 20
        return ((start, min(step, num_bytes - start)) for start in range(0, num_bytes, step))
    last = max(0, num_bytes - DIGEST_WINDOW_BYTES)
    starts = sorted({last * window // (DIGEST_WINDOWS - 1) for window in range(DIGEST_WINDOWS)})
    return ((start, DIGEST_WINDOW_BYTES) for start in starts)
