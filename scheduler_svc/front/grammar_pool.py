"""Grammars of the forms that callers ask for, made and tried in a few processes of their own.

Forms come from anyone: one that takes too much time or memory is refused, and nothing else waits for it but other forms
that nobody has asked for lately. Those that were are remembered.
"""

import hashlib
import json
from collections import OrderedDict
from typing import Any

from scheduler_svc.front.child_pool import ChildLostError, ChildPool

MAX_REMEMBERED = 256
"""Grammars, each at most a few times as long as its form."""
LOST = "it takes too much time or memory"


class GrammarRefusedError(Exception):
    """A form cannot be asked for; the text is for the caller."""


class GrammarPool:
    """One model's. Thread-safe."""

    def __init__(self, card: Any) -> None:
        """``card`` is a pagewire.internal.v1.ModelCard."""
        first = {
            "tokenizer_json": card.tokenizer_json.decode(errors="replace"),
            "vocab_size": card.vocab_size,
            "eos_token_ids": list(card.eos_token_ids),
        }
        self._children = ChildPool("scheduler_svc.front.grammar_process", first)
        self._known: OrderedDict[bytes, str] = OrderedDict()
        self.close = self._children.close

    def remembered(self, kind: str, content: Any) -> str | None:
        """The grammar of a form that was asked for lately."""
        return self._known.get(_name(kind, content))

    def make(self, kind: str, content: Any) -> str:
        """The grammar of a form; blocks its thread meanwhile.

        Raises: GrammarRefusedError.
        """
        try:
            answer = self._children.ask({"kind": kind, "content": content})
        except ChildLostError:
            raise GrammarRefusedError(LOST) from None
        if "refused" in answer:
            raise GrammarRefusedError(str(answer["refused"]))
        grammar = self._known[_name(kind, content)] = str(answer["grammar"])
        while len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)
        return grammar


def _name(kind: str, content: Any) -> bytes:
    return hashlib.blake2b(json.dumps([kind, content]).encode(), digest_size=16).digest()
