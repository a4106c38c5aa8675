"""Any form, and any choice among the tokens that its masks allow: the output has the form, with a real model's
tokenizer.

Logits are drawn instead of computed; every mask is made by the worker's threads from a grammar of the fronts.
"""

import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from llguidance import LLTokenizer
from support.smollm2 import MISSING, find_gguf, model_card
from support.structured_forms import characters, expressions, has_form, has_no_blanks, schemas
from tokenizers import Tokenizer

from gpu_worker.batch_plan import int32s
from gpu_worker.grammar_vocabulary import GrammarVocabulary
from gpu_worker.matchers import Matchers
from scheduler_svc.front.grammar_process import MAKERS, RefusedError, try_grammar

GGUF = find_gguf()
pytestmark = pytest.mark.skipif(GGUF is None, reason=MISSING)
MAX_TOKENS = 400
FINE = int32s([0])
Parts = tuple[Matchers, Tokenizer, int, int]


@pytest.fixture(scope="module")
def parts() -> Parts:
    assert GGUF is not None
    card = model_card(GGUF)
    vocabulary = GrammarVocabulary(card.tokenizer_json, card.vocab_size, card.eos_token_ids)
    tokenizer = Tokenizer.from_buffer(card.tokenizer_json)
    return Matchers(vocabulary, card.vocab_size), tokenizer, card.vocab_size, card.eos_token_ids[0]


def output(parts: Parts, grammar: str, seed: int, *, resume_at: int = -1) -> str:
    """The text of a row; at ``resume_at`` tokens it is preempted."""
    matchers, tokenizer, vocab_size, eos = parts
    scores = np.random.default_rng(seed)
    token_ids: list[int] = []
    matchers.begin(0, grammar, int32s())
    while len(token_ids) < MAX_TOKENS:
        if len(token_ids) == resume_at:
            matchers.release(0)
            matchers.begin(0, grammar, int32s(token_ids))
        [mask] = matchers.masks([0])
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:vocab_size])
        assert len(allowed), tokenizer.decode(token_ids)
        token_id = int(allowed[scores.random(len(allowed)).argmax()])
        if token_id == eos:
            return str(tokenizer.decode(token_ids, skip_special_tokens=False))
        token_ids.append(token_id)
        matchers.advance(int32s([0]), lambda sampled=token_id: (int32s([sampled]), FINE))
    raise AssertionError(f"no end: {tokenizer.decode(token_ids)[:200]}")


seeds = st.integers(0, 2**32 - 1)
steps = st.integers(-1, 5)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(schema=schemas, seed=seeds, resume_at=steps)
@example(schema={"type": "object", "properties": {"a": {"type": "null"}}, "required": []}, seed=1, resume_at=1)
def test_schemas(parts: Parts, schema: dict[str, Any], seed: int, resume_at: int) -> None:
    text = output(parts, MAKERS["json_schema"](json.dumps(schema)), seed, resume_at=resume_at)
    assert has_form(json.loads(text), schema), text
    assert has_no_blanks(text), text


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(expression=expressions, seed=seeds, resume_at=steps)
def test_regular_expressions(parts: Parts, expression: str, seed: int, resume_at: int) -> None:
    text = output(parts, MAKERS["regex"](expression), seed, resume_at=resume_at)
    assert re.fullmatch(expression, text), text


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(choices=st.lists(st.text(characters, min_size=1, max_size=6), min_size=1, max_size=5), seed=seeds)
@example(choices=["a", "ab", "abc", '"\\\n', "😀/|)"], seed=5)
def test_choices(parts: Parts, choices: list[str], seed: int) -> None:
    assert output(parts, MAKERS["choice"](choices), seed) in choices


@pytest.mark.parametrize("kind", ["lark", "marked lark", "gbnf"])
def test_grammars(parts: Parts, kind: str) -> None:
    text = {
        "lark": 'start: sum\nsum: NUMBER (" + " NUMBER)~0..3\nNUMBER: /[1-9][0-9]{0,2}/',
        "marked lark": '\n  ?start: sum\n  !sum: NUMBER (" + " NUMBER)~0..3\n  NUMBER: /[1-9][0-9]{0,2}/',
        "gbnf": 'root ::= number more{0,3}\nmore ::= " + " number\nnumber ::= [1-9] [0-9]{0,2}',
    }[kind]
    for seed in range(10):
        assert re.fullmatch(r"[1-9]\d{0,2}( \+ [1-9]\d{0,2}){0,3}", output(parts, MAKERS["grammar"](text), seed))


@pytest.mark.parametrize(
    ("kind", "text"),
    [("regex", ".*a.{2000}b"), ("regex", "((a{1,1000}){1,1000}){1,1000}"), ("grammar", 'start: start start | "a"')],
)
def test_str_01_what_takes_ever_more_time_is_refused(parts: Parts, kind: str, text: str) -> None:
    assert GGUF is not None
    card = model_card(GGUF)
    tokenizer = LLTokenizer(card.tokenizer_json.decode(), n_vocab=card.vocab_size, eos_token=list(card.eos_token_ids))
    with pytest.raises(RefusedError, match=r"too many|too much time|max is"):
        try_grammar(tokenizer, MAKERS[kind](text))
