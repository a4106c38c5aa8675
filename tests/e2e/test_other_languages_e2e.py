"""The clients in other languages: each is built and its own tests run against a live server without a model.

Compilers take minutes: these run by `make test-clients`, not by `make test`. Without its toolchain a client is skipped.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.scripted_rows import Limits
from support.scripted_stack import ScriptedStack

CLIENTS = Path(__file__).parents[2] / "clients"
COMMANDS = {
    "node": ("npm", ["npm ci --silent --no-audit --no-fund", "npm test"]),
    "go": ("go", ["./test.sh"]),
    "java": ("javac", ["./test.sh"]),
    "cpp": ("cmake", ["./test.sh"]),
    "ruby": ("ruby", ["./test.sh"]),
}
"""Of each client: the program it cannot do without, and what builds and tests it in its folder."""

pytestmark = [pytest.mark.languages, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    """A server that answers the ids 1, 2, 3 with "known" and counts for ever otherwise."""
    limits = Limits(num_pages=8192, max_model_len=100_200)  # endless takes longer than any test
    with ScriptedStack() as stack, stack.worker(limits):
        yield stack.scheduler.target


@pytest.mark.parametrize("language", COMMANDS)
def test_a_client_passes_its_own_tests(language: str, target: str, tmp_path: Path) -> None:
    program, commands = COMMANDS[language]
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program} on this machine")
    environment = {**os.environ, "PAGEWIRE_TARGET": target, "BUILD_DIR": str(tmp_path)}
    for command in commands:
        ended = subprocess.run(
            command, shell=True, cwd=CLIENTS / language, env=environment, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, f"{command}\n{ended.stdout[-6000:]}\n{ended.stderr[-6000:]}"
