"""Prompts are named as if each were hashed whole."""

import random
from array import array

from scheduler_svc.core.page_hash import hash_pages
from scheduler_svc.front.page_names import PageNames

ROOTS = (b"a" * 16, b"b" * 16)


def test_names_are_those_of_the_whole_prompt() -> None:
    draw, names = random.Random(1), PageNames()
    known = [array("i", [draw.randrange(3) for _ in range(draw.randrange(200))]) for _ in range(5)]
    for _ in range(500):
        prompt = draw.choice(known)[: draw.randrange(200)]
        prompt.extend(draw.randrange(3) for _ in range(draw.choice((0, 1, 30))))
        root = draw.choice(ROOTS)
        assert names.of(root, prompt, 4) == b"".join(hash_pages(root, prompt, 4))


def test_what_is_remembered_is_bounded() -> None:
    names = PageNames(max_bytes=4000)
    for first in range(100):
        names.of(ROOTS[0], array("i", [first] * 8), 4)
    assert len(names._named) < 8
    prompt = array("i", range(10_000))
    assert names.of(ROOTS[0], prompt, 4) == names.of(ROOTS[0], prompt, 4)
    assert names._num_bytes == 0
