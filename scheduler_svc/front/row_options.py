"""The sampling options that few requests use, in the worker's form: all in token ids.

A bad word is forbidden as the tokens it has at the beginning of a text and, if they do not end with those, as the
tokens it has with a blank before it. Only what is not neutral is written, so that a request without options has an
empty message.
"""

from collections.abc import Sequence
from typing import Any

from pagewire.internal.v1 import worker_pb2

from scheduler_svc.columns import floats, ints
from scheduler_svc.front.errors import InvalidRequestError
from scheduler_svc.front.served_model import ServedModel

MAX_BAD_WORD_TOKENS = 64


def row_options(request: Any, model: ServedModel, stop_token_ids: frozenset[int]) -> Any:
    """The RowOptions of a checked GenerateRequest.

    Raises: InvalidRequestError if they leave no token to choose, or a bad word has too many tokens.
    """
    sampling, min_tokens = request.sampling, request.stop.min_tokens
    options = worker_pb2.RowOptions(
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        repetition_penalty=_repetition_penalty(sampling, model),
    )
    words: list[tuple[int, ...]] = []
    # Few requests have any of these, and even to make nothing of each takes its time.
    if sampling.logit_bias:
        biases = sorted((token_id, bias) for token_id, bias in sampling.logit_bias.items() if bias)
        options.bias_token_ids = ints([token_id for token_id, _ in biases])
        options.biases = floats([bias for _, bias in biases])
    if sampling.allowed_token_ids:
        options.allowed_token_ids = ints(sorted(set(sampling.allowed_token_ids)))
    if sampling.bad_words:
        words = [word for place, text in enumerate(sampling.bad_words) for word in _words(text, place, model)]
        options.bad_words = b"".join(ints([len(word), *word]) for word in words)
    if min_tokens and stop_token_ids:
        options.min_tokens = min_tokens
        options.stop_token_ids = ints(sorted(stop_token_ids))
    for name in ("logprobs", "prompt_logprobs"):
        if request.output.HasField(name):
            setattr(options, name, getattr(request.output, name))
    if sampling.allowed_token_ids:
        _check_choice(sampling.allowed_token_ids, words, stop_token_ids if min_tokens else frozenset())
    return options


def _repetition_penalty(sampling: Any, model: ServedModel) -> float:
    """The caller's, else the checkpoint's; 0 stands for 1."""
    defaults = model.card.generation_defaults
    chosen = sampling if sampling.HasField("repetition_penalty") else defaults
    return 0.0 if chosen.repetition_penalty == 1.0 else float(chosen.repetition_penalty)


def _words(text: str, place: int, model: ServedModel) -> list[tuple[int, ...]]:
    """The tokens of a bad word at the beginning of a text and behind a blank, if the model has them."""
    bare = text.lstrip()
    first = tuple(model.tokenizer.encode(bare, add_special_tokens=False))
    inside = tuple(model.tokenizer.encode(" " + bare, add_special_tokens=False))
    words = [first] if first else []
    if inside and (not first or inside[-len(first) :] != first):
        words.append(inside)
    if any(len(word) > MAX_BAD_WORD_TOKENS for word in words):
        raise InvalidRequestError.at(f"sampling.bad_words[{place}]", f"at most {MAX_BAD_WORD_TOKENS} tokens")
    return [word for word in words if max(word) < model.vocab_size]


def _check_choice(allowed: Any, words: Sequence[tuple[int, ...]], masked: frozenset[int]) -> None:
    forbidden = {word[0] for word in words if len(word) == 1} | masked
    if forbidden.issuperset(allowed):
        raise InvalidRequestError.at(
            "sampling.allowed_token_ids", "bad words and min_tokens leave none of them to choose"
        )
