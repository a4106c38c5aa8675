"""The stop string matcher against a naive reference, however the text is cut."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.front.stop_strings import StopMatcher, StopStrings

TEXTS = st.text(alphabet="abc", max_size=40)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=6), min_size=1, max_size=5)


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Text before the stop string that is complete first (the longest of several), and that string."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
    return text, None


def cut(text: str, places: list[int]) -> list[str]:
    """The text in pieces; some may be empty."""
    borders = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(borders)]


@given(TEXTS, TEXTS, STOPS)
def test_text_that_may_not_match_is_remembered(early: str, text: str, stops: list[str]) -> None:
    """A stop string that begins in it and is complete behind it counts; one that is complete in it does not."""
    matcher = StopMatcher(StopStrings(stops))
    sent, match = matcher.feed(early, include_stop=False, may_match=False)
    assert match is None
    released, match = matcher.feed(text, include_stop=True)
    whole = early + text
    ends = [end for end in range(len(early) + 1, len(whole) + 1) if any(whole[:end].endswith(stop) for stop in stops)]
    assert sent + released + matcher.flush() == whole[: ends[0] if ends else None]
    assert (match is not None) == bool(ends)


@given(TEXTS, STOPS, st.lists(st.integers(0, 100), max_size=8), st.booleans())
def test_equals_the_naive_search(text: str, stops: list[str], places: list[int], include: bool) -> None:
    matcher = StopMatcher(StopStrings(stops))
    sent, match = "", None
    for piece in cut(text, places):
        released, match = matcher.feed(piece, include_stop=include)
        sent += released
        if match is not None:
            break
        # Nothing that could still become a stop string is out, and nothing else is held.
        held = text[len(sent) :][: matcher_held(matcher)]
        assert any(stop.startswith(held) and stop != held for stop in stops)
    before, stop = naive(text, stops)
    assert match == stop
    if stop is None:
        assert sent + matcher.flush() == text
    else:
        assert sent == (before + stop if include else before)


def matcher_held(matcher: StopMatcher) -> int:
    return len(matcher.copy().flush())


@given(TEXTS, STOPS)
def test_order_of_the_list_does_not_matter(text: str, stops: list[str]) -> None:
    results = {
        str(StopMatcher(StopStrings(order)).feed(text, include_stop=False))
        for order in (stops, stops[::-1], sorted(stops))
    }
    assert len(results) == 1


def test_copy_is_independent() -> None:
    matcher = StopMatcher(StopStrings(["abc"]))
    assert matcher.feed("xab", include_stop=False) == ("x", None)
    twin = matcher.copy()
    assert twin.feed("c", include_stop=False)[1] is not None
    assert matcher.feed("d", include_stop=False) == ("abd", None)


def test_special_characters_are_literal() -> None:
    matcher = StopMatcher(StopStrings(["^]", "-\\", "a.b"]))
    assert matcher.feed("a-b a]b acb", include_stop=False)[1] is None
    assert matcher.feed("^]", include_stop=False)[1] == "^]"
