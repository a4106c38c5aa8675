"""`python -m scheduler_svc.front.grammar_process`: turns the forms that callers ask for into grammars, and tries them.

First comes the model's tokenizer, then a form at a time, answered by its grammar in the library's notation or by why
there is none. A grammar is tried as a worker would use it, under the same limits: compiled, then followed for some
tokens, so that one that is well-formed but takes too much time or memory to follow is refused before it runs beside
others.
"""

import json
import random
import re
import sys
import time
from collections.abc import Callable
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark

from scheduler_svc.front.child_limits import Answer, serve
from scheduler_svc.front.closed_schema import closed_schema
from scheduler_svc.front.unwritable import unwritable

MAX_SECONDS = 1.0
_TRIAL_SECONDS = 0.5
_TRIAL_TOKENS = 256
_MAX_MESSAGE = 300
_NO_TEXT = "\ufdd0"
"""A code point that is no character."""
_NOTHING = "there is no text of this form"
_LIMITS = LLParserLimits(max_lexer_states=20_000, max_grammar_size=100_000, verbose_errors=False)
_GBNF_RULE = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)
_OF_OUR_GRAMMAR = re.compile(r"(?<=llguidance: )at \d+\(\d+\): |\n *1 \| .*", re.DOTALL)
"""Where in the grammar that was made of a regular expression, and its lines: its caller wrote none of them."""
_NO_BLANKS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": False}
"""JSON has one blank behind commas and colons and no other: models that like blanks would never come to an end."""


class RefusedError(ValueError):
    """There is no such grammar; the text is for the caller."""


def _library_refused(words: str) -> RefusedError:
    return RefusedError(f"cannot be followed; llguidance: {words}")


def _of_json_schema(schema: str) -> str:
    closed = json.dumps(closed_schema(json.loads(schema)))
    return LLMatcher.grammar_from_json_schema(closed, overrides=_NO_BLANKS)  # type: ignore[arg-type]


def _of_regex(expression: str) -> str:
    """The library leaves out a backslash at the end that escapes nothing."""
    if (len(expression) - len(expression.rstrip("\\"))) % 2:
        raise RefusedError("ends with a backslash that escapes nothing")
    return LLMatcher.grammar_from_regex(expression)


def _of_choice(texts: list[str]) -> str:
    """As a regular expression: alternatives may begin alike."""
    return LLMatcher.grammar_from_regex("|".join("".join(map(_literal, text)) for text in texts))


def _literal(char: str) -> str:
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}"


def _of_grammar(text: str) -> str:
    """Lark's notation or GBNF's, whose first rule is ``root``. Only a rule of GBNF begins with a name and ``::=``."""
    try:
        lark = gbnf_to_lark(text) if _GBNF_RULE.search(text) else text
    except Exception as error:  # the converter raises plain ones
        raise _library_refused(str(error)) from None
    grammar = json.dumps({"grammars": [{"lark_grammar": lark}]})
    is_error, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=_LIMITS)
    if is_error:
        raise _library_refused(messages[0])
    if messages:  # without a tokenizer the library warns of special tokens, which are never part of a form
        raise RefusedError("special tokens cannot be part of it")
    return grammar


MAKERS: dict[str, Callable[[Any], str]] = {
    "json_schema": _of_json_schema,
    "regex": _of_regex,
    "choice": _of_choice,
    "grammar": _of_grammar,
}
"""By kind of form. They raise RefusedError or the library's ValueError."""


def writable(kind: str, grammar: str, without: str) -> str:
    """The grammar of a form that is one regular expression, without these characters."""
    if kind not in ("regex", "choice") or not without:
        return grammar
    parts = json.loads(grammar)
    [form] = parts["grammars"]
    expression = form["lark_grammar"].removeprefix("start: ")
    form["lark_grammar"] = f"start: FORM\nFORM: {expression} & /[^{without}]*/"
    return json.dumps(parts)


def try_grammar(tokenizer: LLTokenizer, grammar: str) -> None:
    """Raises: RefusedError if a worker could not follow it."""
    deadline = time.process_time() + _TRIAL_SECONDS
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=_LIMITS)
    ends = sum(1 << token_id for token_id in set(tokenizer.eos_tokens))
    numbers = random.Random(0)  # the same trial for everybody
    for _ in range(_TRIAL_TOKENS):
        mask = b"" if matcher.is_error() else matcher.compute_bitmask()
        if matcher.is_error():
            error = matcher.get_error()
            raise RefusedError(_NOTHING) if error.startswith("NoExtension") else _library_refused(error)
        allowed = int.from_bytes(mask, "little") & ~ends
        if not allowed:
            break
        matcher.consume_token(_next_bit(allowed, numbers.randrange(8 * len(mask))))
        if time.process_time() > deadline:
            raise RefusedError("it takes too much time to follow")


def with_hidden_specials(tokenizer_json: str) -> str:
    """A tokenizer.json whose special tokens have names that no text holds.

    The library takes text that can only go on in one way for its tokens, and would take the name of a special token in
    it for that token, which is never part of a form.
    """
    parts = json.loads(tokenizer_json)
    added, model = parts.get("added_tokens", ()), parts.get("model", {})
    names = {token["content"]: _NO_TEXT + token["content"] for token in added if token["special"]}
    for token in added:
        token["content"] = names.get(token["content"], token["content"])
    vocab = model.get("vocab", {})
    if isinstance(vocab, dict):
        model["vocab"] = {names.get(piece, piece): token_id for piece, token_id in vocab.items()}
    else:
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocab]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    return json.dumps(parts, ensure_ascii=False)


def _next_bit(bits: int, start: int) -> int:
    """The first bit that is set at ``start`` or behind it, else the first of all."""
    behind = bits >> start
    lowest = behind & -behind if behind else bits & -bits
    return lowest.bit_length() - 1 + (start if behind else 0)


def _prepare(first: dict[str, Any]) -> Answer:
    try:
        tokenizer = LLTokenizer(
            with_hidden_specials(first["tokenizer_json"]),
            n_vocab=first["vocab_size"],
            eos_token=first["eos_token_ids"] or None,
        )
    except ValueError:
        tokenizer = None
    without = "" if tokenizer is None else unwritable(tokenizer)

    def answer(asked: dict[str, Any]) -> dict[str, str]:
        if tokenizer is None or not first["eos_token_ids"]:
            return {"refused": "the served model's tokenizer allows no structured output"}
        try:
            grammar = writable(asked["kind"], MAKERS[asked["kind"]](asked["content"]), without)
            try_grammar(tokenizer, grammar)
        except ValueError as error:
            told = str(error if isinstance(error, RefusedError) else _library_refused(str(error)))
            told = _OF_OUR_GRAMMAR.sub("", told) if asked["kind"] == "regex" else told
            return {"refused": " ".join(told.replace("<non-verbose/>", "").split())[:_MAX_MESSAGE]}
        return {"grammar": grammar}

    return answer


if __name__ == "__main__":
    sys.exit(serve(_prepare, max_seconds=MAX_SECONDS))
