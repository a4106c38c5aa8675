"""Tokenizer, chat template and generation defaults of a Hugging Face directory.

Read as data; nothing from the directory is executed. Later files refine earlier ones: ``chat_template.jinja`` over
``tokenizer_config.json``, and ``generation_config.json`` over ``config.json`` for the end-of-sequence ids.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpu_worker.errors import ModelLoadError
from gpu_worker.weights.checkpoint import TextAssets

_DEFAULTS: dict[str, tuple[type, Callable[[float], bool]]] = {
    "temperature": (float, lambda value: value >= 0),
    "top_p": (float, lambda value: 0 < value <= 1),
    "top_k": (int, lambda value: value >= 0),
    "min_p": (float, lambda value: 0 <= value <= 1),
    "repetition_penalty": (float, lambda value: value > 0),
}
"""Kind and range of each default; one outside its range is as good as none."""
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


def read_text_assets(directory: Path, config: Mapping[str, Any]) -> TextAssets:
    """Raises ModelLoadError if there is no tokenizer or a file is not readable."""
    tokenizer_config = _optional_json(directory / "tokenizer_config.json")
    generation = _optional_json(directory / "generation_config.json")
    eos = generation.get("eos_token_id", config.get("eos_token_id"))
    bos = generation.get("bos_token_id", config.get("bos_token_id"))
    return TextAssets(
        tokenizer_json=_tokenizer_json(directory),
        chat_template=_chat_template(directory, tokenizer_config),
        special_tokens={name: text for name in _SPECIAL if (text := _token_text(tokenizer_config.get(name)))},
        eos_token_ids=_ids(eos),
        bos_token_id=bos if isinstance(bos, int) else None,
        generation_defaults=sampling_defaults(generation),
    )


def sampling_defaults(generation: Mapping[str, Any]) -> dict[str, float | int]:
    """The defaults a request may inherit."""
    found: dict[str, float | int] = {}
    for name, (kind, is_valid) in _DEFAULTS.items():
        value = generation.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and is_valid(value):
            found[name] = kind(value)
    return found


def _optional_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: not readable as JSON ({error})") from None
    return value if isinstance(value, dict) else {}


def _tokenizer_json(directory: Path) -> bytes:
    path = directory / "tokenizer.json"
    if not path.exists():
        raise ModelLoadError(
            f"{path}: no such file; a tokenizer.json is needed (save_pretrained of a fast tokenizer writes one)"
        )
    return path.read_bytes()


def _chat_template(directory: Path, tokenizer_config: Mapping[str, Any]) -> str:
    path = directory / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):  # several named templates
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else ""


def _token_text(token: Any) -> str:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [entry for entry in values if isinstance(entry, int) and not isinstance(entry, bool)]
