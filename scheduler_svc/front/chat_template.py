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
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils

from scheduler_svc.front.template_limits import (
    FORMATTING,
    GROWING,
    MAX_CHARS,
    bounded,
    check_call,
    check_product,
    sized,
)

MAX_SECONDS = 2.0
CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
_TEMPLATE_FAULTS = (
    *(TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RuntimeError, MemoryError),
    AssertionError,  # jinja2's own filters check their arguments so
)
_TIMED, _BOUNDED = "_timed", "_bounded"
_SCOPES = frozenset({"_loop_vars", "_block_vars"})
"""What jinja2 itself adds to the arguments of a call inside a loop or a block."""


class ChatError(Exception):
    """A conversation cannot be rendered; the text is for the caller."""


class _GenerationBlocks(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training; here its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox, with a clock that every attribute access, call and turn of a loop looks at.

    What could grow without bound inside one operation is refused before it runs: the clock would come too late. Not
    optimized: compiling a template runs nothing of it.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=[_GenerationBlocks, jinja2.ext.loopcontrols],
        )
        self.limit = threading.local()
        self.filters["tojson"] = _tojson
        for name in (GROWING | FORMATTING) & self.filters.keys():
            self.filters[name] = sized(name, self.filters[name])
        self.filters[_TIMED] = self._timed
        self.filters[_BOUNDED] = bounded
        # No chat needs them, and they take much longer than their input is long.
        del self.globals["lipsum"], self.filters["urlize"], self.filters["wordwrap"]
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
        name = getattr(obj, "__name__", "")
        if name in GROWING or name in FORMATTING:
            method = getattr(obj, "__wrapped__", obj)  # the sandbox wraps str.format
            own = {key: value for key, value in kwargs.items() if key not in _SCOPES}
            check_call(name, getattr(method, "__self__", ""), *args, **own)
        return bounded(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Arithmetic, refused where it would blow up."""
        self.check_time()
        if operator == "*":
            check_product(left, right)
        elif operator == "%" and isinstance(left, str):
            check_call("format", left, *(right if isinstance(right, tuple) else (right,)))
        elif operator == "**" and not (_is_small(left) and _is_small(right)):
            raise ChatError("the chat template computes too large a number")
        return bounded(super().call_binop(context, operator, left, right))

    def _generate(self, source: jinja2.nodes.Template, *args: Any, **kwargs: Any) -> str:
        """Compiles a template whose loops look at the clock and whose joined texts are bounded."""
        for loop in list(source.find_all(jinja2.nodes.For)):
            loop.iter = _filtered(loop.iter, _TIMED)
        for block in list(source.find_all(jinja2.nodes.AssignBlock)):
            block.filter = _filtered(block.filter, _BOUNDED)
        for assigned in list(source.find_all(jinja2.nodes.Assign)):
            assigned.node = _filtered(assigned.node, _BOUNDED)
        source.set_environment(self)
        return super()._generate(source, *args, **kwargs)

    def _timed(self, items: Any) -> Iterator[Any]:
        for item in items:
            self.check_time()
            yield item


def _filtered(node: Any, name: str) -> jinja2.nodes.Filter:
    """The expression behind a filter; None stands for the body of a block."""
    return jinja2.nodes.Filter(node, name, [], [], None, None, lineno=1 if node is None else node.lineno)


class ChatTemplate:
    """One compiled template. Thread-safe."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Raises: ValueError if the source is no template."""
        self._environment = _Environment()
        self._special_tokens = dict(special_tokens)
        self._source = source
        try:
            self._template = self._environment.from_string(source)
        except (jinja2.TemplateError, SyntaxError, RecursionError, MemoryError, ValueError) as error:
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
            text = "".join(pieces)
            text.encode()  # JSON can hold half a surrogate pair, which is no text and has no tokens
        except ChatError:
            raise
        except jinja2.TemplateError as error:
            raise ChatError(f"the chat template refuses this chat: {error.message or type(error).__name__}") from None
        except _TEMPLATE_FAULTS as error:
            raise ChatError(f"the chat template fails on this chat: {type(error).__name__}") from None
        finally:
            del self._environment.limit.until
        return text


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
