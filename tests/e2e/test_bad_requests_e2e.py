"""Requests a server must refuse or drop, on the real stack: a clear error, and nothing of them left."""

import itertools
from typing import Any

import pytest
from pagewire_client import Delta, InvalidRequestError
from support.stack import Stack, attached_log

GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 4}


@pytest.mark.parametrize(
    ("prompt", "options", "field"),
    [
        ("", {}, "text"),
        ([], {}, "token_ids"),
        ([17] * 8192, {}, "token_ids"),
        ("x " * 10_000, {}, "text"),
        ([17, 49152], {}, "token_ids"),
        ([17, 2**32 - 1], {}, "token_ids"),
        ("x", {"temperature": -1.0}, "sampling.temperature"),
        ("x", {"temperature": float("nan")}, "sampling.temperature"),
        ("x", {"top_p": 0.0}, "sampling.top_p"),
        ("x", {"top_p": 1.5}, "sampling.top_p"),
        ("x", {"min_p": 1.5}, "sampling.min_p"),
        ("x", {"max_tokens": 0}, "stop.max_tokens"),
        ("x", {"stop": [""]}, "stop.stop"),
        ("x", {"n": 0}, "output.n"),
    ],
)
def test_an_invalid_field_is_named(roomy: Stack, prompt: str | list[int], options: dict[str, Any], field: str) -> None:
    with attached_log(roomy), pytest.raises(InvalidRequestError) as caught:
        roomy.client.generate(prompt, **{**GREEDY, **options})
    named = [violation.field for violation in caught.value.field_violations]
    assert any(name.startswith(field) for name in named), named


def test_all_violations_are_told_at_once(roomy: Stack) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        roomy.client.generate("x", temperature=-1.0, top_p=2.0, max_tokens=0)
    named = {violation.field for violation in caught.value.field_violations}
    assert {"sampling.temperature", "sampling.top_p", "stop.max_tokens"} <= named


def test_refused_requests_leave_nothing_and_neighbours_alone(roomy: Stack) -> None:
    with attached_log(roomy):
        with roomy.client.stream("The sea", temperature=0.0, max_tokens=24, ignore_eos=True) as stream:
            next(stream)
            for _ in range(4):
                with pytest.raises(InvalidRequestError):
                    roomy.client.generate([17, 49152], **GREEDY)
            assert stream.join().usage.output_tokens == 24
        roomy.await_idle()


def test_a_client_that_leaves_frees_its_pages(roomy: Stack) -> None:
    with attached_log(roomy):
        before = roomy.await_idle()
        with roomy.client.stream(
            [7] * 200, temperature=0.0, max_tokens=2000, ignore_eos=True, token_ids=True
        ) as stream:
            seen = [event for event in itertools.islice(stream, 3) if isinstance(event, Delta)]
            assert seen
            assert roomy.load().num_held_pages > 0
        after = roomy.await_idle()
        assert after.num_output_tokens - before.num_output_tokens < 500


def test_a_prompt_cancelled_while_it_is_computed_frees_its_pages(roomy: Stack) -> None:
    """Many chunks long, so that the cancel falls between them."""
    with attached_log(roomy):
        before = roomy.await_idle()
        prompt = [(31 * i) % 40_000 + 100 for i in range(4000)]
        with roomy.client.stream(prompt, temperature=0.0, max_tokens=2, progress_events=True) as stream:
            next(stream)
        after = roomy.await_idle()
        assert after.num_computed_tokens - before.num_computed_tokens < 4000
