"""The compiled scheduler does what its source does: the same bytes, and whatever Hypothesis thinks of."""

import random
import sys
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from support.compiled_code import compile_or_skip, run
from support.core_random import RandomLife

import scheduler_svc
from benchmarks.scheduler import Bench, Scenario
from scheduler_svc import worker_codec
from scheduler_svc.core import request
from scheduler_svc.traced_core import TracedCore, TraceFile

DESK = Scenario(name="desk", running=8, prompt=40, output=64, steps=150)
NUM_LIVES, NUM_MORE_LIVES = 15, 100
SAID = "compiled from .so\n"

pytestmark = [pytest.mark.timeout(700)]


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    compile_or_skip()


def write_lives(folder: Path) -> None:
    """Traces of random lives, and the bytes of all plans made in them."""
    for seed in range(NUM_LIVES):
        file = TraceFile(folder / f"{seed}.trace")
        life = RandomLife(seed, make=partial(TracedCore, write=file.write))
        for _ in range(60):
            life.act()
        life.finish()
        file.close()
        plans = [worker_codec.plan(1, 1, plan) for plan in life.bench.plans]
        (folder / f"{seed}.plans").write_bytes(b"".join(plans))
        told = [(each.at, each.what.value, each.first, each.second) for key in life.bench.requests
                for each in life.bench.core.decisions(key)]  # fmt: skip
        (folder / f"{seed}.decisions").write_text(repr(told))


def test_plans_traces_and_decisions_are_the_same_bytes(tmp_path: Path) -> None:
    here, there = tmp_path / "source", tmp_path / "compiled"
    here.mkdir()
    there.mkdir()
    write_lives(here)
    write_steps(here)
    done = run(__file__, str(there))
    assert done.returncode == 0, done.stderr
    assert done.stdout == SAID
    for path in sorted(here.iterdir()):
        assert (there / path.name).read_bytes() == path.read_bytes(), path.name


def write_steps(folder: Path) -> None:
    """The bytes that go to worker and front in the steps of the benchmark."""
    bench = Bench(DESK)
    plans, frames = [], []
    plan, flush = bench.plan, bench.flush
    bench.plan = lambda: plans.append(plan()) or plans[-1]  # type: ignore[method-assign, func-returns-value]
    bench.flush = lambda: frames.append(flush()) or frames[-1]  # type: ignore[method-assign, func-returns-value]
    assert len(list(bench.run())) == DESK.steps
    (folder / "plans").write_bytes(b"".join(plans))
    (folder / "frames").write_bytes(b"".join(frames))


def test_a_trace_is_replayed_by_compiled_code(tmp_path: Path) -> None:
    write_lives(tmp_path)
    done = run("-m", "scheduler_svc.replay", str(tmp_path / "3.trace"), "--json")
    assert (done.returncode, '"equal": true' in done.stdout) == (0, True), done.stdout + done.stderr


def test_whatever_hypothesis_thinks_of() -> None:
    """The machine of the whole core, and lives of a seed of its own, compiled."""
    seed = random.getrandbits(40)
    print(f"{NUM_MORE_LIVES} lives from seed {seed}")
    done = run(__file__, "", str(seed))
    assert (done.returncode, done.stdout) == (0, SAID), done.stdout[-4000:] + done.stderr[-4000:]


def test_a_fault_names_the_line_of_the_source() -> None:
    program = "from scheduler_svc.core.page_pool import PagePool\nPagePool(1).take_one()\nPagePool(0).take_one()"
    done = run("-c", program)
    assert 'File "scheduler_svc/core/page_pool.py", line ' in done.stderr
    assert "page, _ = self._cached.popitem(last=False)" in done.stderr


def live(seed: int) -> None:
    """What the compiled code is asked to live through."""
    from test_scheduler_machine import SchedulerMachine  # type: ignore[import-not-found]

    run_state_machine_as_test(SchedulerMachine, settings=settings(max_examples=30, stateful_step_count=50))
    for each in range(seed, seed + NUM_MORE_LIVES):
        life = RandomLife(each)
        for _ in range(60):
            life.act()
        life.finish()


if __name__ == "__main__":
    print(scheduler_svc.code, "from", Path(request.__file__).suffix)
    if sys.argv[1]:
        write_lives(Path(sys.argv[1]))
        write_steps(Path(sys.argv[1]))
    else:
        live(int(sys.argv[2]))
