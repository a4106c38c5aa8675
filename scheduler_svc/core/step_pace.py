"""How many prompt tokens a step may take without making running streams wait, learnt from how long steps took.

A step's time is taken to be what its decoding rows take plus so much a prompt token. Steps without prompts show the
first, steps with prompts the second; both are averages that forget. As long as either is unknown nothing is limited.

A step may take up to a target, but need not. A long prompt, one that would make streams wait several times as long as
they do, is spread over steps if its first token still comes soon, with all other prompts that wait: evenly until then,
though a step may always take half as long again as its rows.
"""

from math import ceil

_MEMORY = 0.8
"""Weight of what was known in an average."""
_LEAST_TOKENS = 16
"""So many prompt tokens are always allowed, so that every prompt comes to its end; fewer teach nothing."""
_SOON_SECONDS = 0.1
"""A first token within this time is as good as at once."""
_LONG = 3
"""A prompt is long that takes so many times what the rows of a step take."""


class StepPace:
    """One worker's pace."""

    __slots__ = ("_decode_seconds", "_token_seconds")

    def __init__(self) -> None:
        self._decode_seconds: float | None = None
        self._token_seconds: float | None = None

    def observe(self, num_prompt_tokens: int, seconds: float) -> None:
        """A step with decoding rows and so many prompt tokens took so long."""
        if num_prompt_tokens == 0:
            self._decode_seconds = _averaged(self._decode_seconds, seconds)
        elif self._decode_seconds is not None and num_prompt_tokens >= _LEAST_TOKENS:
            rest = max(0.0, seconds - self._decode_seconds)
            self._token_seconds = _averaged(self._token_seconds, rest / num_prompt_tokens)

    def max_prompt_tokens(self, target_seconds: float) -> int | None:
        """Prompt tokens that a step with decoding rows can take within the target; None: not known yet."""
        if self._decode_seconds is None or not self._token_seconds:
            return None
        return max(_LEAST_TOKENS, int((target_seconds - self._decode_seconds) / self._token_seconds))

    def spread_tokens(self, prompt_tokens: int, num_waiting: int, waited_seconds: float) -> int | None:
        """Prompt tokens that are enough for a step, the pace being known; None: as many as it can take.

        The prompt that comes first has ``prompt_tokens`` and came ``waited_seconds`` ago; of it and all others
        ``num_waiting`` tokens are not computed.
        """
        decode_seconds, token_seconds = self._decode_seconds, self._token_seconds
        if decode_seconds is None or not token_seconds or prompt_tokens * token_seconds < _LONG * decode_seconds:
            return None
        seconds_for_rows = _SOON_SECONDS - waited_seconds - num_waiting * token_seconds
        if seconds_for_rows < decode_seconds:
            return None
        each = ceil(num_waiting / (seconds_for_rows // decode_seconds))
        return max(each, ceil(0.5 * decode_seconds / token_seconds), _LEAST_TOKENS)


def _averaged(before: float | None, seconds: float) -> float:
    return seconds if before is None else _MEMORY * before + (1 - _MEMORY) * seconds
