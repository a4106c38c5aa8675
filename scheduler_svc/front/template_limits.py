"""Bounds for what a chat template may ask for in a single operation.

A clock between operations stops what takes many of them; it cannot stop one that alone takes minutes or gigabytes:
padding to a width of billions, replacing each letter by a book, joining with a book. Each check here looks at the
arguments only, before the operation runs, and raises SecurityError.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

import jinja2.exceptions
import jinja2.nodes
import jinja2.runtime

MAX_CHARS = 16 * 1024 * 1024
MAX_REPEATS = 1000
"""Widths, indents and counts that are given to a function."""
MAX_BITS = 4096
"""Bits of the product of two numbers."""
MAX_ITEMS = 100_000
"""Items of an iterable without a length: no range is longer."""

GROWING = frozenset(
    {"batch", "center", "expandtabs", "indent", "join", "ljust", "replace", "rjust", "round", "slice", "sum"}
    | {"to_bytes", "tojson", "translate", "zfill"}
)
"""Filters and methods whose result may be much larger than what they are given."""
FORMATTING = frozenset({"format", "format_map"})
_WIDE = re.compile(r"[%:][^\s%a-zA-Z]*\d{4}|%[-+ #0.\d]*\*|\{[^{}]+\{")
"""A field of a format that is wide, or whose width is an argument."""


def bounded(value: Any) -> Any:
    """The value. Raises: SecurityError if it is too long to go on with."""
    if isinstance(value, str | bytes | list | tuple) and len(value) > MAX_CHARS:
        raise _too_large()
    return value


def check_call(name: str, value: Any, *args: Any, **kwargs: Any) -> None:
    """Raises: SecurityError if the filter or method of this name, applied to ``value``, makes too much of it."""
    given = (*args, *kwargs.values())
    longest = max((len(each) for each in given if isinstance(each, str | bytes)), default=0)
    if name in FORMATTING:
        if isinstance(value, str) and (_WIDE.search(value) or len(value) * longest > MAX_CHARS):
            raise _too_large()
    elif name in GROWING:
        if any(isinstance(each, int) and abs(each) > MAX_REPEATS for each in given):
            raise _too_large()
        if any(isinstance(each, list | tuple | dict) for each in given):
            raise jinja2.exceptions.SecurityError(f"{name} takes no collections here")
        if _num_places(name, value, given) * longest > MAX_CHARS:
            raise _too_large()


def check_product(left: Any, right: Any) -> None:
    """Raises: SecurityError if the product of two values is too long a text, list or number."""
    for many, times in ((left, right), (right, left)):
        if isinstance(many, str | bytes | list | tuple) and isinstance(times, int) and len(many) * times > MAX_CHARS:
            raise _too_large()
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > MAX_BITS:
        raise _too_large()


def sized(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that checks its arguments first."""

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        is_context = isinstance(args[0], jinja2.Environment | jinja2.nodes.EvalContext | jinja2.runtime.Context)
        check_call(name, *args[is_context:], **kwargs)
        return function(*args, **kwargs)

    return checked


def _num_places(name: str, value: Any, given: tuple[Any, ...]) -> int:
    """How often an argument may appear in the result."""
    if name == "replace" and isinstance(value, str) and given and isinstance(given[0], str):
        return value.count(given[0])
    try:
        return len(value)
    except TypeError:
        return MAX_ITEMS


def _too_large() -> jinja2.exceptions.SecurityError:
    return jinja2.exceptions.SecurityError("it makes too large a text, list or number")
