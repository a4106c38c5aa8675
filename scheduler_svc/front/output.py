"""One output of a request: its merging slot, its text, and where it ends.

Token ids are appended to the slot as they come and decoded when someone takes them (or scans ahead). Stop strings are
searched in the decoded text; a match is mapped back to the token that completed it by replaying the last piece token
by token.

Invariants: text and ids taken never exceed the ending; the joined text depends on the ids alone, not on how they came;
a stop or end-of-sequence token has no text; the first `min_tokens` tokens complete no stop string; an incomplete
character at the end is not searched for stop strings.
"""

from array import array
from collections.abc import Callable
from typing import Any

from scheduler_svc.front.detokenizer import Detokenizer
from scheduler_svc.front.logprobs import LogprobColumns
from scheduler_svc.front.stop_strings import StopMatcher

MAX_PIECE_TOKENS = 8192
"""Most tokens decoded at once, so that messages stay far below what clients accept."""


class Output:
    """One output, from its first token to its last text."""

    __slots__ = (
        "_detokenizer",
        "_include_stop",
        "_logprobs",
        "_matcher",
        "_min_tokens",
        "_num_decoded",
        "_num_logprobs",
        "_num_skipped",
        "_ready_ids",
        "_ready_text",
        "_skips_tail",
        "_stop_token_ids",
        "_stop_token_seen",
        "ending",
        "index",
        "is_finished",
        "is_stop_told",
        "num_to_stop",
        "num_told",
        "slot",
        "stop_string",
        "was_finished",
    )

    def __init__(
        self,
        index: int,
        detokenizer: Detokenizer | None,
        matcher: StopMatcher | None,
        *,
        stop_token_ids: frozenset[int],
        include_stop: bool,
        min_tokens: int = 0,
    ) -> None:
        """`detokenizer` is None if nobody wants text; `matcher` if there are no stop strings."""
        self.index = index
        self.ending: Any = None
        """The scheduler's OutputEnded, once it came."""
        self.is_finished = False
        """Its `finished` event was taken."""
        self.stop_string: str | None = None
        """The stop string that was found."""
        self.is_stop_told = False
        """The scheduler knows of it, or need not."""
        self.num_to_stop = 0
        """Output tokens up to and with the one that completed it."""
        self.num_told = 0
        """Its tokens as its caller has counted them so far."""
        self.was_finished = False
        """Its caller had its `finished` event before."""
        self.slot = array("i")
        """Tokens that were not decoded yet. While it holds some, the link may append to it. When a stop string is found
        there is another one, and whatever comes stays behind."""
        self._num_skipped = 0
        self._skips_tail = False
        self._detokenizer = detokenizer
        self._matcher = matcher
        self._stop_token_ids = stop_token_ids
        self._include_stop = include_stop
        self._logprobs = LogprobColumns()
        self._num_logprobs = 0
        self._min_tokens = min_tokens
        self._ready_text: list[str] = []
        self._ready_ids = array("i")
        self._num_decoded = 0
        self._stop_token_seen = False

    @property
    def pending_bytes(self) -> int:
        """About the size of what was not taken yet."""
        ready = sum(map(len, self._ready_text)) if self._ready_text else 0
        return (len(self.slot) + len(self._ready_ids)) * 4 + ready + self._logprobs.num_bytes

    @property
    def num_decoded(self) -> int:
        """Tokens decoded, of which a `take` leaves none."""
        return self._num_decoded

    @property
    def num_received(self) -> int:
        """Tokens received, those behind a stop string left out."""
        return self._num_decoded + len(self.slot)

    def skip(self, num_tokens: int, *, tail: bool, finished: bool) -> None:
        """Text and ids of the first tokens, and the tail of the text, are not to be taken: the caller has them."""
        self._num_skipped = self.num_told = num_tokens
        self._skips_tail = tail or finished
        self.was_finished = finished

    def adder(self, on_unread: Callable[["Output"], None]) -> Callable[[int], None]:
        """What takes one of the scheduler's tokens and tells of it; those behind a stop string are dropped."""

        def add(token_id: int) -> None:
            if self.stop_string is None:
                self.slot.append(token_id)
                on_unread(self)

        return add

    def append_logprobs(self, found: Any) -> None:
        """Log probabilities (RowLogprobs) of the next token that has none yet; they come after it, and it may have been
        searched by then. Those of tokens behind a stop string are dropped."""
        if self.stop_string is None or self._num_logprobs < self.num_to_stop:
            self._num_logprobs += 1
            self._logprobs.append(found)

    def take_logprobs(self, num_tokens: int) -> Any:
        """Logprobs of the oldest tokens taken whose were not taken; None if there are none."""
        return self._logprobs.take(num_tokens)

    def end(self, ending: Any) -> None:
        """The scheduler's OutputEnded: later tokens do not count."""
        self.ending = ending
        excess = self.num_received - ending.num_output_tokens
        if excess > 0:
            del self.slot[max(0, len(self.slot) - excess) :]

    def scan(self) -> None:
        """Decodes and searches all that came, for a later `take`."""
        while self.slot:
            self._decode_piece()

    def take(self) -> "tuple[str, array[int]]":
        """Text that is certain by now, and the ids taken with it; both empty if nothing is new."""
        while self.slot and not self._ready_ids:
            self._decode_piece()
        text, token_ids = "".join(self._ready_text), self._ready_ids
        self._ready_text = []
        self._ready_ids = array("i")
        return text, token_ids

    def finish(self) -> str:
        """The last text, once the ending is known and everything was taken."""
        self.is_finished = True
        if self._detokenizer is None or self.stop_string is not None:
            return ""
        held = self._matcher.flush() if self._matcher is not None else ""
        tail = held + self._detokenizer.flush()
        return "" if self._skips_tail else tail

    def _decode_piece(self) -> None:
        num_skipped = max(0, self._num_skipped - self._num_decoded)
        num_unmatched = max(0, self._min_tokens - self._num_decoded) if self._matcher is not None else 0
        token_ids = self.slot[
            : min(num_skipped or MAX_PIECE_TOKENS, num_unmatched or MAX_PIECE_TOKENS, MAX_PIECE_TOKENS)
        ]
        if not token_ids:
            return
        del self.slot[: len(token_ids)]
        text = self._decode(token_ids)
        if self.stop_string is not None:
            del token_ids[self.num_to_stop - self._num_decoded :]
            self.slot = array("i")
        self._num_decoded += len(token_ids)
        if num_skipped:
            return
        self._ready_ids.extend(token_ids)
        if text:
            self._ready_text.append(text)

    def _decode(self, token_ids: "array[int]") -> str:
        """Text of one piece; a stop string completed in it is noted."""
        if self._detokenizer is None or self._stop_token_seen:
            return ""
        with_text = self._before_stop_token(token_ids)
        if self._matcher is None:
            return self._detokenizer.feed(with_text)
        detokenizer, matcher = self._detokenizer.copy(), self._matcher.copy()
        text, stop = self._matcher.feed(
            self._detokenizer.feed(with_text),
            include_stop=self._include_stop,
            may_match=self._num_decoded >= self._min_tokens,
        )
        if stop is not None:
            self.stop_string = stop
            self.num_to_stop = self._num_decoded + _completing_token(detokenizer, matcher, with_text)
        return text

    def _before_stop_token(self, token_ids: "array[int]") -> "array[int]":
        """The ids before the first stop token: it ends the text however the scheduler's messages are cut."""
        if self._stop_token_ids.isdisjoint(token_ids):
            return token_ids
        self._stop_token_seen = True
        place = next(place for place, token_id in enumerate(token_ids) if token_id in self._stop_token_ids)
        return token_ids[:place]


def _completing_token(detokenizer: Detokenizer, matcher: StopMatcher, token_ids: "array[int]") -> int:
    """How many of the ids it takes until a stop string is complete."""
    for position, token_id in enumerate(token_ids, start=1):
        if matcher.feed(detokenizer.feed([token_id]), include_stop=True)[1] is not None:
            return position
    return len(token_ids)
