"""What OpenAI's clients send, and the few fields beside that vLLM's users know.

Fields that would change the answer and are not served are refused by name; whatever else is unknown (`user`, `store`,
`metadata`) changes nothing and is let be.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticSerializationError, to_json

from .failures import BadRequestError

MAX_CHOICES = 16
MAX_PROMPTS = 64

_NOT_SERVED = ("suffix", "echo", "functions", "function_call", "audio", "prediction", "use_beam_search", "best_of")


Element = TypeVar("Element")
List = Annotated[list[Element], Field(fail_fast=True)]
"""Only its first fault is told: a body of 16 MiB can have millions, and to note them all would hold everybody up."""


class JsonSchema(BaseModel):
    """A schema by name."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    name: str = ""
    content: dict[str, Any] = Field(alias="schema")


class ResponseFormat(BaseModel):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None:
            raise BadRequestError("response_format", "json_schema is missing")
        return self

    @property
    def form(self) -> dict[str, Any]:
        """By the API's name."""
        if self.type == "json_schema" and self.json_schema is not None:
            return {"json_schema": self.json_schema.content}
        return {"json_object": True} if self.type == "json_object" else {}


class StructuredOutputs(BaseModel):
    """The form of the answer, as vLLM's users know it: one of these."""

    json_schema: str | dict[str, Any] | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: List[str] | None = None
    grammar: str | None = None


class StreamOptions(BaseModel):
    """What a stream tells beside its text."""

    include_usage: bool = False


class Sampled(BaseModel):
    """What both kinds of requests share."""

    model: str
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, Any] | None = None
    stop: str | List[str] | None = None
    stop_token_ids: List[int] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    bad_words: List[str] | None = None
    allowed_token_ids: List[int] | None = None
    truncate_prompt_tokens: int | None = None
    add_special_tokens: bool | None = None
    cache_salt: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: List[str] | None = None
    guided_grammar: str | None = None

    @property
    def forms(self) -> dict[str, Any]:
        """All that the answer is asked to be, by the API's names. The later of two of one kind counts."""
        older: dict[str, Any] = {"json_schema": self.guided_json, "regex": self.guided_regex}
        older |= {"choice": self.guided_choice, "grammar": self.guided_grammar}
        newer = self.structured_outputs.model_dump() if self.structured_outputs is not None else {}
        found = {name: value for each in (older, newer) for name, value in each.items() if value}
        if self.response_format is not None:
            found |= self.response_format.form
        return found

    @model_validator(mode="before")
    @classmethod
    def _serves_all(cls, given: Any) -> Any:
        if isinstance(given, dict):
            for name in _NOT_SERVED:
                if given.get(name):
                    raise BadRequestError(name, "is not served")
            for name, value in given.items():
                if not _is_text(value):
                    shown = name.encode(errors="replace").decode()
                    raise BadRequestError(shown, "holds half a surrogate pair or is nested too deeply")
        return given


class TextPart(BaseModel):
    """A part of a message; only text is served."""

    type: Literal["text"]
    text: str


class CalledFunction(BaseModel):
    """What a model asked for."""

    name: str
    arguments: str = "{}"


class ToolCall(BaseModel):
    """A call of a tool, in an earlier answer."""

    function: CalledFunction


class Message(BaseModel):
    """One message of a conversation."""

    role: str
    content: str | List[TextPart] | None = None
    tool_calls: List[ToolCall] | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _is_text(cls, value: Any) -> Any:
        for part in value if isinstance(value, list) else ():
            if isinstance(part, dict) and part.get("type", "text") != "text":
                raise BadRequestError("messages", f"a part of type {str(part['type'])[:40]!r}: only text is served")
        return value

    @property
    def text(self) -> str:
        """All of it; calls of tools, which are part of the text where models write them, as a line of JSON each."""
        parts = [self.content] if isinstance(self.content, str) else [part.text for part in self.content or ()]
        calls = [call.function.model_dump_json() for call in self.tool_calls or ()]
        return "\n".join([text for text in ("".join(parts),) if text] + calls)


class ChatBody(Sampled):
    """`/v1/chat/completions`."""

    messages: Annotated[List[Message], Field(min_length=1)]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    tools: List[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    """Whether a tool is called is the template's and the model's matter: none can be forced."""
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @property
    def limit(self) -> int | None:
        """Most output tokens."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


class CompletionBody(Sampled):
    """`/v1/completions`."""

    prompt: str | List[str] | List[int] | List[List[int]]
    max_tokens: int | None = 16
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def limit(self) -> int | None:
        """Most output tokens."""
        return self.max_tokens

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """Each prompt by itself."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt  # type: ignore[return-value]

    @model_validator(mode="after")
    def _few(self) -> CompletionBody:
        if not 1 <= len(self.prompts) <= MAX_PROMPTS:
            raise BadRequestError("prompt", f"1 to {MAX_PROMPTS} prompts")
        return self


def _is_text(value: Any) -> bool:
    """Whether a JSON value can be written again, as UTF-8."""
    try:
        to_json(value)
    except PydanticSerializationError:
        return False
    return True
