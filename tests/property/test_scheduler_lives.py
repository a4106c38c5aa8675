"""Random lives of the core by seed: longer than Hypothesis's, and the seed is all it takes to see one again."""

import os
import random
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.parametrize("part", range(8))
def test_random_lives(part: int) -> None:
    """2,000 other lives in every run; the seed of the run, which pytest prints, chooses them."""
    first = random.getrandbits(40) + 250 * part
    print(f"250 lives from seed {first}")
    preempted = cached = wasted = 0
    for seed in range(first, first + 250):
        counts = live(seed, 60).bench.core.counts()
        preempted += counts.num_preemptions
        cached += counts.num_cached_tokens
        wasted += counts.num_wasted_tokens
    assert min(preempted, cached, wasted) > 100, "these lives are too quiet to show anything"


def test_a_life_whose_step_failed_after_a_request_of_it_had_ended() -> None:
    """The next step in flight filled the page that the failed one had begun; it must not be named."""
    live(18235, 150)


def test_a_life_whose_worker_went_while_a_row_sat_out() -> None:
    """The token of a step that was done, of a lane that ends with a later one, must not be lost."""
    live(882353097344, 60)


def test_a_life_in_which_a_row_was_made_by_who_kept_an_earlier_one_waiting() -> None:
    """The victim's end brings back requests that waited for its pages; the first of them is next, and none is lost."""
    live(55447385219, 60)


def test_a_life_whose_cache_was_emptied_between_two_steps_that_name_the_same() -> None:
    """A name is evicted with its page and given to another page before the worker hears of either."""
    live(2693535587, 60)


@pytest.mark.soak
@pytest.mark.parametrize("block", range(20))
def test_many_random_lives(block: int) -> None:
    for seed in range(10_000 * block, 10_000 * (block + 1)):
        live(seed, 60)


def test_the_same_life_is_lived_again_plan_for_plan() -> None:
    first, second = live(17, 150), live(17, 150)
    assert first.bench.plans
    assert first.bench.plans == second.bench.plans
    assert first.bench.ended == second.bench.ended


def test_plans_do_not_depend_on_the_process() -> None:
    """Two processes that hash strings and bytes differently make the same plans."""
    code = (
        "from hashlib import blake2b; from support.core_random import RandomLife; life = RandomLife(23)\n"
        "for _ in range(120): life.act()\n"
        "life.finish(); print(blake2b(repr(life.bench.plans).encode()).hexdigest())"
    )
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "12345")
    }
    assert len(digests) == 1
