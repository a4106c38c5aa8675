"""The offline API: a model in this process's hands, many prompts at once.

``LLM`` starts a private stack, which lives as long as it does, and sends everything of a call over one stream.
Invariants: results come in the order of the prompts; a prompt that fails has its error in its place and touches no
other; nothing of one call is left for the next.
"""

from __future__ import annotations

import itertools
import logging
import random
import weakref
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from pagewire.v1 import generation_pb2 as pb

from .engine_arguments import EngineArguments, stack_arguments
from .errors import InvalidRequestError
from .model_path import local_model
from .options import Messages, Prompt, chat_request, text_request, token_ids_of
from .progress import Progress
from .request_output import RequestOutput, failed_output, request_output
from .sampling_params import MAX_TOKENS, SamplingParams
from .stack import private_stack

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

log = logging.getLogger("pagewire_client")

PromptLike = Prompt | Mapping[str, Any]
"""A text, token ids, or a mapping with one of the keys ``prompt`` and ``prompt_token_ids``."""
MAX_DELAY_MS = 1000
"""Only whole outputs are returned: text may travel in large pieces."""
OFFLINE = ("--target-inter-token-ms", "0", "--front-processes", "1")
"""Nobody watches tokens come, so prompts need not be cut for their sake, and one connection needs one front."""


class LLM:
    """A model served for this program alone; a context manager.

    ``model`` is a directory, a ``.gguf`` file, a hub id, or None for the embedded model. Further keywords as in
    ``EngineArguments``. With ``seed``, requests without a seed of their own get reproducible ones.

    Raises: TypeError for an unknown keyword, ValueError for a refused one, FetchError, StackError.
    """

    def __init__(self, model: str | None = None, **arguments: Unpack[EngineArguments]) -> None:
        made = stack_arguments(arguments)
        self._stack = private_stack(
            local_model(model),
            scheduler_arguments=(*OFFLINE, *made.scheduler),
            worker_arguments=made.worker,
            num_workers=made.num_workers,
            num_ranks=made.num_ranks,
        )
        self._seeds = None if made.seed is None else random.Random(made.seed)
        self._numbers = itertools.count()
        self._stack.start()
        self._client = self._stack.client()
        self._end = weakref.finalize(self, _close, self._client.close, self._stack.stop)

    def generate(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Continues one or many prompts; ``sampling_params`` is for all, or one for each.

        None takes the model's own sampling defaults. Raises: ServerError if the whole call fails.
        """
        asked = _as_list(prompts)
        return self._run([(_text(prompt), prompt) for prompt in asked], sampling_params, use_tqdm, {})

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers one or many conversations, rendered with the model's chat template."""
        conversations = _conversations(messages)
        variables = {**({} if tools is None else {"tools": tools}), **(chat_template_kwargs or {})}
        options = {
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message or None,
            "template_variables": variables or None,
        }
        return self._run([(None, chat) for chat in conversations], sampling_params, use_tqdm, options)

    def close(self) -> None:
        """Stops the stack. Safe to call twice; also done when the program ends or nobody refers to this any more."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _run(
        self,
        asked: Sequence[tuple[str | None, Any]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
        more: Mapping[str, Any],
    ) -> list[RequestOutput]:
        """``asked`` has the text (None for a chat and for ids) and the prompt of each."""
        if not self._end.alive:
            raise ValueError("this LLM is closed")
        params = _one_each(sampling_params, len(asked))
        outputs: dict[str, RequestOutput] = {}
        names = [str(next(self._numbers)) for _ in asked]
        places = {name: place for place, name in enumerate(names)}
        seeds = [None if self._seeds is None else self._seeds.getrandbits(64) for _ in asked]
        ids: dict[str, list[int]] = {}

        def requests() -> Iterator[pb.GenerateRequest]:
            """Made as they are sent, the last while the first run; what costs time is done here, not at the end."""
            for place, (name, (text, prompt)) in enumerate(zip(names, asked, strict=True)):
                request = _request(name, prompt, params[place], seeds[place], more)
                if isinstance(request, pb.GenerateRequest):
                    ids[name] = token_ids_of(request.token_ids)
                    yield request
                else:
                    outputs[name] = failed_output(name, text, prompt, request)

        with Progress(len(asked), shown=use_tqdm) as progress:
            for name, outcome in self._client.run_many(requests(), at_hand=True):
                text, prompt = asked[places[name]]
                outputs[name] = request_output(name, text, prompt, params[places[name]], outcome, ids[name])
                progress.add(outputs[name])
            progress.skip(len(asked) - len(ids))
        failed = [place for place, name in enumerate(names) if outputs[name].error is not None]
        if failed:
            first = outputs[names[failed[0]]].error
            log.warning("%d of %d prompts failed, the first at index %d: %s", len(failed), len(asked), failed[0], first)
        return [outputs[name] for name in names]


def _request(
    name: str, prompt: Any, params: SamplingParams | None, seed: int | None, more: Mapping[str, Any]
) -> pb.GenerateRequest | InvalidRequestError | TypeError:
    """The message, or why there can be none. ``seed`` is for one without a seed of its own."""
    try:
        options: dict[str, Any] = {"max_tokens": MAX_TOKENS} if params is None else params.options()
        options |= {"request_id": name, "token_ids": True, "prompt_token_ids": True, "max_delay_ms": MAX_DELAY_MS}
        options.setdefault("seed", seed)
        if more:
            return chat_request(_plain_messages(prompt), {**options, **more})
        request = text_request(_prompt_of(prompt), options)
        if request.HasField("token_ids") and not request.prompt_options.HasField("truncate_prompt_tokens"):
            request.output.prompt_token_ids = False  # they are the caller's own
        return request
    except (InvalidRequestError, TypeError) as error:
        return error


def _close(*steps: Any) -> None:
    for step in steps:
        step()


def _as_list(prompts: Any) -> list[Any]:
    """The prompts of a call: one text, mapping or list of ids is one prompt."""
    if isinstance(prompts, str | bytes | Mapping):
        return [prompts]
    listed = list(prompts)
    return [listed] if listed and all(isinstance(each, Integral) for each in listed) else listed


def _conversations(messages: Any) -> list[Any]:
    listed = list(messages)
    return listed if listed and not isinstance(listed[0], Mapping) and not hasattr(listed[0], "role") else [listed]


def _text(prompt: Any) -> str | None:
    text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
    return text if isinstance(text, str) else None


def _prompt_of(prompt: Any) -> Prompt:
    """The text or the ids of a prompt; of a mapping with both, the ids."""
    if not isinstance(prompt, Mapping):
        return prompt if isinstance(prompt, str | bytes) else list(prompt)
    found = prompt.get("prompt_token_ids")
    return cast(Prompt, prompt.get("prompt") if found is None else list(found))


def _plain_messages(messages: Any) -> list[Any]:
    """Messages whose content is one text; lists of text parts are joined."""
    return [_plain_message(message) if isinstance(message, Mapping) else message for message in messages]


def _plain_message(message: Mapping[str, Any]) -> Mapping[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = [part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None for part in content]
    if None in parts:
        raise TypeError("the content of a message is text, or a list of text parts")
    return {**message, "content": "\n".join(cast(list[str], parts))}


def _one_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> Sequence[SamplingParams | None]:
    """The parameters of each prompt. Raises: TypeError, ValueError if their number differs."""
    each = [params] * count if params is None or isinstance(params, SamplingParams) else list(params)
    if len(each) != count:
        raise ValueError(f"{len(each)} sampling_params for {count} prompts")
    for place, one in enumerate(each):
        if one is not None and not isinstance(one, SamplingParams):
            raise TypeError(f"sampling_params[{place}] is {type(one).__name__}, not SamplingParams")
    return each
