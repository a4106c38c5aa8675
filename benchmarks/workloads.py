"""The fixed workloads every engine runs when a ratio is claimed: token ids drawn from fixed seeds, endings ignored.

All requests are greedy lists of ids with `ignore_eos`, so the amount of work is identical everywhere. Ids are drawn
from [17, 49152), the vocabulary of SmolLM2 without its special tokens. A repetition is the same work on other ids:
every prompt's first id moves, so that no repetition meets what an earlier one left in a prefix cache.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

VOCAB_SIZE = 49152
FIRST_ORDINARY_ID = 17
_SHIFT = 997


Request = tuple[Sequence[int], int]
"""A prompt and the number of tokens to generate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests that arrive together (offline), from `num_clients` closed-loop streaming clients, or by a clock."""

    name: str
    what: str
    requests: Sequence[Request]
    temperature: float = 0.0
    num_clients: int = 0
    """0: offline, all at once, only the total time counts; else each sends its next request when its last has ended."""
    arrivals: Sequence[float] = ()
    """Second at which each request is sent to the server, whatever became of the others; empty: not by a clock."""
    num_shared: int = 0
    """Tokens all prompts begin with."""
    num_watched: int = 0
    """Figures of streams are those of the first so many requests, the others being load; 0: of all."""
    first_token_requests: Sequence[Request] = ()
    """Run alone, one after the other, before the rest: the least of their times is the time to the first token."""

    @property
    def prompts(self) -> Sequence[Sequence[int]]:
        return [prompt for prompt, _ in self.requests]

    @property
    def is_served(self) -> bool:
        """Whether each request is a stream of its own."""
        return bool(self.num_clients or self.arrivals)

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(prompt) for prompt, _ in self.requests)

    @property
    def num_output_tokens(self) -> int:
        return sum(count for _, count in self.requests)


def same_length(prompts: Sequence[Sequence[int]], num_output: int) -> list[Request]:
    """Requests for as many tokens each."""
    return [(prompt, num_output) for prompt in prompts]


def random_prompts(seed: int, count: int, length: int) -> list[list[int]]:
    """``count`` prompts of ``length`` ids from ``seed``."""
    draw = random.Random(seed)
    return [[draw.randrange(FIRST_ORDINARY_ID, VOCAB_SIZE) for _ in range(length)] for _ in range(count)]


def shared_prefix(prefix_seed: int, suffix_seed: int) -> list[list[int]]:
    """32 prompts of 32 ids of their own behind one prefix of 512."""
    prefix = random_prompts(prefix_seed, 1, 512)[0]
    return [prefix + own for own in random_prompts(suffix_seed, 32, 32)]


WARM_UP = Workload(name="warm-up", what="4 x (128 in, 16 out)", requests=same_length(random_prompts(7, 4, 128), 16))


def warm_up_work(*, is_served: bool) -> Workload:
    """The warm-up, offline or as two streams."""
    return replace(WARM_UP, num_clients=2 if is_served else 0)


D_ALT = tuple(shared_prefix(40 + k, 50 + k) for k in range(3))
"""Other prompts of the same shape as D, for repetitions of it."""


def workload(name: str, repetition: int = 0) -> Workload:
    """Workload A, B, C, D or E as repetition ``repetition`` runs it; 0 is the one everybody quotes.

    Raises:
        KeyError: there is no such workload.
    """
    first = _WORKLOADS[name]()
    if repetition == 0:
        return first
    prompts = first.prompts if name != "D" else D_ALT[(repetition - 1) % len(D_ALT)]
    lengths = [count for _, count in first.requests]
    return replace(first, requests=[(_moved(each, repetition), n) for each, n in zip(prompts, lengths, strict=True)])


def _moved(prompt: Sequence[int], repetition: int) -> list[int]:
    """``prompt`` with another first id, the same for prompts that share theirs."""
    span = VOCAB_SIZE - FIRST_ORDINARY_ID
    return [FIRST_ORDINARY_ID + (prompt[0] - FIRST_ORDINARY_ID + _SHIFT * repetition) % span, *prompt[1:]]


def _offline_64() -> Workload:
    return Workload(
        name="A", what="offline, 64 x (128 in, 128 out)", requests=same_length(random_prompts(1, 64, 128), 128)
    )


def _offline_16() -> Workload:
    return Workload(
        name="B", what="offline, 16 x (128 in, 128 out)", requests=same_length(random_prompts(2, 16, 128), 128)
    )


def _single_stream() -> Workload:
    requests = same_length(random_prompts(3, 4, 128), 128)
    return Workload(name="C", what="one stream, 4 x (128 in, 128 out) in turn", requests=requests, num_clients=1)


def _prefix() -> Workload:
    return Workload(
        name="D", what="offline, 32 x (512 shared + 32 in, 32 out)", requests=same_length(shared_prefix(4, 5), 32)
    )


def _clients_16() -> Workload:
    requests = same_length(random_prompts(6, 48, 128), 128)
    return Workload(name="E", what="16 closed-loop streams, 48 x (128 in, 128 out)", requests=requests, num_clients=16)


_WORKLOADS = {"A": _offline_64, "B": _offline_16, "C": _single_stream, "D": _prefix, "E": _clients_16}
NAMES = tuple(_WORKLOADS)
