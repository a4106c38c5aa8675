"""Matchers of rows: whatever a row's matcher or its step does, others and the worker go on."""

import threading
from typing import Any

import numpy as np
import pytest
from support.toy_tokenizer import EOS, VOCAB_SIZE, tokenizer_json

from gpu_worker.batch_plan import int32s
from gpu_worker.grammar_vocabulary import GrammarVocabulary
from gpu_worker.matchers import Matchers
from gpu_worker.token_masks import token_bits
from scheduler_svc.front.grammar_process import MAKERS

A, B = b"ab"
GRAMMAR = MAKERS["regex"]("ab?")


class Panic(BaseException):
    """As the library's, which is no Exception."""


@pytest.fixture(scope="module")
def vocabulary() -> GrammarVocabulary:
    return GrammarVocabulary(tokenizer_json(), VOCAB_SIZE, [EOS])


def allowed(matchers: Matchers, row: int) -> list[int]:
    [mask] = matchers.masks([row])
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def sample(matchers: Matchers, rows: list[int], token_ids: list[int], statuses: list[int] | None = None) -> None:
    matchers.advance(int32s(rows), lambda: (int32s(token_ids), int32s(statuses or [0] * len(rows))))


def test_masks_follow_the_tokens_and_end(vocabulary: GrammarVocabulary) -> None:
    matchers = Matchers(vocabulary, VOCAB_SIZE)
    matchers.begin(4, GRAMMAR, int32s())
    matchers.begin(2, GRAMMAR, int32s([A]))
    assert (allowed(matchers, 4), allowed(matchers, 2)) == ([A], [B, EOS])
    sample(matchers, [9, 2, 4], [5, B, A])
    assert (allowed(matchers, 4), allowed(matchers, 2)) == ([B, EOS], [EOS])
    sample(matchers, [2, 4], [EOS, EOS])
    assert (allowed(matchers, 4), allowed(matchers, 2)) == ([EOS], [EOS])
    matchers.release(2)
    assert (2 in matchers, 4 in matchers) == (False, True)


def test_masks_wait_for_the_step_before(vocabulary: GrammarVocabulary) -> None:
    matchers, done = Matchers(vocabulary, VOCAB_SIZE), threading.Event()
    matchers.begin(0, GRAMMAR, int32s())
    assert allowed(matchers, 0) == [A]

    def read() -> Any:
        assert done.wait(10)
        return int32s([A]), int32s([0])

    matchers.advance(int32s([0]), read)
    matchers.begin(1, GRAMMAR, int32s())
    assert allowed(matchers, 1) == [A]  # a new row waits for nobody
    done.set()
    assert allowed(matchers, 0) == [B, EOS]


def test_a_row_that_fails_allows_nothing_and_others_go_on(vocabulary: GrammarVocabulary) -> None:
    matchers = Matchers(vocabulary, VOCAB_SIZE)
    for row in range(3):
        matchers.begin(row, GRAMMAR, int32s())
    matchers.begin(3, "no grammar", int32s())
    assert [allowed(matchers, row) for row in range(4)] == [[A], [A], [A], []]
    sample(matchers, [0, 1, 2], [A, B, 0], [0, 0, 1])  # the second one may not, the third one has no token
    assert [allowed(matchers, row) for row in range(3)] == [[B, EOS], [], []]


@pytest.mark.parametrize("error", [RuntimeError, Panic])
def test_a_step_that_is_never_known_is_the_end_of_its_rows_alone(
    vocabulary: GrammarVocabulary, error: type[BaseException]
) -> None:
    matchers = Matchers(vocabulary, VOCAB_SIZE)

    def read() -> Any:
        raise error

    matchers.begin(0, GRAMMAR, int32s())
    assert allowed(matchers, 0) == [A]
    matchers.advance(int32s([0]), read)
    assert allowed(matchers, 0) == []
    matchers.reset()
    matchers.begin(0, GRAMMAR, int32s())
    assert allowed(matchers, 0) == [A]
    sample(matchers, [0], [A])
    assert allowed(matchers, 0) == [B, EOS]


def test_without_a_vocabulary_nothing_is_allowed() -> None:
    matchers = Matchers(None, VOCAB_SIZE)
    matchers.begin(0, GRAMMAR, int32s())
    assert allowed(matchers, 0) == []


@pytest.mark.parametrize(
    ("kind", "content"), [("choice", ["</s>"]), ("choice", ["<|sp|>"]), ("grammar", 'start: "</s>" | "<|end|>"')]
)
def test_str_03_a_form_may_hold_the_names_of_special_tokens(
    vocabulary: GrammarVocabulary, kind: str, content: Any
) -> None:
    """They are written in tokens of text; an end-of-sequence token in their place would end the output."""
    matchers = Matchers(vocabulary, VOCAB_SIZE)
    matchers.begin(0, MAKERS[kind](content), int32s())
    assert allowed(matchers, 0) == [ord("<")]


def test_a_vocabulary_needs_an_end_and_a_tokenizer() -> None:
    with pytest.raises(ValueError, match="no end-of-sequence"):
        GrammarVocabulary(tokenizer_json(), VOCAB_SIZE, [])
    with pytest.raises(ValueError, match="tokenizer"):
        GrammarVocabulary(b"{}", VOCAB_SIZE, [EOS])


def test_bits_of_tokens() -> None:
    assert token_bits([0, 33], 40).tolist() == [1, 2]
    assert token_bits([31], 32).tolist() == [-(2**31)]
