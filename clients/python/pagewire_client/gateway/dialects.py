"""How chat completions and completions differ: the names around the same text.

Everything that is the same (ids, usage, finish reasons) is said once, in ``Dialect``.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from pagewire.v1 import generation_pb2

from .token_logprobs import chat_logprobs, completion_logprobs
from .upstream import Metadata, Upstream

_FINISH_REASONS = {
    generation_pb2.FINISH_REASON_STOP: "stop",
    generation_pb2.FINISH_REASON_LENGTH: "length",
    generation_pb2.FINISH_REASON_DEADLINE: "length",
}
"""A request that was cancelled from elsewhere, or whose output failed, ends with ``abort``."""


@dataclass(kw_only=True)
class Dialect(ABC):
    """One answer being written."""

    upstream: Upstream
    metadata: Metadata
    model: str
    num_top: int = 0
    """Log probabilities a position beside the chosen token's."""
    created: int = field(default_factory=lambda: int(time.time()))
    prefix = ""
    whole = ""
    part = ""

    def envelope(self, kind: str, request_id: str, choices: list[Any], usage: Any = None) -> dict[str, Any]:
        """What is around choices."""
        told = {
            "id": self.prefix + request_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
        return told if usage is None else {**told, "usage": usage}

    @abstractmethod
    async def choice(self, output: Any, index: int) -> dict[str, Any]:
        """A whole output."""

    @abstractmethod
    async def delta(self, delta: Any, index: int, offset: int) -> dict[str, Any]:
        """Part of an output."""

    @abstractmethod
    def end(self, finished: Any, index: int) -> dict[str, Any]:
        """An output's ending."""

    def begin(self, index: int) -> dict[str, Any] | None:
        """What comes before an output's first part."""
        return None


class Chat(Dialect):
    """`/v1/chat/completions`."""

    prefix, whole, part = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    async def choice(self, output: Any, index: int) -> dict[str, Any]:
        """A whole output."""
        logprobs = await self._logprobs(output)
        message = {"role": "assistant", "content": output.text}
        return {"index": index, "message": message, "logprobs": logprobs, **ending(output.finished)}

    def begin(self, index: int) -> dict[str, Any] | None:
        """Who speaks."""
        return {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}

    async def delta(self, delta: Any, index: int, offset: int) -> dict[str, Any]:
        """Part of an output."""
        logprobs = await self._logprobs(delta)
        return {"index": index, "delta": {"content": delta.text}, "logprobs": logprobs, "finish_reason": None}

    def end(self, finished: Any, index: int) -> dict[str, Any]:
        """An output's ending."""
        return {"index": index, "delta": {}, "logprobs": None, **ending(finished)}

    async def _logprobs(self, part: Any) -> dict[str, Any] | None:
        if not part.HasField("logprobs"):
            return None
        return await chat_logprobs(self.upstream, self.metadata, part.logprobs, part.token_ids, self.num_top)


class Completion(Dialect):
    """`/v1/completions`."""

    prefix, whole, part = "cmpl-", "text_completion", "text_completion"

    async def choice(self, output: Any, index: int) -> dict[str, Any]:
        """A whole output."""
        logprobs = await self._logprobs(output, 0)
        return {"index": index, "text": output.text, "logprobs": logprobs, **ending(output.finished)}

    async def delta(self, delta: Any, index: int, offset: int) -> dict[str, Any]:
        """Part of an output."""
        logprobs = await self._logprobs(delta, offset)
        return {"index": index, "text": delta.text, "logprobs": logprobs, "finish_reason": None}

    def end(self, finished: Any, index: int) -> dict[str, Any]:
        """An output's ending."""
        return {"index": index, "text": "", "logprobs": None, **ending(finished)}

    async def _logprobs(self, part: Any, offset: int) -> dict[str, Any] | None:
        if not part.HasField("logprobs"):
            return None
        found = part.logprobs
        return await completion_logprobs(self.upstream, self.metadata, found, part.token_ids, self.num_top, offset)


def ending(finished: Any) -> dict[str, Any]:
    """Why an output ended, and what matched (as vLLM tells it)."""
    matched = finished.WhichOneof("matched")
    return {
        "finish_reason": _FINISH_REASONS.get(finished.finish_reason, "abort"),
        "stop_reason": None if matched != "stop_string" else finished.stop_string,
    }


def usage_of(summaries: list[Any]) -> dict[str, Any]:
    """What some requests used, together."""
    usages = [summary.usage for summary in summaries]
    prompt, output = sum(each.prompt_tokens for each in usages), sum(each.output_tokens for each in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": sum(each.cached_tokens for each in usages)},
    }
