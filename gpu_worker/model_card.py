"""The model card a worker hands to the scheduler: everything a front must know of the model.

The digest names configuration, tokenizer and weights by content (see weights.checkpoint.digest_content); the dtype
in memory is not part of it but of the cache fingerprint, which says what a page's content is good for.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tokenizers import Tokenizer

from gpu_worker.errors import ModelLoadError
from gpu_worker.weights.checkpoint import Checkpoint, TextAssets
from gpu_worker.weights.hf_text import read_text_assets

HASH_VERSION = 1
"""Version of the page hash scheme this worker's inventory speaks of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """Fields of worker.proto's ModelCard."""

    name: str
    architecture: str
    tokenizer_json: bytes
    chat_template: str
    special_tokens: Mapping[str, str]
    eos_token_ids: Sequence[int]
    bos_token_id: int | None
    vocab_size: int
    """Ids below it may be given and sampled: the tokenizer's, as far as the model has rows for them."""
    max_model_len: int
    dtype: str
    kv_cache_dtype: str
    quantization: str
    digest: str
    generation_defaults: Mapping[str, float | int]


def make_model_card(
    checkpoint: Checkpoint,
    *,
    name: str,
    max_model_len: int,
    dtype: str,
    kv_cache_dtype: str,
    tokenizer: Path | None = None,
) -> ModelCard:
    """``tokenizer`` is a directory whose tokenizer and chat template take the place of the checkpoint's.

    Raises ModelLoadError if the tokenizer is missing, unreadable, or knows no token the model has.
    """
    text, digest = checkpoint.text_assets(), checkpoint.digest()
    if tokenizer is not None:
        text = _with_tokenizer(text, tokenizer)
        digest = hashlib.sha256(digest.encode() + text.tokenizer_json).hexdigest()
    known = _read_tokenizer(checkpoint, text.tokenizer_json)
    text = _with_ids_of_tokens(text, known)
    vocab_size = min(_num_token_ids(checkpoint, known), checkpoint.config.vocab_size)
    ids = [("eos_token_id", token_id) for token_id in text.eos_token_ids]
    ids += [] if text.bos_token_id is None else [("bos_token_id", text.bos_token_id)]
    for field, token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise ModelLoadError(f"{checkpoint.path}: {field} {token_id} is outside the vocabulary of {vocab_size}")
    return ModelCard(
        name=name,
        architecture=checkpoint.config.architecture,
        tokenizer_json=text.tokenizer_json,
        chat_template=text.chat_template,
        special_tokens=text.special_tokens,
        eos_token_ids=text.eos_token_ids,
        bos_token_id=text.bos_token_id,
        vocab_size=vocab_size,
        max_model_len=max_model_len,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        quantization=checkpoint.quantization,
        digest=digest,
        generation_defaults=text.generation_defaults,
    )


def _with_tokenizer(text: TextAssets, directory: Path) -> TextAssets:
    """Another tokenizer; which ids end an output, and the sampling defaults, stay the checkpoint's."""
    try:
        other = read_text_assets(directory, {})
    except ModelLoadError as error:
        raise ModelLoadError(f"--tokenizer {directory}: {error}") from None
    return replace(
        text,
        tokenizer_json=other.tokenizer_json,
        chat_template=other.chat_template or text.chat_template,
        special_tokens={**text.special_tokens, **other.special_tokens},
    )


def _with_ids_of_tokens(text: TextAssets, tokenizer: Tokenizer) -> TextAssets:
    """Where the checkpoint names no ids that begin and end a sequence, those of the tokenizer's tokens do."""
    bos, eos = (tokenizer.token_to_id(text.special_tokens.get(name, "")) for name in ("bos_token", "eos_token"))
    return replace(
        text,
        bos_token_id=bos if text.bos_token_id is None else text.bos_token_id,
        eos_token_ids=text.eos_token_ids or ([] if eos is None else [eos]),
    )


def _read_tokenizer(checkpoint: Checkpoint, tokenizer_json: bytes) -> Tokenizer:
    try:
        return Tokenizer.from_buffer(tokenizer_json)
    except Exception as error:  # the tokenizers library raises plain Exception
        raise ModelLoadError(f"{checkpoint.path}: the tokenizer is not readable ({error})") from None


def _num_token_ids(checkpoint: Checkpoint, tokenizer: Tokenizer) -> int:
    ids = tokenizer.get_vocab(with_added_tokens=True).values()
    if not ids:
        raise ModelLoadError(f"{checkpoint.path}: the tokenizer has no tokens")
    return max(ids) + 1


def cache_fingerprint(card: ModelCard, page_size: int, kernels: str) -> bytes:
    """16 bytes naming everything a cached page's content depends on beside its tokens."""
    parts = (card.digest, card.dtype, card.kv_cache_dtype, str(page_size), kernels, str(HASH_VERSION))
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).digest()
