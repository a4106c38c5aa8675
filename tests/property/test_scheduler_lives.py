"""Random lives of the core by seed: longer than Hypothesis's, and the seed is all it takes to see one again."""

import pytest
from support.core_random import RandomLife


def live(seed: int, num_acts: int) -> RandomLife:
    life = RandomLife(seed)
    try:
        for _ in range(num_acts):
            life.act()
        life.finish()
    except BaseException:
        print(f"RandomLife({seed}), {num_acts} acts")
        raise
    return life


def test_random_lives() -> None:
    preempted = cached = wasted = 0
    for seed in range(200):
        counts = live(seed, 100).bench.core.counts()
        preempted += counts.num_preemptions
        cached += counts.num_cached_tokens
        wasted += counts.num_wasted_tokens
    assert min(preempted, cached, wasted) > 100, "these lives are too quiet to show anything"


@pytest.mark.soak
@pytest.mark.parametrize("block", range(20))
def test_many_random_lives(block: int) -> None:
    for seed in range(1000 + 1000 * block, 2000 + 1000 * block):
        live(seed, 150)


def test_the_same_life_is_lived_again_plan_for_plan() -> None:
    first, second = live(17, 150), live(17, 150)
    assert first.bench.plans
    assert first.bench.plans == second.bench.plans
    assert first.bench.ended == second.bench.ended
