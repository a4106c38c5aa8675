"""Log probabilities from a worker to a caller, through the whole product; their values are a script's."""

from collections.abc import Iterator

import pytest
from pagewire_client import Delta, Generation, InvalidRequestError, PromptLogprobs, TokenLogprob
from pagewire_client.options import text_request
from support.scripted_rows import Limits
from support.scripted_stack import ScriptedStack
from support.scripted_worker import made_up

EOS = 257
LARGE = Limits(max_model_len=100_000, num_pages=8000)
Entries = tuple[TokenLogprob, ...]


@pytest.fixture(scope="module")
def stack() -> Iterator[ScriptedStack]:
    with ScriptedStack() as running:
        with running.worker(LARGE):  # its limits are the model's
            pass
        yield running


def entries(token_id: int, num_top: int, *, is_likely: bool) -> Entries:
    """What the worker says of one position."""
    found = made_up(token_id, num_top, is_likely=is_likely)
    return tuple(TokenLogprob(token_id=each, logprob=value, rank=rank) for each, value, rank in found if each >= 0)


def check(answer: Generation, prompt: list[int], num_top: int | None, num_prompt: int | None) -> None:
    """Every token has its entries, and nothing has any that were not asked for."""
    for output in answer.outputs:
        likely = None if num_top is None else tuple(entries(each, num_top, is_likely=True) for each in output.token_ids)
        assert output.logprobs == likely
    told = None if num_prompt is None else tuple(entries(each, num_prompt, is_likely=False) for each in prompt[1:])
    assert answer.prompt_logprobs == (None if told is None else ((), *told))


@pytest.mark.parametrize(("num_top", "num_prompt"), [(0, None), (3, None), (20, 0), (None, 1), (None, None)])
def test_lgp_02_streamed_joined_and_at_once(stack: ScriptedStack, num_top: int | None, num_prompt: int | None) -> None:
    prompt = [20, num_top or 0, *range(40, 80)]
    options = {"logprobs": num_top, "prompt_logprobs": num_prompt, "n": 2, "max_tokens": 40, "token_ids": True}
    with stack.worker(Limits(max_num_batched_tokens=16)):
        check(stack.client.generate(prompt, **options), prompt, num_top, num_prompt)
        stream = stack.client.stream(prompt, **options)
        seen = list(stream)
        request = text_request(prompt, {**options, "request_id": "many"})
        ((_, answer),) = stack.client.run_many([request])
        assert isinstance(answer, Generation)
        check(answer, prompt, num_top, num_prompt)
    kinds = [type(event) for event in seen if isinstance(event, Delta | PromptLogprobs)]
    assert (PromptLogprobs in kinds) is (num_prompt is not None)
    assert PromptLogprobs not in kinds[kinds.index(Delta) :]
    for index in range(2):
        found = [event for event in seen if isinstance(event, Delta) and event.index == index]
        ids = sum((event.token_ids for event in found), ())
        said = sum((event.logprobs or () for event in found), ())
        assert said == (() if num_top is None else tuple(entries(each, num_top, is_likely=True) for each in ids))


def test_tokens_behind_a_stop_string_have_none(stack: ScriptedStack) -> None:
    stack.outputs[21, 1] = [65, 66, 67, 68, 69, EOS]
    with stack.worker():
        answer = stack.client.generate([21, 1], stop=["C"], logprobs=1, token_ids=True)
        assert answer.outputs[0].token_ids == (65, 66, 67)
        check(answer, [21, 1], 1, None)
        ended = stack.client.generate([21, 1], logprobs=2, token_ids=True)
        assert ended.outputs[0].token_ids[-1] == EOS
        check(ended, [21, 1], 2, None)
        alone = stack.client.generate([21, 1], logprobs=2, max_tokens=3)
        assert (alone.outputs[0].token_ids, len(alone.outputs[0].logprobs or ())) == ((), 3)


def test_a_preempted_request_tells_each_position_once(stack: ScriptedStack) -> None:
    before = stack.load()
    prompt = [22, *range(100, 147)]
    with stack.worker(Limits(num_pages=12, max_num_batched_tokens=64)):
        options = {"n": 3, "max_tokens": 60, "token_ids": True, "logprobs": 2, "prompt_logprobs": 2}
        answer = stack.client.generate(prompt, **options)
        load = stack.wait_idle()
    assert load.num_preemptions > before.num_preemptions
    check(answer, prompt, 2, 2)


def test_lgp_01_the_cache_is_neither_read_nor_filled(stack: ScriptedStack) -> None:
    prompt = [23, *range(100, 140)]
    with stack.worker():
        for num_prompt, cached in ((1, 0), (None, 0), (1, 0), (None, 32)):
            answer = stack.client.generate(prompt, max_tokens=2, token_ids=True, prompt_logprobs=num_prompt)
            check(answer, prompt, None, num_prompt)
            assert answer.usage.cached_tokens == cached
        one = stack.client.generate([24], max_tokens=2, token_ids=True, prompt_logprobs=5)
        assert one.prompt_logprobs == ((),)


def test_more_than_an_answer_holds_is_refused(stack: ScriptedStack) -> None:
    with stack.worker(LARGE):
        with pytest.raises(InvalidRequestError, match="prompt_logprobs"):
            stack.client.generate([25] * 60_000, prompt_logprobs=20, max_tokens=1)
        with pytest.raises(InvalidRequestError, match="log probabilities"):
            stack.client.generate([25], logprobs=20, max_tokens=60_000)
