"""From the prompt a caller sends to the token ids the model sees.

Tokenizing is pure computation of the served model and may take long: `PromptReader` runs it in a thread unless the
prompt is short, and refuses by its bytes alone what can never fit. Chats have threads of their own, which wait for the
processes that render them: a template that takes long delays chats alone. Invariant: a prompt that comes out holds at
least one token and leaves room for at least one more.
"""

import asyncio
import json
from array import array
from concurrent.futures import Executor
from typing import Any

from scheduler_svc.front.chat_template import ChatError
from scheduler_svc.front.endings import DEFAULT_RETRY_MS, EARLY_SECONDS, deadline_error
from scheduler_svc.front.errors import ExhaustedError, InvalidRequestError, Reason
from scheduler_svc.front.sent_ids import kept_ids, num_kept_ids
from scheduler_svc.front.served_model import ServedModel
from scheduler_svc.front.waiting import within

INLINE_BYTES = 2048
"""Shorter prompts are tokenized on the loop: that costs less than handing them to a thread."""
TRUNCATED_TEXT_BYTES = 1024 * 1024
"""With truncation a text may be longer than the model's limit, up to so much."""
MAX_WAITING_BYTES = 256 * 1024 * 1024
"""Text that may wait for a thread."""


class PromptReader:
    """Tokenizes prompts for requests; one a process."""

    def __init__(self, executor: Executor, chat_executor: Executor) -> None:
        self._executor = executor
        self._chat_executor = chat_executor
        self._num_waiting_bytes = 0

    async def read(self, request: Any, model: ServedModel, *, deadline: float | None = None) -> "array[int]":
        """The token ids of a request's checked prompt (a GenerateRequest or TokenizeRequest), truncated if it says so.

        Raises: InvalidRequestError if the template refuses it or it is far too long; DeadlinePassedError;
        ExhaustedError.
        """
        if self.is_short(request):
            return self.read_short(request, model, deadline=deadline)
        left = _seconds_left(deadline)
        size = _num_bytes(request)
        _check_size(request, model, size)
        is_chat = request.WhichOneof("prompt") == "chat"
        executor = self._chat_executor if is_chat else self._executor
        if self._num_waiting_bytes and self._num_waiting_bytes + size > MAX_WAITING_BYTES:
            raise ExhaustedError(
                "too much text waits to be tokenized", reason=Reason.QUEUE_FULL.value, retry_ms=DEFAULT_RETRY_MS
            )
        self._num_waiting_bytes += size
        loop = asyncio.get_running_loop()
        try:
            return await within(left, loop.run_in_executor(executor, prompt_token_ids, request, model))
        except asyncio.TimeoutError:
            raise deadline_error("tokenize") from None
        finally:
            self._num_waiting_bytes -= size

    def is_short(self, request: Any) -> bool:
        """Whether the prompt takes no longer than handing it to a thread does."""
        return request.WhichOneof("prompt") != "chat" and _num_bytes(request) <= INLINE_BYTES

    def read_short(self, request: Any, model: ServedModel, *, deadline: float | None = None) -> "array[int]":
        """As `read`, of a short one, at once."""
        _seconds_left(deadline)
        _check_size(request, model, _num_bytes(request))
        return prompt_token_ids(request, model)


def prompt_token_ids(request: Any, model: ServedModel) -> "array[int]":
    """The token ids of a prompt. Cost: O(bytes).

    Raises: InvalidRequestError if the chat template refuses it.
    """
    kind = request.WhichOneof("prompt")
    options = request.prompt_options
    if kind == "token_ids":
        token_ids = array("i")
        token_ids.frombytes(kept_ids(request, model.max_model_len).tobytes())
        return token_ids
    if kind == "chat":
        text = _render(request.chat, options, model)
        add_special_tokens = options.add_special_tokens if options.HasField("add_special_tokens") else False
    else:
        text = request.text
        add_special_tokens = options.add_special_tokens if options.HasField("add_special_tokens") else True
    return array("i", _last(model.tokenizer.encode(text, add_special_tokens=add_special_tokens), options))


def check_fits(token_ids: "array[int]", field: str, max_tokens: int) -> None:
    """Raises: InvalidRequestError if the prompt is empty or leaves no room for one output token."""
    if not token_ids:
        raise InvalidRequestError.at(field, "the prompt is empty: it has no token")
    if len(token_ids) + 1 > max_tokens:
        raise InvalidRequestError.at(
            field,
            f"a prompt of {len(token_ids)} tokens and at least one output token need {len(token_ids) + 1} tokens; "
            f"prompt and output together may have {max_tokens}",
        )


def _render(chat: Any, options: Any, model: ServedModel) -> str:
    if model.chat_template is None:
        raise InvalidRequestError.at("chat", f"the model {model.name} has no chat template")
    continues = options.continue_final_message
    generation_prompt = chat.add_generation_prompt if chat.HasField("add_generation_prompt") else not continues
    try:
        return model.chat_template.render(
            [{"role": message.role, "content": message.content} for message in chat.messages],
            add_generation_prompt=generation_prompt,
            continue_final_message=continues,
            variables={name: json.loads(content) for name, content in chat.template_variables.items()},
        )
    except ChatError as error:
        raise InvalidRequestError.at("chat", str(error)) from None


def _seconds_left(deadline: float | None) -> float | None:
    """Raises: DeadlinePassedError."""
    if deadline is None:
        return None
    left = deadline - EARLY_SECONDS - asyncio.get_running_loop().time()
    if left <= 0:
        raise deadline_error("tokenize")
    return left


def _last(token_ids: Any, options: Any) -> Any:
    """The last tokens, if the prompt is to be truncated."""
    return token_ids[-options.truncate_prompt_tokens :] if options.HasField("truncate_prompt_tokens") else token_ids


def _num_bytes(request: Any) -> int:
    """Bytes of the prompt's text; what a chat template adds is not counted."""
    kind = request.WhichOneof("prompt")
    if kind == "text":
        return len(request.text.encode())
    if kind == "chat":
        return sum(len(message.content.encode()) for message in request.chat.messages)
    return 0


def _check_size(request: Any, model: ServedModel, size: int) -> None:
    """Raises: InvalidRequestError for what cannot fit whatever its tokens are."""
    kind = request.WhichOneof("prompt")
    truncates = request.prompt_options.HasField("truncate_prompt_tokens")
    limit = max(model.max_prompt_bytes, TRUNCATED_TEXT_BYTES) if truncates else model.max_prompt_bytes
    if size > limit:
        raise InvalidRequestError.at(
            kind, f"{size} bytes are more than {model.max_model_len} tokens can stand for (at most {limit} bytes)"
        )
    num_tokens = num_kept_ids(request) if kind == "token_ids" else 0
    if num_tokens + 1 > model.max_model_len:
        raise InvalidRequestError.at(
            "token_ids",
            f"a prompt of {num_tokens} tokens and at least one output token need {num_tokens + 1} tokens; "
            f"prompt and output together may have {model.max_model_len}",
        )
