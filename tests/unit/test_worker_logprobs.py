"""Log probabilities of single positions by hand: order, ranks, ties and the chosen token."""

import math

import pytest
import torch

from gpu_worker.batch_plan import RowLogprobs
from gpu_worker.logprobs import Asked, StepLogprobs, top_logprobs

FALLING = torch.arange(9.0, -41.0, -1.0)[None]
FILLER = (-1, 0)


def of(logits: torch.Tensor, chosen: int, num_top: int, *, largest: int | None = None) -> RowLogprobs:
    """``largest``: what a neighbour in the step asks for."""
    found = top_logprobs(logits, torch.tensor([chosen]), num_top if largest is None else largest)
    return StepLogprobs([Asked(row=3, num_top=num_top)], found).rows()[0]


def entries(found: RowLogprobs) -> list[tuple[int, int]]:
    return list(zip(found.token_ids.tolist(), found.ranks.tolist(), strict=True))


@pytest.mark.parametrize("largest", [None, 20])
@pytest.mark.parametrize("chosen", [0, 2, 40])
@pytest.mark.parametrize("num_top", [0, 1, 3, 20])
def test_lgp_02_the_chosen_token_is_there_once(num_top: int, chosen: int, largest: int | None) -> None:
    found = of(FALLING, chosen, num_top, largest=largest)
    expected = [(token_id, token_id + 1) for token_id in range(num_top)]
    expected.append(FILLER if chosen < num_top else (chosen, chosen + 1))
    assert (found.row, found.width, entries(found)) == (3, num_top + 1, expected)
    exact = torch.log_softmax(FALLING[0].double(), 0)
    for token_id, value in zip(found.token_ids.tolist(), found.logprobs.tolist(), strict=True):
        assert value == (-math.inf if token_id < 0 else pytest.approx(float(exact[token_id]), abs=1e-6))
    assert sum(math.exp(value) for value in found.logprobs.tolist()) <= 1.000001


def test_lgp_02_of_equal_tokens_the_lower_id_comes_first() -> None:
    logits = torch.tensor([[0.0, 5.0, -0.0, 5.0, 0.0, -3.0]])
    assert entries(of(logits, 4, 4)) == [(1, 1), (3, 2), (0, 3), (2, 4), (4, 5)]
    assert entries(of(logits.bfloat16(), 2, 4)) == [(1, 1), (3, 2), (0, 3), (2, 4), FILLER]


def test_lgp_02_more_than_the_vocabulary_is_all_of_it() -> None:
    found = of(torch.tensor([[1.0, 2.0, 3.0]]), 0, 5)
    assert entries(found) == [(2, 1), (1, 2), (0, 3), FILLER]


def test_infinite_logits_have_their_place() -> None:
    logits = torch.tensor([[-math.inf, 1.0, -math.inf, 2.0]])
    assert entries(of(logits, 2, 3)) == [(3, 1), (1, 2), (0, 3), (2, 4)]
