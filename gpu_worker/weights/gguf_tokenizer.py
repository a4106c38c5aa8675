"""Builds a tokenizer.json from GGUF metadata.

Byte-level BPE vocabularies (``tokenizer.ggml.model`` gpt2) are built here, with the pre-tokenizer that
``tokenizer.ggml.pre`` names: the wrong split changes token ids silently, so an unknown name is refused. SentencePiece
vocabularies (``llama``) go through transformers' own converter, imported only then.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from gpu_worker.errors import ModelLoadError
from gpu_worker.weights.checkpoint import TextAssets

_CONTROL, _USER_DEFINED = 3, 4
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TOKEN_IDS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}
_END_OF_TURN = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")

Metadata = Mapping[str, Any]
T = TypeVar("T")
_KINDS: dict[type, str] = {str: "texts", int: "integers", float: "floats"}


def read_text_assets(path: Path, metadata: Metadata) -> TextAssets:
    """Raises ModelLoadError naming the metadata that is missing or not supported."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not isinstance(tokens[0], str):
        raise ModelLoadError(f"{path}: metadata 'tokenizer.ggml.tokens' is missing")
    ids = {key: _token_id(path, metadata, key, len(tokens)) for key in {*_TOKEN_IDS.values(), *_END_OF_TURN}}
    special = {name: tokens[token_id] for name, key in _TOKEN_IDS.items() if (token_id := ids[key]) is not None}
    ends = [token_id for key in _END_OF_TURN if (token_id := ids[key]) is not None]
    bos = ids[_TOKEN_IDS["bos_token"]]
    template = metadata.get("tokenizer.chat_template", "")
    if not isinstance(template, str):
        raise ModelLoadError(f"{path}: metadata 'tokenizer.chat_template' is no text")
    return TextAssets(
        tokenizer_json=_tokenizer(path, metadata, tokens, bos).to_str().encode(),
        chat_template=template,
        special_tokens=special,
        eos_token_ids=list(dict.fromkeys(ends)),
        bos_token_id=bos,
    )


def _token_id(path: Path, metadata: Metadata, key: str, num_tokens: int) -> int | None:
    token_id = metadata.get(key)
    if token_id is None:
        return None
    if not isinstance(token_id, int) or not 0 <= token_id < num_tokens:
        raise ModelLoadError(f"{path}: metadata {key!r} is {token_id!r}; there are {num_tokens} tokens")
    return token_id


def _tokenizer(path: Path, metadata: Metadata, tokens: list[str], bos: int | None) -> Tokenizer:
    for key, kind in (("tokenizer.ggml.scores", float), ("tokenizer.ggml.token_type", int)):
        entries = _list(path, metadata, key, kind)
        if entries and len(entries) != len(tokens):
            raise ModelLoadError(f"{path}: metadata {key!r} has {len(entries)} entries; there are {len(tokens)} tokens")
    model = metadata.get("tokenizer.ggml.model")
    if model == "gpt2":
        return _byte_level(path, metadata, tokens, bos)
    if model == "llama":
        return _sentencepiece(path, metadata.get("tokenizer.ggml.add_space_prefix") is not False)
    raise ModelLoadError(f"{path}: metadata tokenizer.ggml.model {model!r} is not supported; supported: gpt2, llama")


def _byte_level(path: Path, metadata: Metadata, tokens: list[str], bos: int | None) -> Tokenizer:
    merges = [_merge(path, line) for line in _list(path, metadata, "tokenizer.ggml.merges", str)]
    vocab = {text: token_id for token_id, text in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise ModelLoadError(f"{path}: metadata tokenizer.ggml.tokens holds the same token twice")
    try:
        tokenizer = Tokenizer(
            models.BPE(vocab, merges, ignore_merges=metadata.get("tokenizer.ggml.pre") == "llama-bpe")
        )
    except Exception as error:  # the tokenizers library raises plain Exception
        raise ModelLoadError(f"{path}: vocabulary and merges do not fit together ({error})") from None
    tokenizer.pre_tokenizer = _pre_tokenizer(path, metadata.get("tokenizer.ggml.pre", "default"))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = _post_processor(tokens, bos if metadata.get("tokenizer.ggml.add_bos_token") else None)
    kinds = _list(path, metadata, "tokenizer.ggml.token_type", int)
    for text, kind in zip(tokens, kinds, strict=bool(kinds)):
        if kind in (_CONTROL, _USER_DEFINED):
            token = AddedToken(text, special=kind == _CONTROL, normalized=False)
            (tokenizer.add_special_tokens if kind == _CONTROL else tokenizer.add_tokens)([token])
    return tokenizer


def _list(path: Path, metadata: Metadata, key: str, kind: type[T]) -> list[T]:
    """Entries of one kind; none where the metadata says nothing."""
    entries = metadata.get(key)
    if entries is None:
        return []
    if not isinstance(entries, list) or not all(isinstance(entry, kind) for entry in entries):
        raise ModelLoadError(f"{path}: metadata {key!r} is no list of {_KINDS[kind]}")
    return entries


def _merge(path: Path, line: str) -> tuple[str, str]:
    left, _, right = line.partition(" ")
    if not left or not right:
        raise ModelLoadError(f"{path}: metadata tokenizer.ggml.merges holds an entry that is no pair")
    return left, right


def _pre_tokenizer(path: Path, name: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name in ("default", "gpt-2"):
        return byte_level
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    if name in ("llama-bpe", "llama3", "llama-v3"):
        split = pre_tokenizers.Split(Regex(_LLAMA3_SPLIT), behavior="isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    raise ModelLoadError(
        f"{path}: metadata tokenizer.ggml.pre {name!r} is not supported; supported: default, gpt-2, smollm, llama-bpe"
    )


def _post_processor(tokens: list[str], bos: int | None) -> Any:
    """Puts ``bos`` before every text, if the file asks for that."""
    byte_level = processors.ByteLevel(trim_offsets=False)
    if bos is None:
        return byte_level
    text = tokens[bos]
    template = processors.TemplateProcessing(
        single=f"{text} $A", pair=f"{text} $A {text}:1 $B:1", special_tokens=[(text, bos)]
    )
    return processors.Sequence([byte_level, template])


def _sentencepiece(path: Path, adds_blank: bool) -> Tokenizer:
    """transformers' converter puts a blank before every text, whatever the file says."""
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name, local_files_only=True)
    except (ValueError, KeyError, TypeError, ImportError, OSError) as error:
        raise ModelLoadError(f"{path}: the SentencePiece vocabulary cannot be converted ({error})") from None
    backend: Tokenizer = loaded.backend_tokenizer
    if not adds_blank:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
        backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend
