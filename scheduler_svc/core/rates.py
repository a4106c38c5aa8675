"""How fast a worker is, as measured from its results: prompt tokens a second, and tokens leaving its queue.

Those that refuse a request whose deadline cannot be met (``least_...``) err on the fast side, and there is none while
little was measured: steps count that were mostly prompts, admissions as long as requests keep waiting. A speed that
nothing confirms is soon believed no more: one slow minute would have those refused for ever who alone could show that
it is over. Those of a quote are means that forget.
"""

from collections import deque
from typing import Final

FEW: Final = 4
"""Steps or admissions that are too few to say anything."""
_SLOWING = 0.1
_WINDOW = 64
_HOPE = 0.5
_LATELY: Final = 10.0
"""Seconds for which a speed is believed that nothing confirms."""
_MEMORY = 0.9


class Rates:
    """Of one worker."""

    __slots__ = (
        "_admissions",
        "_done_at",
        "_measured_at",
        "_num_measured",
        "_planned_at",
        "_prompts",
        "_seconds_per_token",
    )

    def __init__(self) -> None:
        self._planned_at: deque[float] = deque()
        self._done_at = 0.0
        self._seconds_per_token = 0.0
        self._num_measured = 0
        self._measured_at = 0.0
        self._prompts = (0.0, 0.0)
        """Seconds of steps with prompt tokens, and these tokens; the older, the less they count."""
        self._admissions: deque[tuple[float, int]] = deque(maxlen=_WINDOW)

    def note_plan(self, now: float) -> None:
        """A step was planned."""
        self._planned_at.append(now)

    def note_done(self, num_prompt_tokens: int, budget: int, now: float) -> None:
        """The oldest step has come back; it took from its plan, or from the end of the step before, until now."""
        began = max(self._planned_at.popleft(), self._done_at)
        self._done_at = now
        if num_prompt_tokens:
            seconds, count = self._prompts
            self._prompts = _MEMORY * seconds + now - began, _MEMORY * count + num_prompt_tokens
        if 2 * num_prompt_tokens < budget or now <= began:
            return
        sample = (now - began) / num_prompt_tokens
        if not self._num_measured or sample < self._seconds_per_token:
            self._seconds_per_token = sample
        else:
            self._seconds_per_token += _SLOWING * (sample - self._seconds_per_token)
        self._num_measured += 1
        self._measured_at = now

    def note_admission(self, num_tokens: int, now: float) -> None:
        """A request that was to compute so many tokens has begun."""
        self._admissions.append((now, num_tokens))

    def note_empty(self) -> None:
        """Nothing waits: what comes next does not queue."""
        self._admissions.clear()

    def least_wait(self, backlog: int, now: float) -> float:
        """Seconds that a queue of so many tokens will last, to be hopeful; 0 if that is not known."""
        return 0.0 if len(self._admissions) <= FEW else _HOPE * self._wait(backlog, now)

    def wait(self, backlog: int, now: float) -> float | None:
        """Seconds that a queue of so many tokens will last; None if that is not known."""
        return self.prefill(backlog) if len(self._admissions) <= FEW else self._wait(backlog, now)

    def prefill(self, num_tokens: int) -> float | None:
        """Seconds to compute so many prompt tokens; None if none was computed yet."""
        seconds, count = self._prompts
        return num_tokens * seconds / count if count else None

    def least_prefill(self, num_tokens: int, now: float) -> float:
        """Seconds to compute so many prompt tokens at the best speed seen lately; 0 if that is not known."""
        is_known = self._num_measured >= FEW and now - self._measured_at <= _LATELY
        return num_tokens * self._seconds_per_token if is_known else 0.0

    def _wait(self, backlog: int, now: float) -> float:
        since = self._admissions[0][0]
        num_left = sum(num_tokens for _, num_tokens in self._admissions) - self._admissions[0][1]
        return backlog * (now - since) / max(num_left, 1)
