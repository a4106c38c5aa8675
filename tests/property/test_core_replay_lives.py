"""Random lives of a core, traced, and lived again from the trace: every answer is the recorded one."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from support.core_random import RandomLife

from scheduler_svc.replay import Replay, main
from scheduler_svc.traced_core import TracedCore, TraceFile


def trace(path: Path, seed: int, num_acts: int = 100) -> RandomLife:
    file = TraceFile(path)
    life = RandomLife(seed, make=partial(TracedCore, write=file.write))
    for _ in range(num_acts):
        life.act()
    life.finish()
    file.close()
    return life


def test_a_traced_life_is_lived_again_call_by_call(tmp_path: Path) -> None:
    for seed in range(30):
        path = tmp_path / f"{seed}.trace"
        life = trace(path, seed)
        replay = Replay(path)
        different = [call.number for call in replay if not call.is_equal]
        assert different == [], f"seed {seed}"
        counts = replace(
            life.bench.core.counts(), num_salted_pages=0
        )  # a trace does not tell which salts had one prompt
        assert replay.core.counts() == counts, f"seed {seed}"
        replay.core.check_invariants()


def test_tracing_changes_nothing(tmp_path: Path) -> None:
    for seed in (3, 17, 23):
        plain = RandomLife(seed)
        for _ in range(100):
            plain.act()
        plain.finish()
        assert trace(tmp_path / f"{seed}.trace", seed).bench.plans == plain.bench.plans


def test_a_process_that_hashes_differently_answers_the_same(tmp_path: Path) -> None:
    path = tmp_path / "life.trace"
    life = trace(path, 23)
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "scheduler_svc.replay", str(path), "--json"],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert (report["equal"], report["steps"]) == (True, life.bench.core.counts().num_steps)


@pytest.mark.soak
@pytest.mark.parametrize("block", range(10))
def test_many_traced_lives(tmp_path: Path, block: int) -> None:
    for seed in range(5000 + 200 * block, 5200 + 200 * block):
        trace(tmp_path / "life.trace", seed)
        assert all(call.is_equal for call in Replay(tmp_path / "life.trace")), f"seed {seed}"


def test_what_if_ends_for_any_life(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(10):
        path = tmp_path / f"{seed}.trace"
        trace(path, seed)
        assert main([str(path), "--json", "--max-num-seqs", "3", "--max-num-batched-tokens", "9"]) == 0, f"seed {seed}"
        report = json.loads(capsys.readouterr().out)["what_if"]
        assert report["simulated"]["requests"] == report["recorded"]["requests"], f"seed {seed}"
