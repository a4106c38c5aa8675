"""Finds stop strings in text that arrives in pieces.

The rule: the occurrence that is *complete* first wins; of those completed by the same character, the one that started
earliest (the longest). So the answer depends on the text alone: not on how it was cut into pieces, nor on the order of
the list. Text that could still become a stop string is held back; text behind a match never comes out.

The matcher is an Aho-Corasick automaton: its state is the longest suffix of the text that begins a stop string, hence
`depth[state]` characters are held back. Cost: O(characters); at the root a compiled character class skips ahead in C.
"""

import re
from collections import deque
from collections.abc import Sequence


class StopStrings:
    """The automaton of one request; shared by its outputs, never changed."""

    __slots__ = ("_first", "depth", "edges", "found", "links")

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops`: at least one, none empty. Cost: O(characters of all)."""
        self.edges: list[dict[str, int]] = [{}]
        self.depth: list[int] = [0]
        self.links: list[int] = [0]
        self.found: list[str | None] = [None]
        for stop in stops:
            self._add(stop)
        self._link()
        self._first = re.compile("[" + "".join(re.escape(first) for first in self.edges[0]) + "]")

    def _add(self, stop: str) -> None:
        state = 0
        for char in stop:
            following = self.edges[state].get(char)
            if following is None:
                following = len(self.edges)
                self.edges[state][char] = following
                self.edges.append({})
                self.depth.append(self.depth[state] + 1)
                self.links.append(0)
                self.found.append(None)
            state = following
        self.found[state] = stop

    def _link(self) -> None:
        """Breadth first: each state's longest proper suffix that is a state too."""
        waiting = deque(self.edges[0].values())
        while waiting:
            state = waiting.popleft()
            if self.found[state] is None:
                self.found[state] = self.found[self.links[state]]
            for char, child in self.edges[state].items():
                self.links[child] = self.step(self.links[state], char)
                waiting.append(child)

    def step(self, state: int, char: str) -> int:
        """The state after one more character."""
        while True:
            following = self.edges[state].get(char)
            if following is not None:
                return following
            if state == 0:
                return 0
            state = self.links[state]

    def next_start(self, text: str, position: int) -> int:
        """Where the next character that begins a stop string stands; the text's length if nowhere."""
        hit = self._first.search(text, position)
        return len(text) if hit is None else hit.start()


class StopMatcher:
    """Where one output stands in its search."""

    __slots__ = ("_held", "_state", "_stops")

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self._state = 0
        self._held = ""

    def copy(self) -> "StopMatcher":
        """An independent matcher at the same place. Cost: O(1)."""
        twin = StopMatcher(self._stops)
        twin._state, twin._held = self._state, self._held
        return twin

    def feed(self, text: str, *, include_stop: bool, may_match: bool = True) -> tuple[str, str | None]:
        """Takes more text; returns what may be sent now, and the stop string that ends the output.

        Without `may_match` a stop string that this text completes is text like any other.
        """
        stops, state, position, end = self._stops, self._state, 0, len(text)
        while position < end:
            if state == 0:
                position = stops.next_start(text, position)
                if position == end:
                    break
            state = stops.step(state, text[position])
            position += 1
            stop = stops.found[state]
            if stop is not None and may_match:
                return self._ended(text[:position], stop, include_stop), stop
        self._state = state
        window = self._held + text
        keep = len(window) - stops.depth[state]
        self._held = window[keep:]
        return window[:keep], None

    def _ended(self, text: str, stop: str, include_stop: bool) -> str:
        """The last text, which ends in the stop string."""
        window, self._held = self._held + text, ""
        return window if include_stop else window[: len(window) - len(stop)]

    def flush(self) -> str:
        """The text held back, once it is sure that nothing follows."""
        held, self._held, self._state = self._held, "", 0
        return held
