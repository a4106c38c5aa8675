"""When a silent or stuck peer is given up. Pure: time is an argument.

A process that did not run itself (stopped, starved, busy) must not blame its peers: the time it lost is added to every
peer's account before anybody is judged.
"""

_NORMAL_ROUND_SECONDS = 1.0
_FIRST_STEP_SECONDS = 120.0
_LEAST_STEP_SECONDS = 10.0
_SLACK = 5.0
_WEIGHT = 0.2


class OwnStalls:
    """Notices rounds of the loop that came much too late."""

    def __init__(self, now: float) -> None:
        self._last_round = now

    def lost(self, now: float) -> float:
        """Seconds this process did not look at its peers since the last call; 0 in normal rounds."""
        gap, self._last_round = now - self._last_round, now
        return gap if gap > _NORMAL_ROUND_SECONDS else 0.0


class StepClock:
    """Predicts how long a worker takes for a step, from the steps it has done."""

    def __init__(self) -> None:
        self._step_seconds: float | None = None
        self._token_seconds = 0.0

    def observe(self, num_tokens: int, seconds: float) -> None:
        per_token = seconds / max(1, num_tokens)
        if self._step_seconds is None:
            self._step_seconds, self._token_seconds = seconds, per_token
        else:
            self._step_seconds += _WEIGHT * (seconds - self._step_seconds)
            self._token_seconds += _WEIGHT * (per_token - self._token_seconds)

    def allowed(self, num_tokens: int) -> float:
        """Seconds after which a step of so many tokens counts as hung.

        The first step may compile kernels, so it is given minutes, not seconds.
        """
        if self._step_seconds is None:
            return _FIRST_STEP_SECONDS
        return max(_LEAST_STEP_SECONDS, _SLACK * max(self._step_seconds, num_tokens * self._token_seconds))
