"""A model's tokens as grammars see them, and matchers for grammars over them.

Masks allow tokens of text alone, and end-of-sequence tokens where the form is complete: no other special token is ever
part of a form. The limits of a matcher are those that the fronts try every grammar with.
"""

import json
import os
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask, fill_next_token_bitmask_par

from gpu_worker.token_masks import Words, num_words, token_bits

_LIMITS = LLParserLimits(max_lexer_states=20_000, max_grammar_size=100_000, verbose_errors=False)
_MAX_COMPILED = 64
_MAX_THREADS = 8
_FEW = 8
"""Masks that one thread makes in the time it takes to wake others: most take some 10 us."""
_NO_TEXT = "\ufdd0"
"""A code point that is no character."""


class GrammarVocabulary:
    """Made once a model; its methods may be called from any thread."""

    def __init__(self, tokenizer_json: bytes, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """Raises: ValueError if there is no end-of-sequence token or the tokenizer is of a kind that is not known."""
        if not eos_token_ids:
            raise ValueError("there is no end-of-sequence token")
        self._tokenizer = LLTokenizer(
            _with_hidden_specials(tokenizer_json.decode()), n_vocab=vocab_size, eos_token=list(eos_token_ids)
        )
        special = [token_id for token_id in range(vocab_size) if self._tokenizer.is_special_token(token_id)]
        self._num_words = num_words(vocab_size)
        self._possible = ~token_bits(special, vocab_size) | token_bits(eos_token_ids, vocab_size)
        self._executor = LLExecutor(max(1, min(_MAX_THREADS, (os.cpu_count() or 1) // 2)))
        self._compiled = lru_cache(_MAX_COMPILED)(self._compile)

    def matcher(self, grammar: str) -> LLMatcher:
        """A matcher at its beginning. One of a grammar that is not usable allows nothing."""
        return self._compiled(grammar).deep_copy()

    def masks(self, matchers: Sequence[LLMatcher]) -> Words:
        """What each allows next, int32 [F, W]; nothing if it failed."""
        words = np.zeros((len(matchers), self._num_words), dtype=np.int32)
        if len(matchers) <= _FEW:
            for place, each in enumerate(matchers):
                fill_next_token_bitmask(each, words, place)
        else:
            fill_next_token_bitmask_par(self._executor, [(each, place) for place, each in enumerate(matchers)], words)
        words &= self._possible
        words[[each.is_error() for each in matchers]] = 0
        return words

    def _compile(self, grammar: str) -> LLMatcher:
        return LLMatcher(self._tokenizer, grammar, log_level=0, limits=_LIMITS)


def _with_hidden_specials(tokenizer_json: str) -> str:
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
