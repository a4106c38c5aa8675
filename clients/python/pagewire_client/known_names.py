"""Keyword arguments that nobody knows are refused with the nearest known name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from .options import nearest

T = TypeVar("T")


def check_known(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raises: TypeError naming the first unknown name and the known one that is nearest to it."""
    names = list(known)
    for name in given:
        if name not in names:
            raise TypeError(f"{what} has no argument {name!r}{nearest(name, names)}")


def names_nearest(cls: type[T]) -> type[T]:
    """A class whose constructor's TypeError for an unknown keyword names the nearest known one."""
    construct: Callable[..., None] = cls.__init__
    known = list(inspect.signature(cls).parameters)

    @functools.wraps(construct)
    def checked(self: Any, *args: Any, **given: Any) -> None:
        check_known(cls.__name__, given, known)
        construct(self, *args, **given)

    cls.__init__ = checked  # type: ignore[method-assign]
    return cls
