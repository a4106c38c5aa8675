"""Renders conversations with the model's chat template.

The environment equals the one transformers renders with (sandboxed, immutable, trim_blocks, lstrip_blocks, loop
controls, a tojson without HTML escapes, raise_exception, strftime_now, generation blocks), so that the text is the
same; a test compares. On top of it a rendering has limits of time and size: templates come with a model and their
input from anyone. Whatever a template does wrong is the caller's INVALID_ARGUMENT on `chat`, with the template's own
message.
"""

import json
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils

MAX_SECONDS = 2.0
MAX_CHARS = 16 * 1024 * 1024
CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class ChatError(Exception):
    """A conversation cannot be rendered; the text is for the caller."""


class _GenerationBlocks(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training; here its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox, with a clock that every attribute access and call looks at."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, jinja2.ext.loopcontrols])
        self.limit = threading.local()
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["dict"] = _TemplateDict()
        self.globals["namespace"] = _TemplateNamespace

    def check_time(self) -> None:
        """Raises: ChatError once the rendering on this thread has taken too long."""
        if time.monotonic() > getattr(self.limit, "until", float("inf")):
            raise ChatError(f"the chat template took longer than {MAX_SECONDS:g} s")

    def getattr(self, obj: Any, attribute: str) -> Any:
        self.check_time()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self.check_time()
        return super().getitem(obj, argument)

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        self.check_time()
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Multiplication and powers, refused where they would blow up."""
        self.check_time()
        for many, times in ((left, right), (right, left)):
            if isinstance(many, str | list | tuple) and isinstance(times, int) and len(many) * times > MAX_CHARS:
                raise ChatError("the chat template repeats a text too often")
        if operator == "**" and not (_is_small(left) and _is_small(right)):
            raise ChatError("the chat template computes too large a number")
        return super().call_binop(context, operator, left, right)


class ChatTemplate:
    """One compiled template. Thread-safe."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Raises: ValueError if the source is no template."""
        self._environment = _Environment()
        self._special_tokens = dict(special_tokens)
        self._source = source
        try:
            self._template = self._environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ValueError(f"the model's chat template does not compile: {error}") from None

    def render(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation as text.

        Raises: ChatError if the template refuses it, fails on it, or exceeds its limits.
        """
        chat = [dict(message) for message in messages]
        if continue_final_message:
            chat[-1]["content"] += CONTINUE_TAG
        values = {
            "tools": None,
            "documents": None,
            **self._special_tokens,
            **(variables or {}),
            "messages": chat,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._render(values)
        return _cut_at_tag(text, messages[-1]["content"]) if continue_final_message else text

    def _render(self, values: Mapping[str, Any]) -> str:
        self._environment.limit.until = time.monotonic() + MAX_SECONDS
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate(values):
                pieces.append(piece)
                size += len(piece)
                if size > MAX_CHARS:
                    raise ChatError("the rendered chat is too long")
                self._environment.check_time()
        except ChatError:
            raise
        except jinja2.TemplateError as error:
            raise ChatError(f"the chat template refuses this chat: {error.message or type(error).__name__}") from None
        except (TypeError, ValueError, KeyError, IndexError, ArithmeticError, AttributeError, RecursionError) as error:
            raise ChatError(f"the chat template fails on this chat: {type(error).__name__}") from None
        finally:
            del self._environment.limit.until
        return "".join(pieces)


def _cut_at_tag(text: str, final: str) -> str:
    """The text up to the end of the final message, as transformers cuts it."""
    tag = CONTINUE_TAG.strip()
    if final.strip() not in text or tag not in text:
        raise ChatError("the final message cannot be continued: the chat template does not write it as it is")
    place = text.rindex(tag)
    if text[place : place + len(CONTINUE_TAG)] == CONTINUE_TAG:
        return text[:place]
    return text[:place].rstrip()


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _is_small(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) <= 1000


class _TemplateDict:
    """`dict(...)` without the class's attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


class _TemplateNamespace(jinja2.utils.Namespace):
    """`namespace(...)` whose attributes never begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace attribute must not begin with an underscore: {name}")
