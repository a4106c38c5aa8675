"""Log probabilities in the two shapes OpenAI has for them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from pagewire.v1 import generation_pb2

from ..convert import logprobs as columns_of
from ..results import TokenLogprob
from .upstream import Metadata, Upstream

Texts = dict[int, str]


async def chat_logprobs(
    upstream: Upstream, metadata: Metadata, found: generation_pb2.Logprobs, token_ids: Sequence[int], num_top: int
) -> dict[str, Any]:
    """As chat completions tell them."""
    positions = columns_of(found)
    texts = await _texts(upstream, metadata, positions)
    content = []
    for token_id, entries in zip(token_ids, positions, strict=True):
        chosen = next(entry for entry in entries if entry.token_id == token_id)
        top = [_entry(entry, texts) for entry in entries[:num_top]]
        content.append({**_entry(chosen, texts), "top_logprobs": top})
    return {"content": content, "refusal": None}


async def completion_logprobs(
    upstream: Upstream,
    metadata: Metadata,
    found: generation_pb2.Logprobs,
    token_ids: Sequence[int],
    num_top: int,
    offset: int,
) -> dict[str, Any]:
    """As completions tell them; ``offset`` is how long the text before was."""
    positions = columns_of(found)
    texts = await _texts(upstream, metadata, positions)
    told: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for token_id, entries in zip(token_ids, positions, strict=True):
        chosen = next(entry for entry in entries if entry.token_id == token_id)
        told["tokens"].append(texts[token_id])
        told["token_logprobs"].append(chosen.logprob)
        told["top_logprobs"].append({texts[entry.token_id]: entry.logprob for entry in entries[:num_top]})
        told["text_offset"].append(offset)
        offset += len(texts[token_id])
    return told


async def _texts(upstream: Upstream, metadata: Metadata, positions: Sequence[Sequence[TokenLogprob]]) -> Texts:
    wanted = sorted({entry.token_id for entries in positions for entry in entries})
    found = await asyncio.gather(*(upstream.text_of(token_id, metadata) for token_id in wanted))
    return dict(zip(wanted, found, strict=True))


def _entry(entry: TokenLogprob, texts: Texts) -> dict[str, Any]:
    text = texts[entry.token_id]
    is_whole = "\ufffd" not in text
    return {"token": text, "logprob": entry.logprob, "bytes": list(text.encode()) if is_whole else None}
