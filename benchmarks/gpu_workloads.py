"""The workloads of the GPU comparison: token ids from fixed seeds, endings ignored, so that every engine does the same.

A seed is used once in a run, so that no prefix cache knows a prompt from an earlier repetition.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

Request = tuple[list[int], int]
"""A prompt and the number of tokens to generate."""
_VOCAB = 10000


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuWorkload:
    """Requests that arrive together."""

    requests: Sequence[Request]
    temperature: float = 0.0
    num_shared: int = 0
    """Tokens all prompts begin with."""

    @property
    def num_output_tokens(self) -> int:
        return sum(count for _, count in self.requests)


def _prompt(draw: random.Random, length: int) -> list[int]:
    return [draw.randint(1, _VOCAB) for _ in range(length)]


def fixed(count: int, num_input: int, num_output: int, seed: int) -> GpuWorkload:
    draw = random.Random(seed)
    return GpuWorkload(requests=[(_prompt(draw, num_input), num_output) for _ in range(count)])


def ragged(seed: int) -> GpuWorkload:
    """256 requests of 100 to 1024 tokens in and out, at temperature 0.6: always the same, but for every first id."""
    draw = random.Random(0)
    requests = [(_prompt(draw, draw.randint(100, 1024)), draw.randint(100, 1024)) for _ in range(256)]
    for prompt, _ in requests:
        prompt[0] = 1 + (prompt[0] + 997 * seed) % _VOCAB
    return GpuWorkload(requests=requests, temperature=0.6)


def shared_prefix(seed: int) -> GpuWorkload:
    """64 requests of 2048 shared tokens and 64 of their own, 64 out."""
    draw = random.Random(seed)
    prefix = _prompt(draw, 2048)
    return GpuWorkload(requests=[(prefix + _prompt(draw, 64), 64) for _ in range(64)], num_shared=2048)
