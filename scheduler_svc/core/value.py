"""The decorator of values that are made in every step: frozen as mypy sees them, plain slots when the program runs.

A frozen dataclass sets each field by a call, which takes four times as long as an assignment: of a request that comes
and goes that was a fifth of the cost. So whoever changes a value is told by ``make check``, not at run time. Classes
that are made once (limits, cards) are frozen as usual.
"""

from typing import TYPE_CHECKING

__all__ = ["value"]

if TYPE_CHECKING:
    from dataclasses import dataclass as value
else:
    from dataclasses import dataclass

    def value(*, frozen, slots, kw_only):
        """``@value(frozen=True, slots=True, kw_only=True)``, as for a dataclass."""
        return dataclass(slots=slots, kw_only=kw_only, unsafe_hash=frozen)
