"""How the offline API samples and stops: the keyword names people know, and the API's options they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .known_names import names_nearest

_RENAMED = {"include_stop_str_in_output": "include_stop", "detokenize": "text"}
MAX_TOKENS = 16
"""Default of the offline API, as people know it; the server's is what fits."""


@names_nearest
@dataclass(slots=True, kw_only=True)
class StructuredOutputsParams:
    """What form outputs have: one of these. ``json`` is a schema, as a mapping or as text."""

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    def options(self) -> dict[str, Any]:
        """The keywords of a request."""
        given = {name: getattr(self, name) for name in self.__slots__}
        return {"json_schema" if name == "json" else name: value for name, value in given.items()}


GuidedDecodingParams = StructuredOutputsParams
"""Its older name."""


@names_nearest
@dataclass(slots=True, kw_only=True)
class SamplingParams:
    """How outputs of a request are chosen and when they end. Ranges are the API's, checked by the server.

    ``top_k`` 0 or -1 is off, ``seed`` None or -1 is drawn, ``max_tokens`` None is what fits, ``stop`` one text or
    several. With ``detokenize=False`` outputs have token ids and no text. ``guided_decoding`` is an older name of
    ``structured_outputs``.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    max_tokens: int | None = MAX_TOKENS
    min_tokens: int = 0
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    structured_outputs: StructuredOutputsParams | None = None
    guided_decoding: StructuredOutputsParams | None = None

    def options(self) -> dict[str, Any]:
        """The keywords of a request. What is neutral whatever the model's defaults are stays unset.

        Raises: TypeError for a form of another type.
        """
        given: dict[str, Any] = {}
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and not (name in _NEUTRAL and value == _NEUTRAL[name]):
                given[_RENAMED.get(name, name)] = value
        for name in _FORMS:
            form = given.pop(name, None)
            if not isinstance(form, StructuredOutputsParams | None):
                raise TypeError(f"{name} is {type(form).__name__}, not StructuredOutputsParams")
            given |= {} if form is None else form.options()
        if given.get("top_k") == -1:
            given["top_k"] = 0
        if given.get("seed") == -1:
            del given["seed"]
        return given


_FORMS = ("structured_outputs", "guided_decoding")
_NEUTRAL: dict[str, Any] = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
    "ignore_eos": False,
    "include_stop_str_in_output": False,
}
