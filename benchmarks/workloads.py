"""The fixed workloads every engine runs when a ratio is claimed: token ids drawn from fixed seeds, endings ignored.

All requests are greedy lists of ids with `ignore_eos`, so the amount of work is identical everywhere. Ids are drawn
from [17, 49152), the vocabulary of SmolLM2 without its special tokens. A repetition is the same work on other ids:
every prompt's first id moves, so that no repetition meets what an earlier one left in a prefix cache.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

VOCAB_SIZE = 49152
FIRST_ORDINARY_ID = 17
_SHIFT = 997


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests that arrive together (offline) or from `num_clients` closed-loop streaming clients."""

    name: str
    what: str
    prompts: Sequence[Sequence[int]]
    max_tokens: int
    num_clients: int = 0
    """0: offline, all at once, only the total time counts."""

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(prompt) for prompt in self.prompts)

    @property
    def num_output_tokens(self) -> int:
        return len(self.prompts) * self.max_tokens


def random_prompts(seed: int, count: int, length: int) -> list[list[int]]:
    """``count`` prompts of ``length`` ids from ``seed``."""
    draw = random.Random(seed)
    return [[draw.randrange(FIRST_ORDINARY_ID, VOCAB_SIZE) for _ in range(length)] for _ in range(count)]


def shared_prefix(prefix_seed: int, suffix_seed: int) -> list[list[int]]:
    """32 prompts of 32 ids of their own behind one prefix of 512."""
    prefix = random_prompts(prefix_seed, 1, 512)[0]
    return [prefix + own for own in random_prompts(suffix_seed, 32, 32)]


WARM_UP = Workload(name="warm-up", what="4 x (128 in, 16 out)", prompts=random_prompts(7, 4, 128), max_tokens=16)

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
    return Workload(
        name=first.name,
        what=first.what,
        prompts=[_moved(prompt, repetition) for prompt in prompts],
        max_tokens=first.max_tokens,
        num_clients=first.num_clients,
    )


def _moved(prompt: Sequence[int], repetition: int) -> list[int]:
    """``prompt`` with another first id, the same for prompts that share theirs."""
    span = VOCAB_SIZE - FIRST_ORDINARY_ID
    return [FIRST_ORDINARY_ID + (prompt[0] - FIRST_ORDINARY_ID + _SHIFT * repetition) % span, *prompt[1:]]


def _offline_64() -> Workload:
    return Workload(
        name="A", what="offline, 64 x (128 in, 128 out)", prompts=random_prompts(1, 64, 128), max_tokens=128
    )


def _offline_16() -> Workload:
    return Workload(
        name="B", what="offline, 16 x (128 in, 128 out)", prompts=random_prompts(2, 16, 128), max_tokens=128
    )


def _single_stream() -> Workload:
    prompts = random_prompts(3, 4, 128)
    return Workload(
        name="C", what="one stream, 4 x (128 in, 128 out) in turn", prompts=prompts, max_tokens=128, num_clients=1
    )


def _prefix() -> Workload:
    return Workload(
        name="D", what="offline, 32 x (512 shared + 32 in, 32 out)", prompts=shared_prefix(4, 5), max_tokens=32
    )


def _clients_16() -> Workload:
    prompts = random_prompts(6, 48, 128)
    return Workload(
        name="E", what="16 closed-loop streams, 48 x (128 in, 128 out)", prompts=prompts, max_tokens=128, num_clients=16
    )


_WORKLOADS = {"A": _offline_64, "B": _offline_16, "C": _single_stream, "D": _prefix, "E": _clients_16}
NAMES = tuple(_WORKLOADS)
