"""Tokenizer, chat template and generation defaults of a Hugging Face directory.

Read as data; nothing from the directory is executed. A field of a kind that it cannot have is refused by file and name:
a template or an id that is silently dropped shows only in what the model says. Of several files one counts most:
``chat_template.jinja`` before ``tokenizer_config.json`` before ``chat_template.json``; for the ids that begin and end a
sequence ``generation_config.json`` before ``config.json``; for special tokens ``tokenizer_config.json`` before the
``special_tokens_map.json`` of older checkpoints.
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
_LARGEST = 2**31
"""Numbers from here on, infinity among them, are no default either."""
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


def read_text_assets(directory: Path, config: Mapping[str, Any]) -> TextAssets:
    """Raises ModelLoadError if there is no tokenizer or a file is not readable."""
    tokenizer_file, generation_file = directory / "tokenizer_config.json", directory / "generation_config.json"
    tokenizer_config, generation = _optional_json(tokenizer_file), _optional_json(generation_file)
    ids = {
        name: _ids(generation, name, generation_file)
        if generation.get(name) is not None
        else _ids(config, name, directory / "config.json")
        for name in ("eos_token_id", "bos_token_id")
    }
    for name in _DEFAULTS:
        if not isinstance(generation.get(name), int | float | None) or isinstance(generation.get(name), bool):
            raise _wrong(generation_file, name, generation[name], "a number")
    return TextAssets(
        tokenizer_json=_tokenizer_json(directory),
        chat_template=_chat_template(directory, tokenizer_config),
        special_tokens={
            **_special_tokens(directory / "special_tokens_map.json"),
            **_special_tokens(tokenizer_file),
        },
        eos_token_ids=ids["eos_token_id"],
        bos_token_id=ids["bos_token_id"][0] if ids["bos_token_id"] else None,
        generation_defaults=sampling_defaults(generation),
    )


def _wrong(path: Path, name: str, value: Any, needed: str) -> ModelLoadError:
    return ModelLoadError(f"{path}: {name} is {str(value)[:80]!r}; {needed} is needed")


def sampling_defaults(generation: Mapping[str, Any]) -> dict[str, float | int]:
    """The defaults a request may inherit."""
    found: dict[str, float | int] = {}
    for name, (kind, is_valid) in _DEFAULTS.items():
        value = generation.get(name)
        if isinstance(value, int | float) and abs(value) < _LARGEST and is_valid(value):
            found[name] = kind(value)
    return found


def _optional_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: not readable as JSON ({error})") from None
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: a JSON object is needed")
    return value


def _tokenizer_json(directory: Path) -> bytes:
    path = directory / "tokenizer.json"
    if not path.exists():
        raise ModelLoadError(
            f"{path}: no such file; a tokenizer.json is needed (save_pretrained of a fast tokenizer writes one)"
        )
    return _content(path)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read ({error.strerror})") from None


def _chat_template(directory: Path, tokenizer_config: Mapping[str, Any]) -> str:
    path = directory / "chat_template.jinja"
    if path.exists():
        try:
            return _content(path).decode()
        except UnicodeDecodeError as error:
            raise ModelLoadError(f"{path}: not UTF-8 ({error})") from None
    path = directory / "tokenizer_config.json"
    template = tokenizer_config.get("chat_template")
    if template is None:
        path = directory / "chat_template.json"
        template = _optional_json(path).get("chat_template")
    if isinstance(template, list):  # several named templates
        template = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
    if isinstance(template, dict):
        template = template.get("default")
    if not isinstance(template, str | None):
        raise _wrong(path, "chat_template", template, "a text")
    return template or ""


def _special_tokens(path: Path) -> dict[str, str]:
    """Those that a file names."""
    values, found = _optional_json(path), dict[str, str]()
    for name in _SPECIAL:
        token = values.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        if not isinstance(text, str | None):
            raise _wrong(path, name, token, "a text")
        if text:
            found[name] = text
    return found


def _ids(values: Mapping[str, Any], name: str, path: Path) -> list[int]:
    """Of one id or a list; none of them null."""
    value = values.get(name)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(entry, int) and not isinstance(entry, bool) for entry in ids):
        raise _wrong(path, name, value, "an integer or a list of them")
    return ids
