"""The options few requests use, in token ids: neutral ones are not sent, bad words are what a text would hold."""

from array import array
from typing import Any

import pytest
from pagewire.v1 import generation_pb2 as pb
from support.fake_scheduler import toy_card

from scheduler_svc.front.errors import InvalidRequestError
from scheduler_svc.front.row_options import row_options
from scheduler_svc.front.served_model import build_served_model

CARD = toy_card()
MODEL = build_served_model(CARD)
EOS = frozenset({257})


def options(stop: dict[str, Any] | None = None, **sampling: Any) -> Any:
    request = pb.GenerateRequest(sampling=pb.SamplingOptions(**sampling), stop=pb.StopOptions(**(stop or {})))
    return row_options(request, MODEL, EOS)


def ids(column: bytes) -> list[int]:
    values = array("i")
    values.frombytes(column)
    return values.tolist()


def test_neutral_options_are_an_empty_message() -> None:
    neutral = options(frequency_penalty=0.0, presence_penalty=0.0, repetition_penalty=1.0, logit_bias={3: 0.0})
    assert neutral.ByteSize() == 0


def test_everything_is_carried() -> None:
    found = options(
        {"min_tokens": 2},
        frequency_penalty=0.5,
        repetition_penalty=2.0,
        logit_bias={9: 1.5, 4: -2.0},
        allowed_token_ids=[8, 7, 8],
    )
    assert (found.frequency_penalty, found.repetition_penalty, found.min_tokens) == (0.5, 2.0, 2)
    assert (ids(found.bias_token_ids), array("f", found.biases).tolist()) == ([4, 9], [-2.0, 1.5])
    assert (ids(found.allowed_token_ids), ids(found.stop_token_ids)) == ([7, 8], [257])


def test_a_bad_word_of_tokens_that_the_model_lacks_is_none() -> None:
    """A tokenizer may know more tokens than the model has rows for."""
    model = build_served_model(toy_card(vocab_size=264))
    request = pb.GenerateRequest(sampling=pb.SamplingOptions(bad_words=["KLM", "a world"]))
    found = ids(row_options(request, model, EOS).bad_words)
    assert 260 in found
    assert max(found) < 264


def test_the_checkpoint_has_a_repetition_penalty_of_its_own() -> None:
    card = toy_card()
    card.generation_defaults.repetition_penalty = 1.5
    model = build_served_model(card)
    for sampling, penalty in (({}, 1.5), ({"repetition_penalty": 1.0}, 0.0), ({"repetition_penalty": 1.25}, 1.25)):
        request = pb.GenerateRequest(sampling=pb.SamplingOptions(**sampling))
        assert row_options(request, model, EOS).repetition_penalty == penalty


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("N", [1, 261]),
        (" KLM", [1, 260]),
        ("world", [5, *b"world", 1, 264]),
        ("ab", [2, *b"ab"]),
    ],
)
def test_bad_words_are_tokens_at_the_beginning_and_behind_a_blank(word: str, expected: list[int]) -> None:
    found = ids(options(bad_words=[word]).bad_words)
    assert found == expected


@pytest.mark.parametrize(
    ("stop", "sampling"),
    [
        ({"min_tokens": 1}, {"allowed_token_ids": [257]}),
        ({}, {"allowed_token_ids": [260], "bad_words": ["KLM"]}),
        ({"min_tokens": 1}, {"allowed_token_ids": [257, 260], "bad_words": ["KLM"]}),
    ],
)
def test_options_that_leave_no_token_are_refused(stop: dict[str, Any], sampling: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as error:
        options(stop, **sampling)
    assert [violation.field for violation in error.value.violations] == ["sampling.allowed_token_ids"]
