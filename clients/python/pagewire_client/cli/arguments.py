"""Options of the commands that make a request, declared once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypedDict, TypeVar, get_type_hints

import typer

from ..client import DEFAULT_TARGET

_SAMPLING = "Sampling"
_STOPPING = "When an output ends"
_FORM = "What form an output has"

Target = Annotated[
    str, typer.Option("--target", envvar="PAGEWIRE_TARGET", metavar="HOST:PORT", help="The server to call.")
]
TARGET_DEFAULT = DEFAULT_TARGET
InternalTarget = Annotated[
    str, typer.Option("--target", envvar="PAGEWIRE_INTERNAL_TARGET", metavar="HOST:PORT", help="The internal port.")
]
INTERNAL_TARGET_DEFAULT = "127.0.0.1:50052"
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]
Local = Annotated[bool, typer.Option("--local", help="Start a stack on this machine for the call.")]
ModelName = Annotated[
    str | None, typer.Option("--model", help="Served name to ask for; with --local, the model to start.")
]
Timeout = Annotated[float | None, typer.Option(min=0.0, help="Deadline of the call, in seconds.")]
Stats = Annotated[bool | None, typer.Option("--stats/--no-stats", help="Usage and id on stderr (default: on a tty).")]

Temperature = Annotated[float | None, typer.Option(rich_help_panel=_SAMPLING, help="0 is greedy.")]
TopP = Annotated[float | None, typer.Option(rich_help_panel=_SAMPLING, help="In (0, 1].")]
TopK = Annotated[int | None, typer.Option(min=0, rich_help_panel=_SAMPLING, help="0 is off.")]
MinP = Annotated[float | None, typer.Option(rich_help_panel=_SAMPLING, help="In [0, 1].")]
Seed = Annotated[int | None, typer.Option(min=0, max=2**64 - 1, rich_help_panel=_SAMPLING, help="Seed of the noise.")]
FrequencyPenalty = Annotated[float | None, typer.Option(rich_help_panel=_SAMPLING, help="In [-2, 2].")]
PresencePenalty = Annotated[float | None, typer.Option(rich_help_panel=_SAMPLING, help="In [-2, 2].")]
RepetitionPenalty = Annotated[float | None, typer.Option(rich_help_panel=_SAMPLING, help="In [0.001, 10].")]

LogitBias = Annotated[
    list[str] | None,
    typer.Option(metavar="ID=BIAS", rich_help_panel=_SAMPLING, help="In [-100, 100]; may be repeated."),
]
AllowedTokenIds = Annotated[
    list[int] | None,
    typer.Option("--allowed-token-ids", min=0, rich_help_panel=_SAMPLING, help="Only these; may be repeated."),
]
BadWords = Annotated[
    list[str] | None, typer.Option("--bad-words", rich_help_panel=_SAMPLING, help="Never this; may be repeated.")
]

MAX_TOKENS_DEFAULT = 256
"""A terminal is no place for a model that does not find its end; the API's own default is what fits."""
MaxTokens = Annotated[int, typer.Option(min=1, rich_help_panel=_STOPPING, help="Most tokens of an output.")]
MinTokens = Annotated[
    int | None,
    typer.Option(min=0, rich_help_panel=_STOPPING, help="Nothing ends it earlier."),
]
Stop = Annotated[list[str] | None, typer.Option(rich_help_panel=_STOPPING, help="Stop string; may be repeated.")]
StopTokenIds = Annotated[
    list[int] | None, typer.Option("--stop-token-ids", min=0, rich_help_panel=_STOPPING, help="May be repeated.")
]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", rich_help_panel=_STOPPING, help="EOS is a token like any.")]

JsonSchema = Annotated[str | None, typer.Option(rich_help_panel=_FORM, help="JSON that is valid by this schema.")]
JsonObject = Annotated[bool, typer.Option("--json-object", rich_help_panel=_FORM, help="Any JSON object.")]
Regex = Annotated[str | None, typer.Option(rich_help_panel=_FORM, help="A text that matches it as a whole.")]
Choice = Annotated[list[str] | None, typer.Option(rich_help_panel=_FORM, help="One of these; may be repeated.")]
Grammar = Annotated[str | None, typer.Option(rich_help_panel=_FORM, help="In the notation of Lark or GBNF.")]

Outputs = Annotated[int | None, typer.Option("-n", "--n", min=1, help="Number of outputs.")]
TokenIds = Annotated[bool, typer.Option("--token-ids", help="Have token ids sent (shown with --json).")]
Progress = Annotated[bool, typer.Option("--progress-events", help="Have progress events sent (shown with --json).")]
Logprobs = Annotated[
    int | None, typer.Option(min=0, help="Log probabilities of so many likeliest tokens (shown with --json).")
]
PromptLogprobs = Annotated[int | None, typer.Option(min=0, help="The same for the prompt (shown with --json).")]
Priority = Annotated[int | None, typer.Option(help="Larger is served earlier.")]
CacheSalt = Annotated[str | None, typer.Option(help="Share cached pages only with requests of the same salt.")]


Command = TypeVar("Command", bound=Callable[..., Any])


class RequestOptions(TypedDict):
    """What ``generate`` and ``chat`` take beside what they are about, in the order of their help."""

    target: Target
    json: Json
    local: Local
    model: ModelName
    timeout: Timeout
    stats: Stats
    temperature: Temperature
    top_p: TopP
    top_k: TopK
    min_p: MinP
    seed: Seed
    frequency_penalty: FrequencyPenalty
    presence_penalty: PresencePenalty
    repetition_penalty: RepetitionPenalty
    logit_bias: LogitBias
    allowed_token_ids: AllowedTokenIds
    bad_words: BadWords
    max_tokens: MaxTokens
    min_tokens: MinTokens
    stop: Stop
    stop_token_ids: StopTokenIds
    ignore_eos: IgnoreEos
    json_schema: JsonSchema
    json_object: JsonObject
    regex: Regex
    choice: Choice
    grammar: Grammar
    n: Outputs
    token_ids: TokenIds
    logprobs: Logprobs
    prompt_logprobs: PromptLogprobs
    progress_events: Progress
    priority: Priority
    cache_salt: CacheSalt


_DEFAULTS: dict[str, Any] = {
    "target": TARGET_DEFAULT,
    "json": False,
    "local": False,
    "max_tokens": MAX_TOKENS_DEFAULT,
    "ignore_eos": False,
    "json_object": False,
    "token_ids": False,
    "progress_events": False,
}


def takes_request_options(command: Command) -> Command:
    """A command whose ``**options`` are ``RequestOptions``, shown to typer as parameters."""
    own = [each for each in inspect.signature(command).parameters.values() if each.kind is not each.VAR_KEYWORD]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_DEFAULTS.get(name))
        for name in RequestOptions.__annotations__
    ]
    hints = {**get_type_hints(command, include_extras=True), **get_type_hints(RequestOptions, include_extras=True)}
    del hints["options"]
    parameters = [each.replace(annotation=hints[each.name]) for each in (*own, *options)]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = hints
    return command
