"""Requests for the simulation, made by a seed: families of prompts with a common beginning, lengths like ShareGPT's.

A family is a system prompt or a document; which one a request has is Zipf's law. Of ten requests seven begin a
conversation in their family and three continue one: the prompt so far and some more. Lengths of questions and answers
are lognormal with ShareGPT's means (about 160 and 220 tokens), arrivals are Poisson's.
"""

import math
from array import array
from random import Random

from benchmarks.simulated_fleet import Arrival
from scheduler_svc.core.page_hash import hash_pages, root_hash
from scheduler_svc.core.types import NewRequest, RequestKey

PAGE_SIZE = 32
ROOT = root_hash(b"simulation", "", "model", "")
_MAX_PROMPT = 12_000


class Load:
    """``arrivals`` for one run."""

    def __init__(self, seed: int, num_families: int, weights: dict[str, float]) -> None:
        self._random = Random(seed)
        self._tenants = list(weights)
        self._weights = list(weights.values())
        self._families = [self._tokens(self._random.choice((256, 512, 1024, 2048, 4096))) for _ in range(num_families)]
        self._family_weights = [1 / (rank + 1) for rank in range(num_families)]
        self._talks: list[tuple[array[int], str]] = []

    def arrivals(self, num_requests: int, per_second: float) -> list[Arrival]:
        """So many requests, in the order in which they come."""
        now, made = 0.0, []
        for key in range(num_requests):
            now += self._random.expovariate(per_second)
            prompt, tenant = self._prompt()
            request = NewRequest(
                key=RequestKey(key),
                tenant=tenant,
                prompt=prompt,
                page_hashes=hash_pages(ROOT, prompt, PAGE_SIZE),
                root_hash=ROOT,
                max_tokens=self._length(220, 1.0, 2048),
            )
            made.append(Arrival(at=now, request=request))
        return made

    def _prompt(self) -> "tuple[array[int], str]":
        random = self._random
        if self._talks and random.random() < 0.3:
            index = random.randrange(len(self._talks))
            before, tenant = self._talks[index]
            prompt = before + self._tokens(self._length(160, 1.0, 2048))
            self._talks[index] = (prompt, tenant)
        else:
            (family,) = random.choices(self._families, self._family_weights)
            (tenant,) = random.choices(self._tenants, self._weights)
            prompt = family + self._tokens(self._length(160, 1.0, 2048))
            index = len(self._talks)
            self._talks.append((prompt, tenant))
        if len(prompt) > _MAX_PROMPT or len(self._talks) > 2000:
            self._talks[index] = self._talks[-1]
            self._talks.pop()
        return prompt[:_MAX_PROMPT], tenant

    def _length(self, mean: float, sigma: float, most: int) -> int:
        """Lognormal; ``sigma`` is that of the logarithm."""
        return max(1, min(most, round(self._random.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma))))

    def _tokens(self, count: int) -> "array[int]":
        return array("i", self._random.randbytes(4 * count)) if count else array("i")
